"""Faults of a running node are conditions: they begin and end, each with one line in the log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rapport.channel.backends.local import open_embedded
from rapport.channel.backends.postgres import open_postgres
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.telemetry import DegradedConditions
from rapport.node.health import HealthWatch, probe_stores
from rapport.node.node import Node
from rapport.scenarios.mail_server import LocalMailServer
from rapport.store.files import DiskFiles
from support.faults.full_disk import FullDisk
from support.running import play, running
from support.servers.ports import free_port
from support.servers.postgres import LocalPostgres

SITE = '[site]\nname = "hall"\n[peers.ana]\naddresses = ["mail:ana@example.org"]\n'


def site_with(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "site.toml").write_text(SITE + text)
    return directory


async def until(condition: Callable[[], bool]) -> None:
    """Looks again and again; the scenario's own deadline ends it."""
    clock = SystemClock()
    while not condition():
        await clock.sleep(50)


def conditions_of(node: Node) -> dict[str, str]:
    return {one.name: one.reason for one in node.conditions.current()}


def test_what_is_wrong_begins_once_and_what_is_mended_ends_once() -> None:
    faults: dict[str, str] = {}
    conditions = DegradedConditions(ManualClock(5))
    conditions.begin("policy.late.gate", "a fault of another part")
    watch = HealthWatch(lambda: faults, dict, conditions, ManualClock(5))

    async def scenario() -> None:
        with capture_logs() as logs:
            faults["link.west"] = "no answer"
            await watch.look()
            faults["link.west"] = "still no answer"
            await watch.look()
            assert {one.name: one.reason for one in conditions.current()} == {
                "link.west": "still no answer",
                "policy.late.gate": "a fault of another part",
            }
            faults.clear()
            await watch.look()
            await watch.look()
        assert [one.name for one in conditions.current()] == ["policy.late.gate"]
        assert [line["event"] for line in logs] == ["degraded", "no longer degraded"]

    asyncio.run(scenario())


def test_a_store_that_does_not_answer_is_a_condition_and_the_watch_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()
    monkeypatch.setattr("rapport.node.health._PROBE_SECONDS", 0.05)
    conditions = DegradedConditions(ManualClock(5))

    def hangs() -> dict[str, str]:
        released.wait(20)
        return {}

    async def scenario() -> None:
        watch = HealthWatch(dict, hangs, conditions, ManualClock(5))
        await watch.look()
        assert [one.name for one in conditions.current()] == ["store.unreachable"]
        released.set()
        await watch.look()
        assert conditions.current() == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_mail_server_that_is_down_degrades_the_node_until_a_mail_goes_out(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with LocalMailServer() as mailbox, asyncio.timeout(50):
            site = site_with(tmp_path / "site", f"[adapters.mail]\nport = {mailbox.port}\n")
            async with running(site) as node:
                await mailbox.go_down()
                message = Message(
                    type="TASK",
                    subtype="DRILL",
                    sender=Identifier("component", "test"),
                    receiver=Identifier("peer", "ana"),
                    content="drill",
                )
                await node.communication.send(message)
                await until(lambda: "adapter.mail" in conditions_of(node))
                await mailbox.come_up()
                await until(lambda: not conditions_of(node))

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_broker_a_neighbour_and_a_mailbox_that_are_gone_degrade_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "secret")
    port = free_port()
    site = site_with(
        tmp_path / "site",
        f'[mqtt.house]\nbroker = "mqtt://127.0.0.1:{port}"\n'
        'in = [{ topic = "t", source = "s" }]\n'
        f'[links.west]\nurl = "http://127.0.0.1:{port}"\nsend = ["alarms"]\n'
        '[inputs.replies]\nadapter = "imap"\nhost = "127.0.0.1"\nencryption = "none"\n'
        f'port = {port}\nuser = "ana"\npassword = "env:PASSWORD"\ninterval = "1s"\n',
    )

    async def scenario(node: Node) -> None:
        wanted = {"mqtt.house", "link.west", "input.replies"}
        await until(lambda: wanted <= conditions_of(node).keys())
        assert all(str(port) in conditions_of(node)[name] for name in ("mqtt.house", "link.west"))

    play(site, scenario)


def test_a_full_disk_is_a_condition_until_something_can_be_written_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FullDisk(DiskFiles())
        channels = open_embedded(tmp_path, SystemClock(), files=disk)
        event = Event("s", "1", "t", "", 0)
        await channels.channel("c").append([event])
        assert probe_stores(channels, tmp_path) == {}
        disk.fill()
        with pytest.raises(ChannelUnavailable):
            await channels.channel("c").append([Event("s", "2", "t", "", 0)])
        found = probe_stores(channels, tmp_path / "not there")
        assert list(found) == ["store.writes"]
        assert "nothing can be written" in found["store.writes"]
        assert probe_stores(channels, tmp_path) == {}
        disk.free()
        await channels.close()

    asyncio.run(scenario())
    assert list(tmp_path.glob(".probe*")) == []


def test_a_segment_that_vanishes_is_noticed_without_being_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, SystemClock(), segment_bytes=20_000)
        for number in range(40):
            event = Event("s", str(number), "t", "", 0, b'"' + b"x" * 2_000 + b'"')
            await channels.channel("c").append([event])
        assert probe_stores(channels, tmp_path) == {}
        oldest = min((tmp_path / "logs").glob("*/*.log"))
        oldest.unlink()
        reason = probe_stores(channels, tmp_path)["log.damaged"]
        assert "a missing file" in reason
        assert oldest.name in reason
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_postgresql_that_is_gone_is_a_condition_until_it_is_back(tmp_path: Path) -> None:
    server = LocalPostgres()
    server.start()
    try:
        channels = open_postgres(server.dsn(), SystemClock())
        assert probe_stores(channels, tmp_path) == {}
        server.stop()
        assert list(probe_stores(channels, tmp_path)) == ["store.unreachable"]
        server.start()
        assert probe_stores(channels, tmp_path) == {}
        asyncio.run(channels.close())
    finally:
        server.remove()
