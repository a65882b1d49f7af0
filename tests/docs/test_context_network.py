"""The page about a network of brokers is followed as a stranger would. [CX-3, CX-8, CX-9]"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.context.rights import ContextGrant, ContextRights
from rapport.core.context_record import EntityRef
from rapport.kernel.toml import TomlFile
from rapport.transport.addresses import format_address
from support.pages import follow_page
from support.processes.context import BrokerProcess
from support.servers.ports import free_port

PAGE = Path(__file__).parents[2] / "docs/how-to/context-network.md"


@pytest.mark.slow
def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    text = PAGE.read_text()
    for port in ("7411", "7421", "7431"):
        text = text.replace(port, str(free_port()))
    page = tmp_path / PAGE.name
    page.write_text(text)
    follow_page(page, tmp_path)


@pytest.mark.slow
def test_its_program_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with BrokerProcess() as one, BrokerProcess() as two:
        program = program.replace("127.0.0.1:7411", format_address(one.address))
        program = program.replace("127.0.0.1:7421", format_address(two.address))
        # Both take the same broker, as these two know nothing of each other.
        program = program.replace(
            "await ContextConsumer.open(BROKERS)", "await ContextConsumer.open([station.broker])"
        )
        (tmp_path / "program.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout.splitlines() == ["{'temperature': 21.5} 0 hops", "{'temperature': 21.5}"]


def test_its_rights_mean_what_it_says() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    tables = TomlFile.parse(text.encode(), name="site.toml").section("context").section("rights")
    grants = {
        name: ContextGrant(**{key: tuple(value) for key, value in table.values.items()})
        for name, table in tables.sections()
    }
    rights = ContextRights(grants)
    room = EntityRef("room", "r1")
    assert rights.allows("station-7", "write", room, "status")
    assert not rights.allows("station-7", "read", room, "status")
    assert rights.allows("display", "read", EntityRef("car", "7"), "position")
    assert not rights.allows("somebody", "read", room, "status")
    assert rights.allows("station-8", "take_over", EntityRef("room", "r3"), "status")
    assert not rights.allows("station-8", "take_over", room, "status")
    assert not rights.allows("station-7", "take_over", room, "status")
