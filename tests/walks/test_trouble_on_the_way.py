"""Trouble on the way from a sensor to a person: each is named, held or tried again; the rest goes
on. [UX-9, CO-10, ME-11, PO-7]

Real doors, mail and web servers on sites with short windows. Time is moved by hand only where the
night has to pass.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.log.channels import LoggedChannels
from rapport.communication.ledger_events import DELIVERY_PREFIX
from rapport.core.detection import DETECTED
from rapport.core.errors import StoreUnavailable
from rapport.core.event import Event, make_event
from rapport.core.times import format_time, parse_time
from rapport.kernel.clock import Clock, ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.policy.engine.stream_steps import LATE_TYPE, TIME_TYPE
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.scenarios.webhook_sink import WebhookSink
from rapport.site.site import load_site
from rapport.store.files import DiskFile, DiskFiles
from rapport.web.app import serving

pytestmark = pytest.mark.slow

Change = tuple[str, str]
QUICK: tuple[Change, ...] = (
    ('lateness = "5s"', 'lateness = "200ms"'),
    ('window = "5s"', 'window = "300ms"'),
)
TO_LEA: Change = ('send_to = "collective:guards"', 'send_to = "peer:lea"')
PATIENCE_SECONDS = 60
"""So long what is on its way is waited for. A full and slow machine needs some of it."""
LAB, VAULT = ("r1", "E200-01"), ("r2", "E200-02")
"""A badge reader in a restricted room, and the tag of a guest."""


class Building:
    """A running node and what its log says."""

    def __init__(self, node: Node, url: str = "") -> None:
        self.node, self.url = node, url

    def badge(self, guest: tuple[str, str] = LAB, *, ago_ms: int = 0, **others: Any) -> Any:
        """What a badge reader says of a guest who is alone in a restricted room."""
        time = format_time(self.node.clock.now_ms() - ago_ms)
        return {"reader": guest[0], "tag": guest[1], "dx": 0, "dy": 0, "t": time} | others

    def camera(self) -> Any:
        """What a camera says of somebody in the lab."""
        seconds = self.node.clock.now_ms() / 1_000
        return {"cam": "c2", "face": "p07", "bearing_deg": 0, "dist_ft": 12, "ts": seconds}

    async def post(self, source: str, payload: Any) -> Any:
        return await post_json(f"{self.url}/sources/{source}", payload)

    async def events(self, channel: str, type: str = "") -> list[Event]:
        kept = await self.node.channels.channel(channel).read_after(0, limit=10_000)
        return [one.event for one in kept if type in ("", one.event.type)]

    async def alarms(self) -> list[str]:
        """The rooms that alarms were raised about."""
        return [one.payload()["bindings"]["R"] for one in await self.events("detections", DETECTED)]

    async def held_back(self) -> list[tuple[str, str]]:
        """Reason and hint of everything in quarantine."""
        kept = await self.events("quarantine")
        return [(one.payload()["reason"], one.payload()["hint"]) for one in kept]

    async def states(self, peer: str, adapter: str) -> list[str]:
        """What the ledger said about a person's address, in order."""
        kept = [
            (one.payload(), one.type.removeprefix(DELIVERY_PREFIX))
            for one in await self.events("log")
            if one.type.startswith(DELIVERY_PREFIX)
        ]
        wanted = (peer, adapter)
        return [state for line, state in kept if (line.get("peer"), line.get("adapter")) == wanted]


async def until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
    """Looks fifty times a second until an async condition holds; fails after the deadline."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await SystemClock().sleep(20)


def change(directory: Path, *changes: Change) -> Path:
    file = directory / "site.toml"
    text = file.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return directory


def make_site(directory: Path, *changes: Change, mail_port: int = 9, phone_url: str = "") -> Path:
    site = prepare_site(
        directory,
        mail_port=mail_port,
        phone_url=phone_url or "http://127.0.0.1:9/phone",
        answer_within="1h",
    )
    return change(site, *changes)


@asynccontextmanager
async def running(
    site: Path, clock: Clock | None = None, channels: LoggedChannels | None = None
) -> AsyncIterator[Building]:
    """A node with open doors on the site."""
    settings = NodeSettings(port=0)
    node = make_node(load_site(site), settings, clock or SystemClock(), channels=channels)
    try:
        async with serving(node) as url:
            await node.start()
            yield Building(node, url)
    finally:
        await node.stop()


@pytest.mark.slow
def test_mail_that_finds_the_server_down_goes_out_when_it_is_up_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalMailServer() as mailbox:
            site = make_site(tmp_path, *QUICK, mail_port=mailbox.port)
            await mailbox.go_down()
            async with running(site) as building:
                await building.post("readers", building.badge())
                await until(lambda: _said(building, "ana", "mail", "failed"))
                assert mailbox.mails == []
                await mailbox.come_up()
                await until(lambda: _said(building, "ana", "mail", "handed"))
                await until(lambda: _said(building, "ben", "mail", "handed"))
                said = await building.states("ana", "mail")
                assert said[:3] == ["queued", "failed", "queued"]
                assert said[-1] == "handed"
                assert said.count("handed") == 1
                assert sorted(to[0] for to in mailbox.recipients) == [
                    "ana@example.org",
                    "ben@example.org",
                ]

    asyncio.run(scenario())


async def _said(building: Building, peer: str, adapter: str, state: str) -> bool:
    return state in await building.states(peer, adapter)


@pytest.mark.slow
def test_a_phone_gateway_that_fails_is_asked_again_with_the_same_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WebhookSink() as phone:
            phone.status = 500
            site = make_site(tmp_path, *QUICK, TO_LEA, phone_url=phone.url)
            async with running(site) as building:
                await building.post("readers", building.badge())
                await asyncio.wait_for(phone.wait_for(1), PATIENCE_SECONDS)
                phone.status = 200
                await until(lambda: _said(building, "lea", "webhook", "confirmed"))
                said = await building.states("lea", "webhook")
                assert said == ["queued", "failed", "queued", "confirmed"]
                keys = {posted.headers["idempotency-key"] for posted in phone.posted}
                assert len(keys) == 1
                assert len({posted.body for posted in phone.posted}) == 1

    asyncio.run(scenario())


PLUGIN = """
import time

