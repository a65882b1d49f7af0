"""`rapport status`, `stop` and `logs` against a real node. [UX-3, UX-5]"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Path:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "site.toml").write_text(f'[site]\nname = "yard"\n[node]\nport = {port}\n')
    return tmp_path


def test_a_node_that_does_not_run_is_said_so(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", "--site", str(site)]) == 1
    assert "not running" in capsys.readouterr().out
    assert run(["stop", "--site", str(site)]) == 1
    assert "no node of" in capsys.readouterr().err
    assert run(["logs", "--site", str(site)]) == 1
    assert "there is no log" in capsys.readouterr().err


def test_a_running_node_is_shown_its_log_is_read_and_it_is_stopped(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with NodeProcess(site) as node:
        node.start()
        assert run(["status", "--json", "--site", str(site)]) == 0
        assert json.loads(capsys.readouterr().out)["status"] == "ready"
        assert run(["stop", "--site", str(site)]) == 0
        assert capsys.readouterr().out == "stopped\n"
        assert run(["status", "--site", str(site)]) == 1
        node.stop()
        assert not (site / ".rapport" / "node.json").exists()
    capsys.readouterr()
    assert run(["logs", "--json", "--site", str(site)]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all({"event", "level", "timestamp"} <= set(entry) for entry in entries)
    log = site / ".rapport" / "node.log"
    assert not log.exists() or log.stat().st_mode & 0o077 == 0
