"""docs/how-to/directory-and-ledger.md: its commands, in their order, on a running node. [CO-3,
CO-10]
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

PAGE = Path(__file__).parents[2] / "docs/how-to/directory-and-ledger.md"
SITE = """
[site]
name = "page"
[concepts.person.attributes]
status = "text"
[node]
port = 9
[peers.ana]
addresses = ["inbox:"]
[collectives.guards]
members = ["ana"]
"""


@pytest.mark.slow
def test_every_command_of_the_page_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    commands = re.findall(r"^\$ rapport (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) > 10
    with NodeProcess(tmp_path) as node:
        node.start()
        assert node.doors is not None
        where = ["--site", str(tmp_path), "--url", "http://{}:{}".format(*node.doors)]
        for command in commands:
            words = shlex.split(command)
            assert run([*words, *(where[:2] if words[0] == "ledger" else where)]) == 0, command
    assert "Please come to the gate" in capsys.readouterr().out
