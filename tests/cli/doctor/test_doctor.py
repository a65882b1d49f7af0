"""`rapport doctor`: the installation, and the disk and servers of a site. [UX-3]"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.kernel.clock import SystemClock
from rapport.site.doctor import examine_site, measure_syncs
from support.servers.nats import NatsServer, nats_address, nats_prefix, nats_server
from support.servers.ports import free_port
from support.servers.postgres import PostgresAddress, postgres, postgres_server

pytestmark = pytest.mark.slow

__all__ = ["nats_address", "nats_prefix", "nats_server", "postgres", "postgres_server"]

SITE = '[site]\nname = "s"\n'


def make_site(directory: Path, text: str = "") -> Path:
    (directory / "site.toml").write_text(SITE + text)
    return directory


def states(site: Path) -> dict[str, tuple[str, str]]:
    return {one.part: (one.state, one.hint) for one in examine_site(site)}


def tell(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["doctor", *arguments]) == 0
    return capsys.readouterr().out


def test_every_optional_part_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(tell(capsys, "--json"))
    rows = {row["part"]: row["state"] for row in rows}
    for part in ("psycopg", "nats-py", "paho", "cryptography", "websockets"):
        assert [state for name, state in rows.items() if part in name] == ["ready"], part
    assert not any("data directory" in name for name in rows)


def test_a_site_is_told_about_its_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = make_site(tmp_path)
    told = tell(capsys, "--site", str(site))
    assert "writable; write and sync takes" in told
    assert "GiB free" in told
    assert [path.name for path in site.iterdir()] == ["site.toml"]


def test_a_directory_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    ((state, hint),) = [v for name, v in states(make_site(tmp_path)).items() if "data" in name]
    assert state == "not writable: Read-only file system"
    assert hint


def test_a_file_where_the_data_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")
    (tmp_path / ".rapport").write_text("a file")
    (finding,) = examine_site(tmp_path)
    assert finding.state == "not writable: Not a directory"


def test_measuring_leaves_nothing_behind(tmp_path: Path) -> None:
    assert measure_syncs(tmp_path, SystemClock()) > 0
    assert list(tmp_path.iterdir()) == []


def test_servers_that_are_there_are_reached(
    tmp_path: Path, nats_address: str, postgres: PostgresAddress
) -> None:
    with NatsServer(mqtt=True) as broker:
        (tmp_path / "nats").write_text(nats_address)
        (tmp_path / "postgres").write_text(postgres.dsn)
        site = make_site(
            tmp_path,
            '[channels]\nlog = "nats"\nnats = "file:nats"\npostgres = "file:postgres"\n'
            f'[mqtt.hall]\nbroker = "mqtt://127.0.0.1:{broker.mqtt_port}"\n'
            'in = [{ topic = "a/#", source = "a" }]\n',
        )
        found = states(site)
    assert found["[channels] postgres"][0].startswith("PostgreSQL ")
    state, hint = found["[channels] nats"]
    assert state == "NATS with JetStream answers"
    assert "sync_interval: always" in hint
    assert found["[mqtt.hall]"][0].endswith("answers")


def test_servers_that_are_not_there_are_told_soon(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "nats").write_text(f"nats://127.0.0.1:{port}")
    (tmp_path / "postgres").write_text(f"postgresql://nobody@127.0.0.1:{port}/none")
    site = make_site(
        tmp_path,
        '[channels]\nlog = "nats"\nnats = "file:nats"\npostgres = "file:postgres"\n'
        f'[mqtt.hall]\nbroker = "mqtt://127.0.0.1:{port}"\nin = [{{ topic = "a", source = "a" }}]\n'
        '[mqtt.locked]\nbroker = "mqtt://127.0.0.1:1"\nuser = "u"\npassword = "file:nowhere"\n'
        'in = [{ topic = "a", source = "a" }]\n',
    )
    clock = SystemClock()
    began_ns = clock.steady_ns()
    found = states(site)
    assert (clock.steady_ns() - began_ns) / 1e9 < 15
    for part in ("[channels] postgres", "[channels] nats", "[mqtt.hall]", "[mqtt.locked]"):
        assert found[part][0].startswith("not reached: "), found[part]
    assert "secret" in found["[mqtt.locked]"][0]
