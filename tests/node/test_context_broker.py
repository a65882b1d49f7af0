"""A node with a context broker: policies and look-ups by what is true now, actions that say it, and
what is left of it in log and lake. [CX-1, CX-3, CX-8, PO-2, PO-10, ME-4]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.event_lookup import cause_tree
from rapport.context.connections import ContextNotFound
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.detection import DETECTED
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.lake.bronze import export_channels
from rapport.lake.places import Lake
from rapport.node.metrics import metrics_text
from rapport.node.node import Node
from rapport.policy.ontology import Ontology
from rapport.tables.tables import Tables
from support.running import play

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "labs"
lateness = "100ms"
[concepts.person.attributes]
position = "point"
[concepts.room.attributes]
area = "rectangle"
status = "text"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = { area = ["x1", "y1", "x2", "y2"] }
[tables.present]
concept = "room"
context = "room status"
ids_from = "rooms"
columns = { status = "status" }
lifetime = "200ms"
timeout = "100ms"
[tables.wearers]
context = "badge wearer"
ids = ["b1", "b2"]
values = ["person"]
lifetime = "200ms"
timeout = "100ms"
[sources.badges]
concept = "person"
attribute = "position"
interpretation = "badges"
[interpretations.badges]
identity = { field = "badge", lookup = { table = "wearers", column = "person" } }
value.x = { field = "x", unit = "m" }
value.y = { field = "y", unit = "m" }
[policies]
window = "1s"
[context]
listen = "127.0.0.1:0"
[actions."lock the room".context]
entity = "room/{R}"
scope = "lock"
values = { by = "{A}", locked = true }
valid = "10 min"
[channels.context]
export = true
"""
POLICY = """concepts
  person A
  room R (status='closed')
conditions
  A is inside R
actions
  lock the room
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "rooms.csv").write_text("id,x1,y1,x2,y2\nr1,0,0,1,1\nr2,1,1,2,2\n")
    (tmp_path / "closed.dpl").write_text(POLICY)
    return tmp_path


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(20):
        while not (found := await look()):
            await CLOCK.sleep(10)
    return found


async def tell(
    node: Node, entity: str, scope: str, valid_ms: int = 60_000, **values: object
) -> ContextRecord:
    assert node.context is not None
    now = CLOCK.now_ms()
    record = ContextRecord(
        "desk", EntityRef.parse(entity), scope, now, now + valid_ms, dict(values)
    )
    await node.context.broker.put(record)
    return record


async def until_status(node: Node, room: str, wanted: str | None) -> None:
    async def look() -> bool:
        return node.site.tables.lookup("present", room, "status") == wanted

    await until(look)

    async def handed_on() -> bool:
        return not node.fresh_tables.waits()

    await until(handed_on)


async def badge(node: Node, id: str, badge: str = "b1", x: float = 0.5) -> None:
    now = CLOCK.now_ms()
    seen = {"badge": badge, "x": x, "y": x, "time": format_time(now)}
    event = make_event(source="badges", id=id, type="seen", time=now, data=seen)
    await node.append("raw.badges", [event])


async def detections(node: Node) -> list[dict[str, Any]]:
    kept = await node.channels.channel("detections").read_after(0, limit=1_000)
    return [one.event.payload() for one in kept if one.event.type == DETECTED]


async def ready(node: Node) -> None:
    """Ann wears b1, and look-ups know it."""
    await tell(node, "badge/b1", "wearer", person="ann")

    async def look() -> bool:
        return node.site.tables.lookup("wearers", "b1", "person") == "ann"

    await until(look)


async def decided(node: Node) -> None:
    """Everything that was received has been judged."""

    async def look() -> bool:
        kept = await node.channels.channel("events").read_after(0)
        received = await node.channels.channel("raw.badges").read_after(0)
        return len(kept) == len(received) and node.policy.behind() == 0

    await until(look)
    await CLOCK.sleep(500)  # the lateness, and the clock's next step


def test_a_policy_fires_while_a_record_is_valid_and_no_longer(site: Path) -> None:
    async def scenario(node: Node) -> None:
        await ready(node)
        await badge(node, "before")
        await decided(node)
        assert await detections(node) == []
        await tell(node, "room/r1", "status", valid_ms=1_500, status="closed")
        await until_status(node, "r1", "closed")
        await badge(node, "while")

        async def fired() -> list[dict[str, Any]]:
            return await detections(node)

        (found,) = await until(fired)
        assert found["bindings"] == {"A": "ann", "R": "r1"}
        await until_status(node, "r1", None)
        await badge(node, "after")
        await decided(node)
        assert len(await detections(node)) == 1

    play(site, scenario)


def test_a_row_goes_at_the_moment_its_record_ends_although_nobody_is_asked(site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace('lifetime = "200ms"', 'lifetime = "1h"'))

    async def scenario(node: Node) -> None:
        record = await tell(node, "room/r1", "status", valid_ms=1_000, status="closed")
        await node.fresh_tables.refreshing.refresh("present")
        assert node.site.tables.lookup("present", "r1", "status") == "closed"
        await until_status(node, "r1", None)
        assert 0 <= CLOCK.now_ms() - record.valid_until < 500

    play(site, scenario)


def test_an_action_says_what_is_true_once_and_it_leads_back_to_the_detection(site: Path) -> None:
    async def acted(node: Node) -> None:
        await ready(node)
        await tell(node, "room/r1", "status", status="closed")
        await until_status(node, "r1", "closed")
        await badge(node, "b-1")
        (locked,) = await until(lambda: locks(node))
        record = ContextRecord.from_event(locked.event)
        assert (record.provider, str(record.entity), record.scope) == ("labs", "room/r1", "lock")
        assert record.values == {"by": "ann", "locked": True}
        assert record.valid_until - record.valid_from == 600_000
        assert node.context is not None
        found = await node.context.broker.ask(EntityRef("room", "r1"), "lock")
        assert found.record.values["locked"] is True
        tree = await cause_tree(node.channels, locked.event.id)
        way = [tree.channel]
        while tree.causes:
            tree = tree.causes[0]
            way.append(tree.channel)
        assert way[:4] == ["context", "context.wishes", "log", "detections"]
        assert way[-1] == "raw.badges"

    async def again(node: Node) -> None:
        await node.channels.subscribe("context.wishes", "somebody")
        await CLOCK.sleep(300)
        assert len(await locks(node)) == 1
        assert node.context is not None
        found = await node.context.broker.ask(EntityRef("room", "r1"), "lock")
        assert found.record.values["by"] == "ann"

    play(site, acted)
    play(site, again)


async def locks(node: Node) -> list[StoredEvent]:
    kept = await node.channels.channel("context").read_after(0, limit=1_000)
    return [one for one in kept if ContextRecord.from_event(one.event).scope == "lock"]


def test_a_wish_that_nobody_can_read_is_a_dead_letter_and_stops_no_other(site: Path) -> None:
    def wish(id: str, **data: object) -> Event:
        now = CLOCK.now_ms()
        kind = "rapport.context.wish"
        return make_event(source="action", id=id, type=kind, time=now, data=data)

    async def scenario(node: Node) -> None:
        good = {"entity": "room/r2", "scope": "lock", "values": {"a": 1}, "valid_ms": 60_000}
        await node.channels.channel("context.wishes").append(
            [
                wish("odd", entity="nobody"),
                wish("late", **{**good, "valid_ms": 0}),
                wish("good", **good),
            ]
        )
        (locked,) = await until(lambda: locks(node))
        assert ContextRecord.from_event(locked.event).values == {"a": 1}
        buried = await node.channels.channel("dead_letters").read_after(0)
        assert len(buried) == 1

    play(site, scenario)


def test_what_the_broker_knows_survives_a_restart_and_reaches_the_lake(
    site: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "elsewhere"

    async def first(node: Node) -> None:
        await tell(node, "room/r1", "status", status="closed")

    async def second(node: Node) -> None:
        await until_status(node, "r1", "closed")
        await export_channels(node.channels, lake, names=["context", "context.found"])

    play(site, first)
    play(site, second)
    place = Lake.at(lake)
    rows = [
        row
        for name in place.names("bronze")
        for row in place.open("bronze", name).read().to_pylist()
    ]
    kinds = {(row["type"], row["subject"]) for row in rows}
    assert ("rapport.context.record", "room/r1") in kinds
    assert ("rapport.context.found", "room/r1") in kinds


def test_policies_see_what_is_valid_all_through_a_reload(site: Path) -> None:
    """A site that is read anew asks no broker: what is known is not forgotten for a moment."""

    async def scenario(node: Node) -> None:
        await tell(node, "room/r1", "status", status="closed")
        await until_status(node, "r1", "closed")
        seen: list[str | None] = []
        renew = node.policy.renew

        def looked_at(tables: Tables, ontology: Ontology) -> None:
            seen.append(tables.lookup("present", "r1", "status"))
            renew(tables, ontology)

        node.policy.renew = looked_at  # type: ignore[method-assign]
        (site / "rooms.csv").write_text("id,x1,y1,x2,y2\nr1,0,0,1,2\nr2,1,1,2,2\n")
        await node.reload()
        await until_status(node, "r1", "closed")
        assert set(seen) == {"closed"}
        instances = node.site.tables.instances("room")
        assert instances.columns["area"][instances.row("r1")].tolist() == [0, 0, 1, 2]

    play(site, scenario)


def test_a_reload_of_the_site_loses_nothing_that_is_valid(site: Path) -> None:
    async def scenario(node: Node) -> None:
        await tell(node, "room/r1", "status", status="closed")
        await until_status(node, "r1", "closed")
        (site / "rooms.csv").write_text("id,x1,y1,x2,y2\nr1,0,0,1,1\nr3,2,2,3,3\n")
        await node.meanings.reload()
        await until_status(node, "r1", "closed")
        await tell(node, "room/r3", "status", status="open")
        await until_status(node, "r3", "open")

    play(site, scenario)


def test_the_broker_has_a_status_and_metrics(site: Path) -> None:
    async def scenario(node: Node) -> None:
        await tell(node, "room/r1", "status", status="closed")
        await until_status(node, "r1", "closed")
        assert node.context is not None
        status = node.context.status()
        assert (status.joined, status.known, status.broker.records) == (True, 1, 1)
        told = metrics_text(node).decode()
        assert 'rapport_context_records{kind="own"} 1.0' in told
        assert "rapport_context_joined 1.0" in told
        with pytest.raises(ContextNotFound):
            await node.context.broker.ask(EntityRef("room", "r9"), "status", within_ms=50)

    play(site, scenario)
