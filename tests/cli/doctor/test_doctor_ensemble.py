"""`rapport doctor` asks the ensemble nodes that a site names, and `rapport mediate shared`
lists what they share. [EN-10, ME-12, UX-3]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.site.doctor import examine_site
from support.processes.node import NodeProcess
from support.servers.ports import free_port

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "labs"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[interpretations.us]
units = {{ "station.temperature" = "degF" }}
[ensemble]
listen = "127.0.0.1:{own}"
join = ["127.0.0.1:{other}"]
[ensemble.interpretations]
accept = ["elsewhere"]
"""


def test_the_site_s_own_ensemble_node_and_those_it_joins_are_asked(tmp_path: Path) -> None:
    own, other = free_port(), free_port()
    (tmp_path / "site.toml").write_text(SITE.format(own=own, other=other))
    before = {one.part: one for one in examine_site(tmp_path)}
    found = before[f"[ensemble] 127.0.0.1:{own}"]
    assert "no node answered" in found.state
    assert "rapport up" in found.hint
    with NodeProcess(tmp_path) as node:
        node.start()
        while_up = {one.part: one for one in examine_site(tmp_path)}
        assert node.doors is not None
        shown = subprocess.run(
            [
                *(sys.executable, "-m", "rapport.cli.main", "interpretation", "shared"),
                *("--site", str(tmp_path), "--url", "http://{}:{}".format(*node.doors)),
            ],
            capture_output=True,
            check=True,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        ).stdout.decode()
    answered = while_up[f"[ensemble] 127.0.0.1:{own}"]
    assert "the node 'labs'" in answered.state
    assert "answers: 0 other nodes, 0 components of theirs" in answered.state
    assert "no node answered" in while_up[f"[ensemble] 127.0.0.1:{other}"].state
    assert "in force" in shown
    assert "us@" in shown
