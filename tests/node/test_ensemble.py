"""A node that takes part in ensembles: knowledge on record and in policies, components fed from
channels, context in and out. [EN-14, CX-3, PO-7]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from rapport.channel.event_lookup import cause_tree
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.detection import DETECTED
from rapport.core.errors import UnknownName
from rapport.core.event import make_event
from rapport.core.knowledge import Knowledge
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.role import Role
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.lake.bronze import export_channels
from rapport.node.metrics import metrics_text
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.overlay.swim_protocol import SwimSettings
from rapport.site.site import load_site
from rapport.transport.keys import DatagramKeys, add_key, load_keys, make_key
from rapport.web.app import serving
from support.running import running

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "town"
lateness = "100ms"
[concepts.car.attributes]
position = "point"
[concepts.zone.attributes]
area = "rectangle"
[relationships.inside]
between = ["car.position", "zone.area"]
function = "inside"
[tables.zones]
concept = "zone"
csv = "zones.csv"
key = "id"
columns = { area = ["x1", "y1", "x2", "y2"] }
[sources.cars]
concept = "car"
attribute = "position"
interpretation = "cars"
[interpretations.cars]
time = { field = "created_ms", format = "epoch_ms" }
identity = { field = "component" }
value.x = { field = ["position", "x"], unit = "m" }
value.y = { field = ["position", "y"], unit = "m" }
[policies]
window = "1s"
[peers.lea]
addresses = ["inbox:"]
[actions."tell"]
send_to = "peer:lea"
text = "{A} is in {Z}"
[context]
listen = "127.0.0.1:0"
[ensemble]
node = "hall"
listen = "127.0.0.1:0"
components = ["hall.py"]
gossip = { knowledge_ms = 100 }
membership = { period_ms = 100, ack_ms = 25, gossip_ms = 20 }
[[ensemble.readings]]
role = "Driver"
source = "cars"
[[ensemble.feeds]]
channel = "events"
type = "car.position"
component = "hall"
field = "places"
value = "value"
by_subject = true
[[ensemble.context]]
role = "Driver"
entity = "car/{id}"
scope = "place"
values = { x = "position.x", seats = "seats" }
valid = "20s"
[[ensemble.context]]
component = "hall"
field = "sign"
entity = "sign/front"
scope = "text"
value = "text"
every = "50ms"
within = "50ms"
"""
HALL = """
from rapport.ensemble import Component, process

class Hall(Component):
    places: dict[str, list[float]] = {}
    sign: str | None = "not asked yet"
    known: int = 0

    @process(on_change="places", writes="known")
    def count(self) -> None:
        self.known = len(self.places)

components = [Hall(id="hall")]
"""
POLICY = """concepts
  car A
  zone Z
conditions
  A is inside Z
actions
  tell
"""


class Position(msgspec.Struct):
    x: float
    y: float


class Driver(Role):
    position: Position
    seats: int


class Car(Component, Driver):
    position: Position = Position(0, 0)
    seats: int = 3


QUICK = RuntimeSettings(
    gossip=GossipSettings(knowledge_ms=100, probability=1.0),
    swim=SwimSettings(period_ms=100, ack_ms=25, gossip_ms=20),
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "zones.csv").write_text("id,x1,y1,x2,y2\ncentre,0,0,10,10\n")
    (tmp_path / "inside.dpl").write_text(POLICY)
    (tmp_path / "hall.py").write_text(HALL)
    return tmp_path


@asynccontextmanager
async def driving(
    node: Node, car: Car, keys: DatagramKeys | None = None
) -> AsyncIterator[EnsembleNode]:
    """A node of its own with one car."""
    assert node.ensemble is not None
    there = await EnsembleNode.open(
        f"node of {car.id}",
        [car],
        listen=("127.0.0.1", 0),
        clock=CLOCK,
        chance=Chance(),
        join=[node.ensemble.running.address],
        settings=QUICK,
        keys=keys,
    )
    try:
        yield there
    finally:
        await there.close()


async def until(look: Callable[[], Awaitable[Any]], seconds: float = 20) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await CLOCK.sleep(20)
    return found


