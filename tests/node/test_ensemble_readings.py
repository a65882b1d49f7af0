"""Readings of a device without a link: over a carrier that loses and doubles, to a node that is
stopped in between; each is published once, and policies look again when it was too late. [EN-14]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event
from rapport.core.knowledge import Knowledge
from rapport.core.release import LATE, RELEASES
from rapport.core.times import format_time
from rapport.ensemble.device_readings import Backlog, Collector, Confirming, Reader, Receipt
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, Now, SystemClock
from rapport.node.ensemble_readings import CarriedReadings, fitting
from rapport.node.node import Node
from rapport.overlay.swim_protocol import SwimSettings
from rapport.site.ensemble import ComponentFilter, SourceTie
from rapport.transport.base import Address, Endpoint
from rapport.transport.udp import MulticastGroup
from support.faults.lossy import LossyEndpoint
from support.running import running
from support.servers.ports import free_port

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "house"
lateness = "100ms"
[concepts.person.attributes]
position = "point"
[concepts.room.attributes]
area = "rectangle"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = {{ area = ["x1", "y1", "x2", "y2"] }}
[sources.badges]
concept = "person"
attribute = "position"
key = "who"
value = ["x", "y"]
[policies]
window = "200ms"
[peers.lea]
addresses = ["inbox:"]
[actions.tell]
send_to = "peer:lea"
text = "{{A}} is in {{R}}"
[ensemble]
node = "house"
listen = "127.0.0.1:{port}"
gossip = {{ knowledge_ms = 100, probability = 1.0 }}
membership = {{ period_ms = 200, ack_ms = 50, gossip_ms = 40 }}
[[ensemble.carried]]
component = "reader-*"
source = "badges"
"""
POLICY = "concepts\n  person A\n  room R\nconditions\n  A is inside R\nactions\n  tell\n"
QUICK = RuntimeSettings(
    gossip=GossipSettings(knowledge_ms=100, probability=1.0, fan_out=3),
    swim=SwimSettings(period_ms=200, ack_ms=50, gossip_ms=40),
)


@pytest.fixture
def port() -> int:
    return free_port(is_udp=True)


@pytest.fixture
def site(tmp_path: Path, port: int) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "site.toml").write_text(SITE.format(port=port))
    (folder / "rooms.csv").write_text("id,x1,y1,x2,y2\nlab,0,0,10,10\n")
    (folder / "inside.dpl").write_text(POLICY)
    return folder


class Radio:
    """A group that only the device and its carrier are in, and how they lose what they send."""

    def __init__(self, node: Address, loss: float) -> None:
        self._node, self._loss = node, loss
        self._group = MulticastGroup("239.77.4.11", free_port(is_udp=True))

    async def device(self, reader: Reader) -> EnsembleNode:
        return await self._open("device", [reader], join=[])

    async def carrier(self) -> EnsembleNode:
        return await self._open("carrier", [], join=[self._node])

    async def _open(self, name: str, components: list[Any], **options: Any) -> EnsembleNode:
        return await EnsembleNode.open(
            name,
            components,
            [Confirming],
            listen=("127.0.0.1", 0),
            clock=CLOCK,
            chance=Chance(),
            group=self._group,
            settings=QUICK,
            link=self._losing,
            **options,
        )

    def _losing(self, endpoint: Endpoint) -> Endpoint:
        return LossyEndpoint(endpoint, Chance(7), loss=self._loss, duplication=0.3, jitter_ms=30)


async def until(look: Callable[[], Awaitable[Any]], seconds: float = 40) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await CLOCK.sleep(20)
    return found


async def events(node: Node, channel: str) -> list[Event]:
    return [stored.event for stored in await node.channels.channel(channel).read_after(0)]


def seen(who: str, time_ms: int) -> dict[str, Any]:
    return {"who": who, "x": 5, "y": 5, "time": format_time(time_ms)}


async def at_least(node: Node, count: int) -> bool:
    return len(await events(node, "raw.badges")) >= count


async def has_forgotten(reader: Reader) -> bool:
    return not len(reader.backlog)