def hangs(bearing, distance):
    time.sleep(3600)

def raises(bearing, distance):
    raise LookupError("no map of this floor")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reason", "deadline"),
    # One that raises may take its time on a busy machine: it is not late.
    [("hangs", "conversion.timeout", "150ms"), ("raises", "conversion.raised", "20s")],
)
def test_a_conversion_that_hangs_or_raises_holds_back_its_own_readings_only(
    tmp_path: Path, function: str, reason: str, deadline: str
) -> None:
    rule = (
        f'convert = [{{ call = "floors:{function}", take = ["bearing", "distance"], '
        f'give = ["bearing", "distance"], deadline = "{deadline}" }}]\n'
    )
    camera = "[interpretations.cameras]\n"

    async def scenario() -> None:
        site = make_site(tmp_path, *QUICK, (camera, camera + rule))
        (site / "floors.py").write_text(PLUGIN)
        async with running(site) as building:
            for _ in range(3):
                await building.post("cameras", building.camera())
                await building.post("readers", building.badge())
            await until(lambda: _mediated(building.node, "cameras", 3))
            await until(lambda: _mediated(building.node, "readers", 3))
            await until(lambda: _count(building.alarms(), 1))
            assert {held for held, _hint in await building.held_back()} == {reason}
            assert set(await building.alarms()) == {"lab"}
            assert building.node.not_ready() == []
            counts = building.node.mediation.counts()
            assert counts["cameras"].rejected == {reason: 3}
            assert counts["readers"].accepted == 3

    asyncio.run(scenario())


async def _count(found: Any, least: int) -> bool:
    return len(await found) >= least


async def _mediated(node: Node, source: str, least: int) -> bool:
    """Whether so many of a source's readings are done with, their counts included: what became of
    one is in the log a moment before it is counted, as the log's answer is on its way.
    """
    counts = node.mediation.counts()
    return source in counts and counts[source].read >= least


def test_a_feed_without_a_declared_unit_is_held_back_and_the_hint_names_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = make_site(tmp_path, *QUICK, ('field = "dist_ft", unit = "ft"', 'field = "dist_ft"'))
        async with running(site) as building:
            await building.post("cameras", building.camera())
            await building.post("readers", building.badge())
            await until(lambda: _count(building.alarms(), 1))
            await until(lambda: _count(building.held_back(), 1))
            ((reason, hint),) = await building.held_back()
            assert reason == "unit.undeclared"
            assert "'ft'" in hint

    asyncio.run(scenario())


def test_a_reading_from_2099_is_held_back_and_moves_no_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_site(tmp_path, *QUICK)) as building:
            await building.post("readers", building.badge(VAULT, t="2099-01-01T00:00:00Z"))
            await until(lambda: _count(building.held_back(), 1))
            await building.post("readers", building.badge())
            await until(lambda: _count(building.alarms(), 1))
            assert await building.alarms() == ["lab"]
            assert await building.events("detections", LATE_TYPE) == []
            ((reason, hint),) = await building.held_back()
            assert reason == "time.implausible"
            assert hint
            moved = await building.events("detections", TIME_TYPE)
            assert all(one.time < parse_time("2098-01-01T00:00:00Z") for one in moved)

    asyncio.run(scenario())