async def events(node: Node, channel: str, type: str = "") -> list[Any]:
    kept = await node.channels.channel(channel).read_after(0)
    return [stored.event for stored in kept if type in ("", stored.event.type)]


def test_a_policy_over_knowledge_fires_and_the_explanation_leads_to_what_the_car_said(
    site: Path,
) -> None:
    async def scenario() -> None:
        async with running(site) as node, driving(node, Car(id="c7", position=Position(5, 5))):
            found = (await until(lambda: events(node, "detections", DETECTED)))[0]
            assert found.payload()["bindings"] == {"A": "c7", "Z": "centre"}
            tree = await cause_tree(node.channels, found.id)
            way = []
            while tree is not None:
                way.append(tree.channel)
                tree = next(iter(tree.causes), None)
            assert way == ["detections", "events", "raw.cars", "knowledge"]
            said = [Knowledge.from_event(one) for one in await events(node, "knowledge")]
            assert "c7" in {one.component for one in said} <= {"c7", "hall"}
            versions = [one.version for one in said if one.component == "c7"]
            assert versions == sorted(set(versions))
            lake = site / "lake"
            exported = await export_channels(node.channels, lake, names=["knowledge"])
            assert exported.rows >= len(said)

    asyncio.run(scenario())


def test_events_feed_a_component_and_it_is_told_again_after_a_restart(site: Path) -> None:
    async def hall_has(node: Node, known: int) -> bool:
        assert node.ensemble is not None
        hall: Any = node.ensemble.running.machine.host.components["hall"]
        return bool(hall.known == known)

    async def scenario() -> None:
        async with (
            running(site) as node,
            driving(node, Car(id="c1")),
            driving(node, Car(id="c2")),
        ):
            await until(lambda: hall_has(node, 2))
        async with running(site) as node:
            await until(lambda: hall_has(node, 2))
            assert node.ensemble is not None
            hall: Any = node.ensemble.running.machine.host.components["hall"]
            assert hall.places["car/c1"] == [0.0, 0.0]
        text = (site / "site.toml").read_text()
        feed = "[[ensemble.feeds]]\n"
        other = 'channel = "detections"\ncomponent = "hall"\nfield = "known"\nvalue = "none"\n'
        (site / "site.toml").write_text(text.replace(feed, f"{feed}{other}{feed}", 1))
        async with running(site) as node:  # also when the site's file has another feed before it
            await until(lambda: hall_has(node, 2))

    asyncio.run(scenario())


async def told_twice(node: Node) -> bool:
    return len(await events(node, "context")) >= 2


def test_what_a_car_knows_is_context_and_context_is_what_the_hall_knows(site: Path) -> None:
    async def scenario() -> None:
        async with running(site) as node:
            assert node.context is not None
            assert node.ensemble is not None
            broker, hall = node.context.broker, node.ensemble.running.machine.host.components
            sign: Any = hall["hall"]

            async def is_shown(text: str | None) -> bool:
                return bool(sign.sign == text)

            await until(lambda: is_shown(None))
            now = CLOCK.now_ms()
            front = EntityRef("sign", "front")
            await broker.put(ContextRecord("desk", front, "text", now, now + 900, {"text": "open"}))
            await until(lambda: is_shown("open"))
            await until(lambda: is_shown(None))
            async with driving(node, Car(id="c9", position=Position(4, 2), seats=2)):
                await until(lambda: told_twice(node))
                found = await broker.ask(EntityRef("car", "c9"), "place")
                assert found.record.values == {"x": 4.0, "seats": 2}
                assert found.record.provider == "c9"

    asyncio.run(scenario())


def test_a_field_that_cannot_take_the_value_is_a_fault_and_the_others_go_on(site: Path) -> None:
    text = (site / "hall.py").read_text()
    (site / "hall.py").write_text(text.replace("dict[str, list[float]]", "dict[str, int]"))

    async def scenario() -> None:
        async with running(site) as node, driving(node, Car(id="c1")):
            ensemble = node.ensemble
            assert ensemble is not None

            async def faulty() -> list[str]:
                return [one.code for one in ensemble.status().node.faults]

            assert "ensemble.bad_value" in await until(faulty)
            text = metrics_text(node).decode()
            assert 'rapport_ensemble_faults_total{code="ensemble.bad_value"}' in text
            assert "rapport_ensemble_withheld 0.0" in text
            assert node.not_ready() == []
            await until(lambda: events(node, "events"))

    asyncio.run(scenario())


