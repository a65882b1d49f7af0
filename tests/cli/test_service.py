"""`rapport status`, `stop` and `logs` against a real node. [UX-3, UX-5]"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
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


def test_a_node_with_its_data_elsewhere_is_found_followed_and_stopped(
    site: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with NodeProcess(site, flags=("--data", str(elsewhere))) as node:
        node.start()
        for flags in ([], ["--data", str(elsewhere)]):
            assert run(["status", *flags, "--site", str(site)]) == 0
            assert run(["logs", "--json", *flags, "--site", str(site)]) == 0
            assert "node started" in capfd.readouterr().out
        assert json.loads((elsewhere / "node.json").read_bytes())["pid"] == node.pid
        assert run(["stop", "--site", str(site)]) == 0
        node.wait()
    assert not list(site.glob("**/node.json"))
    assert run(["stop", "--data", str(elsewhere), "--site", str(site)]) == 1
    assert run(["logs", "--data", str(elsewhere), "--site", str(site)]) == 0
    assert "node stopped" in capfd.readouterr().out


def test_the_log_is_followed_as_it_is_written_also_when_its_file_is_rotated(site: Path) -> None:
    log = site / ".rapport" / "node.log"
    log.parent.mkdir()
    log.write_text(line("first"))
    command = [sys.executable, "-m", "rapport.cli.main", "logs", "--json", "--follow"]
    with subprocess.Popen(
        [*command, "--site", str(site)], stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        shown = (json.loads(text)["event"] for text in following.stdout)
        assert next(shown) == "first"
        with log.open("a") as file:
            file.write(line("second") + line("a detail", level="debug") + line("third")[:9])
            file.flush()
            assert next(shown) == "second"
            file.write(line("third")[9:])
        assert next(shown) == "third"
        log.rename(log.with_name("node.log.1"))
        log.write_text(line("4"))
        assert next(shown) == "4"
        following.send_signal(signal.SIGINT)
        following.wait(20)


def line(event: str, level: str = "info") -> str:
    return json.dumps({"event": event, "level": level, "timestamp": "2026-03-02T09:00:00Z"}) + "\n"


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


def test_commands_find_the_node_of_their_site_whatever_its_port(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = {"specversion": "1.0", "id": "1", "source": "me", "type": "note", "data": {}}
    (tmp_path / "notes.jsonl").write_text(json.dumps(note))
    notes = ["publish", str(tmp_path / "notes.jsonl"), "--channel", "notes"]
    with NodeProcess(site) as node:
        node.start()  # on a free port, not that of the site
        assert run([*notes, "--site", str(site)]) == 0
        assert "published" in capsys.readouterr().out
