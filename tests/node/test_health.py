"""Faults of a running node are conditions: they begin and end, each with one line in the log."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.mqtt import client as mqtt_client
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.kernel.telemetry import DegradedConditions
from rapport.node import links
from rapport.node.health import NOTICE_WITHIN_MS, HealthWatch, Probe, probe_stores, watch_node
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.mail_server import LocalMailServer
from rapport.site.site import load_site
from rapport.store.files import DiskFiles
from rapport.web.app import serving
from support.faults.full_disk import FullDisk
from support.running import play, running
from support.servers.imap import PASSWORD, ImapServer, ensure_dovecot
from support.servers.nats import NatsServer
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


@asynccontextmanager
async def serving_node(
    site: Path, *, data: Path | str = "data", channels: LoggedChannels | None = None, port: int = 0
) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """A started node with its endpoints; yields a function that gets the text of a path."""
    settings = NodeSettings(port=port, data=str(data))
    node = make_node(load_site(site), settings, SystemClock(), channels=channels)
    try:
        async with serving(node) as url:
            await node.start()
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:

                async def get(path: str) -> str:
                    return (await client.get(path, timeout=10)).text

                yield get
    finally:
        await node.stop()


async def ready(get: Callable[[str], Awaitable[Any]], *names: str) -> None:
    """Waits until `/readyz` shows exactly these conditions, then checks metrics and overview."""
    clock = SystemClock()
    # Without its store or disk a node may take nothing more: it is not ready, for the same reason.
    statuses = ("degraded", "not ready") if names else ("ready",)
    while True:
        shown = json.loads(await get("/readyz"))
        conditions = {one["name"]: one["reason"] for one in shown.get("conditions", [])}
        if shown["status"] in statuses and conditions.keys() == set(names):
            break
        await clock.sleep(50)
    assert shown["reasons"][-len(names) :] == list(conditions.values())
    metrics = await get("/metrics")
    assert all(f'rapport_degraded{{condition="{name}"}} 1.0' in metrics for name in names)
    overview = json.loads(await get("/overview"))
    assert {one["name"]: one["reason"] for one in overview["conditions"]} == conditions


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of 4 MB there; skips the test where it may not be mounted."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def begins_and_ends(logs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The log lines of each condition."""
    lines: dict[str, list[str]] = {}
    for line in logs:
        if "condition" in line:
            lines.setdefault(line["condition"], []).append(line["event"])
    return lines


ONCE = ["degraded", "no longer degraded"]


def test_a_fault_begins_once_and_its_end_is_logged_once() -> None:
    async def scenario() -> None:
        faults: dict[str, str] = {}
        clock = ManualClock(5)
        conditions = DegradedConditions(clock)
        conditions.begin("policy.late.gate", "a fault of another part")
        watch = HealthWatch((Probe(find=lambda: faults, period_ms=100),), conditions, clock)
        task = asyncio.create_task(watch.run())
        with capture_logs() as logs:
            faults["link.west"] = "no answer"
            await clock.advance(100)
            faults["link.west"] = "still no answer"
            await clock.advance(100)
            assert {one.name: one.reason for one in conditions.current()} == {
                "link.west": "still no answer",
                "policy.late.gate": "a fault of another part",
            }
            faults.clear()
            await clock.advance(200)
        assert [one.name for one in conditions.current()] == ["policy.late.gate"]
        assert begins_and_ends(logs) == {"link.west": ONCE}
        task.cancel()

    asyncio.run(scenario())


def test_a_store_that_hangs_is_a_condition_in_time_and_occupies_one_thread_only() -> None:
    released, calls = threading.Event(), []

    def hangs() -> dict[str, str]:
        calls.append(1)
        released.wait(20)
        return {}

    async def scenario() -> None:
        clock = ManualClock(5)
        conditions = DegradedConditions(clock)
        overdue = {"store.unreachable": "no answer"}
        probe = Probe(find=hangs, period_ms=100, limit_ms=300, overdue=overdue)
        task = asyncio.create_task(HealthWatch((probe,), conditions, clock).run())
        await clock.advance(299)
        assert conditions.current() == []
        await clock.advance(1)
        assert [one.name for one in conditions.current()] == ["store.unreachable"]
        await clock.advance(5_000)
        assert len(calls) == 1
        released.set()
        while conditions.current():
            await clock.advance(100)
            await SystemClock().sleep(1)  # the thread's answer
        task.cancel()

    asyncio.run(scenario())