def test_a_node_is_degraded_while_it_withholds_knowledge(site: Path) -> None:
    async def scenario() -> None:
        async with running(site) as node, serving(node) as url:
            ensemble = node.ensemble
            assert ensemble is not None

            async def conditions() -> list[str]:
                return [one.name for one in node.conditions.current()]

            async def none() -> bool:
                return not node.conditions.current()

            ensemble.assign("hall", {"places": {"c1": [float("nan"), 0.0]}})
            assert await until(conditions) == ["ensemble.withheld.hall"]
            async with httpx2.AsyncClient() as client:
                told = (await client.get(f"{url}/readyz")).json()
            assert told["status"] == "degraded"
            assert "places cannot be published" in told["reasons"][0]
            assert "rapport_ensemble_withheld 1.0" in metrics_text(node).decode()
            ensemble.assign("hall", {"places": {}})
            await until(none)

    asyncio.run(scenario())


def test_its_state_is_shown_by_a_endpoint_and_by_metrics(site: Path) -> None:
    async def scenario() -> None:
        async with running(site) as node, serving(node) as url, driving(node, Car(id="c1")):
            await until(lambda: events(node, "events"))
            async with httpx2.AsyncClient() as client:
                told = (await client.get(f"{url}/ensemble")).json()
            assert told["node"]["components"] == ["hall"]
            assert told["recorded"] >= 1
            text = metrics_text(node).decode()
            assert 'rapport_ensemble_total{what="recorded"}' in text
            assert "rapport_ensemble_replicas 1.0" in text

    asyncio.run(scenario())


def test_a_feed_of_a_component_that_is_not_there_is_refused_at_the_start(site: Path) -> None:
    (site / "hall.py").write_text(HALL.replace('id="hall"', 'id="hill"'))

    async def scenario() -> None:
        node = make_node(load_site(site), NodeSettings(port=0), CLOCK)
        try:
            with pytest.raises(UnknownName) as refused:
                await node.start()
            assert refused.value.nearest == ["hill"] or "hill" in refused.value.hint
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_with_keys_only_who_has_one_is_heard(site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(
        text.replace('node = "hall"', 'node = "hall"\nkeys = "keys.toml"')
    )
    add_key(site / "keys.toml", make_key("town", "network"))

    async def scenario() -> None:
        async with (
            running(site) as node,
            driving(node, Car(id="stranger")),
            driving(node, Car(id="c1"), load_keys(site / "keys.toml")),
        ):
            await until(lambda: events(node, "events"))
            await CLOCK.sleep(300)
            heard = {one.subject for one in await events(node, "knowledge")}
            assert "c1" in heard <= {"c1", "hall"}

    asyncio.run(scenario())


async def both_are_heard(node: Node) -> bool:
    return len(await events(node, "knowledge")) >= 2


def test_of_a_component_at_most_one_version_is_recorded_within_a_time(site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(
        text.replace('node = "hall"', 'node = "hall"\nrecord_every = "1h"')
    )

    async def scenario() -> None:
        async with running(site) as node, driving(node, Car(id="c1")) as there:
            await until(lambda: both_are_heard(node))
            for _ in range(5):
                there.publish_now("c1")
                await CLOCK.sleep(50)
            said = [one.subject for one in await events(node, "knowledge")]
            assert sorted(said) == ["c1", "hall"]

    asyncio.run(scenario())


def test_the_knowledge_of_a_node_that_publishes_is_refused_by_endpoints(site: Path) -> None:
    async def scenario() -> None:
        async with running(site) as node, serving(node) as url:
            event = make_event(source="x", id="1", type="t", time=0)
            body = {"specversion": "1.0", "id": event.id, "source": "x", "type": "t"}
            async with httpx2.AsyncClient() as client:
                answer = await client.post(f"{url}/channels/knowledge/events", json=body)
            assert answer.json()["title"] == "channel.reserved"

    asyncio.run(scenario())