def test_a_reading_ten_seconds_late_is_said_to_be_late_and_raises_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_site(tmp_path, *QUICK)) as building:
            await building.post("readers", building.badge(LAB))
            await building.post("readers", building.badge(VAULT, ago_ms=10_000))
            await until(lambda: _count(building.events("detections", LATE_TYPE), 1))
            await until(lambda: _count(building.alarms(), 1))
            await until(lambda: _late(building.node))
            assert await building.alarms() == ["lab"]
            (late,) = await building.events("detections", LATE_TYPE)
            reading = (await building.events("events"))[1]
            assert late.payload()["id"] == reading.id
            assert late.causes() == (reading.id,)
            assert building.node.policy.counts.late == 1
            assert await building.held_back() == []

    asyncio.run(scenario())


async def _late(node: Node) -> bool:
    """Whether one was counted as late; that is a moment after the log has it."""
    return node.policy.counts.late > 0


def test_a_source_nobody_bound_is_held_back_with_the_nearest_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        open_site: Change = ('lateness = "200ms"', 'lateness = "200ms"\nopen_sources = true')
        async with running(make_site(tmp_path, *QUICK, open_site)) as building:
            await building.post("reader", building.badge())
            await until(lambda: _count(building.held_back(), 1))
            assert await building.held_back() == [("source.unbound", "did you mean 'readers'?")]

    asyncio.run(scenario())


def test_what_is_not_urgent_waits_for_the_end_of_the_quiet_hours(tmp_path: Path) -> None:
    changes = (
        *QUICK,
        ('addresses = ["mail:ben@example.org"]', 'addresses = ["inbox:"]'),
        ('send_to = "collective:guards"', 'send_to = "peer:ben"'),
        ("urgent = true", "urgent = false"),
    )
    late_evening, morning = "2026-03-02T22:30:00Z", "2026-03-03T06:00:00Z"

    async def scenario() -> None:
        clock = ManualClock(parse_time(late_evening))
        node = make_node(
            load_site(make_site(tmp_path, *changes)),
            NodeSettings(),
            clock,
            channels=open_memory(clock),
        )
        building = Building(node)
        await node.start()
        try:
            payload = building.badge()
            raw = make_event(source="readers", id="1", type="raw", time=0, data=payload)
            await node.append("raw.readers", [raw])
            await until(lambda: _after(clock, 50, lambda: _ben(building, "held")))
            (held,) = node.ledger.rows(peer="ben")
            assert (held.reason, held.until) == ("quiet hours", parse_time(morning))
            clock.set_ms(parse_time(morning) - 1)
            assert not await _after(clock, 0, lambda: _ben(building, "handed"))
            clock.set_ms(parse_time(morning))
            await until(lambda: _after(clock, 50, lambda: _ben(building, "handed")))
            log = [one.type.removeprefix(DELIVERY_PREFIX) for one in await building.events("log")]
            assert [state for state in log if state in ("held", "queued", "handed")] == [
                "held",
                "queued",
                "handed",
            ]
        finally:
            await node.stop()

    asyncio.run(scenario())


async def _after(clock: ManualClock, duration_ms: int, condition: Callable[[], Any]) -> bool:
    await clock.advance(duration_ms)
    return bool(await condition())


async def _ben(building: Building, state: str) -> bool:
    await building.node.ledger.refresh()
    return any(row.state == state for row in building.node.ledger.rows(peer="ben"))


def test_a_second_node_on_the_same_data_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = make_site(tmp_path, *QUICK)
        async with running(site) as building:
            with pytest.raises(StoreUnavailable, match=str(os.getpid())) as refused:
                make_node(load_site(site), NodeSettings(), SystemClock())
            assert refused.value.code == "store.locked"
            assert "API" in refused.value.hint
            await building.post("readers", building.badge())
            await until(lambda: _count(building.alarms(), 1))

    asyncio.run(scenario())


class SmallDisk(DiskFiles):
    """The operating system's files, until `full` is set."""

    full = False

    def open(self, path: Path) -> DiskFile:
        disk = self

        class File(DiskFile):
            def write_at(self, offset: int, *pieces: bytes) -> None:
                if disk.full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                super().write_at(offset, *pieces)

        return File(path, os.O_RDWR | os.O_CREAT)


@pytest.mark.slow
def test_a_full_disk_refuses_readings_and_everything_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock, disk = SystemClock(), SmallDisk()
        site = make_site(tmp_path, *QUICK)
        channels = open_embedded(tmp_path / "log", clock, files=disk)
        async with running(site, clock, channels) as building:
            await building.post("readers", building.badge())
            disk.full = True
            with pytest.raises(HTTPError) as refused:
                await building.post("readers", building.badge(VAULT))
            assert refused.value.code == 503
            assert refused.value.headers["Retry-After"]
            assert b"No space left" in refused.value.read()
            refused.value.close()
            await until(lambda: _unwell(building.node))
            disk.full = False
            await building.post("readers", building.badge(VAULT))
            await until(lambda: _count(building.alarms(), 2))
            assert sorted(await building.alarms()) == ["lab", "vault"]
            await until(lambda: _well(building.node))

    asyncio.run(scenario())


async def _unwell(node: Node) -> bool:
    return bool(node.not_ready())


async def _well(node: Node) -> bool:
    return not node.not_ready()