def test_every_probe_of_a_node_finds_its_fault_within_ten_seconds(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        parts, stores = watch_node(node, tmp_path).probes
        assert parts.limit_ms == 0
        assert max(parts.notice_ms, stores.notice_ms) <= NOTICE_WITHIN_MS
        # What the parts find themselves is collected afterwards.
        assert links.HELLO_EVERY_MS + links.HELLO_LIMIT_MS + parts.notice_ms <= NOTICE_WITHIN_MS
        assert mqtt_client.DEAD_AFTER_MS + parts.notice_ms <= NOTICE_WITHIN_MS

    play(site_with(tmp_path / "site", ""), scenario)


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
def test_a_broker_a_neighbour_and_a_mailbox_that_are_gone_degrade_the_node_until_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_dovecot()
    monkeypatch.setenv("PASSWORD", PASSWORD)
    port = free_port()
    other = site_with(tmp_path / "other", "")
    broker = NatsServer(mqtt=True)
    mailbox = ImapServer()
    site = site_with(
        tmp_path / "site",
        f'[mqtt.house]\nbroker = "mqtt://127.0.0.1:{broker.mqtt_port}"\n'
        'in = [{ topic = "t", source = "s" }]\n'
        "[site_more]\n"
        f'[links.west]\nurl = "http://127.0.0.1:{port}"\nsend = ["alarms"]\n'
        'receive = ["alarms"]\n'
        '[inputs.replies]\nadapter = "imap"\nhost = "127.0.0.1"\nencryption = "none"\n'
        f'port = {mailbox.port}\nuser = "ana"\npassword = "env:PASSWORD"\ninterval = "1s"\n',
    )

    async def scenario() -> None:
        with capture_logs() as logs:
            async with asyncio.timeout(110), serving_node(site) as get:
                await ready(get, "mqtt.house", "link.west", "input.replies")
                broker.start()
                await ready(get, "link.west", "input.replies")
                mailbox.start()
                await ready(get, "link.west")
                async with serving_node(other, port=port):
                    await ready(get)
                await ready(get, "link.west")
                broker.stop()
                await ready(get, "link.west", "mqtt.house")
        found = begins_and_ends(logs)
        assert found["input.replies"] == ONCE
        assert found["link.west"] == found["mqtt.house"] == [*ONCE, "degraded"]

    try:
        asyncio.run(scenario())
    finally:
        broker.__exit__(None, None, None)
        mailbox.remove()


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


@pytest.mark.slow
@pytest.mark.parametrize("is_written", [True, False], ids=["written", "idle"])
def test_a_node_on_a_full_disk_is_degraded_until_there_is_space(
    tmp_path: Path, is_written: bool
) -> None:
    data = tmp_path / "small"
    site = site_with(tmp_path / "site", "")
    filler = data / "filler"

    async def scenario() -> None:
        channels = open_embedded(data / "log", SystemClock(), segment_bytes=100_000)
        channel = channels.channel("c")
        with capture_logs() as logs:
            async with asyncio.timeout(50), serving_node(site, data=data, channels=channels) as get:
                await ready(get)
                with suppress(OSError), filler.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4_096))
                if is_written:
                    large = [
                        Event("s", str(n), "t", "", 0, b'"' + b"x" * 5_000 + b'"')
                        for n in range(99)
                    ]
                    with pytest.raises(ChannelUnavailable):
                        await channel.append(large)
                await ready(get, "store.writes")
                filler.unlink()
                await ready(get)
                await channel.append([Event("s", "again", "t", "", 0)])
        assert begins_and_ends(logs) == {"store.writes": ONCE}

    with small_disk(data):
        asyncio.run(scenario())


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
def test_a_node_whose_postgresql_is_gone_is_degraded_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LocalPostgres()
    server.start()
    monkeypatch.setenv("DATABASE", server.dsn())
    site = site_with(
        tmp_path / "site",
        '[channels]\nrecords = "postgres"\nlog = "postgres"\npostgres = "env:DATABASE"\n',
    )

    async def scenario() -> None:
        with capture_logs() as logs:
            async with asyncio.timeout(100), serving_node(site) as get:
                await ready(get)
                server.kill()
                await ready(get, "store.unreachable")
                server.start()
                await ready(get)
        assert begins_and_ends(logs) == {"store.unreachable": ONCE}

    try:
        asyncio.run(scenario())
    finally:
        server.remove()