def test_each_reading_is_published_once_over_loss_doubling_and_a_restart_of_the_node(
    site: Path, port: int, tmp_path: Path
) -> None:
    async def scenario() -> None:
        radio = Radio(("127.0.0.1", port), loss=0.4)
        reader = Reader(id="reader-1", backlog=Backlog(tmp_path / "backlog"))
        device, carrier = await radio.device(reader), await radio.carrier()
        try:
            async with running(site) as node:
                for number in range(30):
                    reader.note(seen(f"p{number}", CLOCK.now_ms()), CLOCK.now_ms())
                await until(lambda: at_least(node, 10))
            await carrier.close()
            for number in range(30, 60):
                reader.note(seen(f"p{number}", CLOCK.now_ms()), CLOCK.now_ms())
            async with running(site) as node:
                carrier = await radio.carrier()
                await until(lambda: at_least(node, 60))
                await until(lambda: has_forgotten(reader))
                told = [one.payload()["who"] for one in await events(node, "raw.badges")]
                assert told == [f"p{number}" for number in range(60)]
                counts = node.ensemble.status().carried if node.ensemble is not None else None
                assert counts is not None
                assert (counts.missing, counts.refused, counts.not_read) == (0, 0, 0)
        finally:
            reader.backlog.close()
            await device.close()
            await carrier.close()

    asyncio.run(scenario())


def test_a_device_that_did_not_hear_is_confirmed_again_among_any_number_of_others() -> None:
    async def scenario() -> None:
        channels = open_memory(CLOCK)
        tie = SourceTie(of=ComponentFilter(component="reader-*"), source="badges")
        told: list[dict[str, Receipt]] = []
        carried = CarriedReadings(
            [tie],
            channels,
            lambda channel, events: channels.channel(channel).append(events),
            collector="collector of house",
            confirm=told.append,
        )
        for number in range(600):
            await carried.take(version_of(f"reader-{number}"))
        assert "reader-0" not in told[-1]
        before = len(told)
        for _ in range(3):
            await carried.take(version_of("reader-0"))
        assert told[-1]["reader-0"] == Receipt("one", 1)
        assert len(told) == before + 1
        assert carried.counts.readings == 600

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "most_bytes"),
    [
        ("reader-{:03}" + 100 * "x", 65_536),
        ("reader-{:03}" + 80 * "\u9580", 65_536),
        ("r{}", 2_000),
    ],
    ids=["long names", "names of many bytes", "little may be published"],
)
def test_receipts_that_do_not_fit_together_are_published_as_far_as_they_do(
    name: str, most_bytes: int
) -> None:
    receipts = {name.format(number): Receipt(8 * "ab", number) for number in range(500)}
    told = fitting(receipts, 500, most_bytes - 64)
    host = Host("house", [], Chance(1), HostSettings(most_bytes=most_bytes))
    collector = Collector(id="collector")
    host.add(collector, Now(1_000, 0.0))
    host.assign("collector", {"receipts": told}, Now(1_000, 0.0))
    snapshot = host.snapshot("collector")
    assert not list(host.faults)
    assert snapshot is not None
    assert list(snapshot.values["receipts"]) == list(receipts)[-len(told) :]
    assert len(snapshot.body) > most_bytes * 0.8


def test_one_receipt_that_cannot_be_published_keeps_back_no_other() -> None:
    receipts = {"a": Receipt("one", 1), "b": Receipt(70_000 * "x", 2), "c": Receipt("one", 3)}
    assert list(fitting(receipts, 500, 65_000)) == ["a", "c"]


def version_of(device: str) -> Knowledge:
    values = {"life": "one", "readings": [[1, 1_000, "{}"]]}
    return Knowledge(device, "device", ("Carried",), 1, 1_000, values)


def test_a_reading_that_is_too_late_for_the_policy_is_found_by_its_own_time_once(
    site: Path, port: int
) -> None:
    async def scenario() -> None:
        radio = Radio(("127.0.0.1", port), loss=0.0)
        reader = Reader(id="reader-1")
        device = await radio.device(reader)
        carrier = None
        try:
            async with running(site) as node:
                then_ms = CLOCK.now_ms()
                reader.note(seen("ann", then_ms), then_ms)
                await CLOCK.sleep(500)
                await others_are_heard(node)
                carrier = await radio.carrier()
                found = (await until(lambda: alarms(node, "ann")))[0]
                assert found.headers[LATE] == "true"
                assert Detection.from_event(found).time == then_ms
                await CLOCK.sleep(600)
                assert len(await alarms(node, "ann")) == 1
                assert len(await alarms(node, "bob")) == 1
                assert await until(lambda: events(node, RELEASES))
        finally:
            await device.close()
            if carrier is not None:
                await carrier.close()

    asyncio.run(scenario())


async def others_are_heard(node: Node) -> None:
    """Time moves on past what the device has."""
    now_ms = CLOCK.now_ms()
    event = Event("badges", "x", "seen", "", now_ms, msgspec.json.encode(seen("bob", now_ms)))
    await node.append("raw.badges", [event])
    await until(lambda: alarms(node, "bob"))


async def alarms(node: Node, who: str) -> list[Event]:
    return [
        one
        for one in await events(node, "detections")
        if one.type == DETECTED and one.payload()["bindings"]["A"] == who
    ]
