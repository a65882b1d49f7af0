"""A site whose table changes while its node reads: one life for all who look back at it. [PO-2,
PO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.policy.table_history import versions_on_record
from rapport.site.site import load_site
from rapport.tables.row_history import RowsVersion

NOW = 1_780_000_000_000
SITE = """
[site]
name = "labs"
lateness = "1s"
[concepts.person.attributes]
status = "text"
position = "point"
[concepts.room.attributes]
area = "rectangle"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[tables.people]
concept = "person"
csv = "people.csv"
key = "id"
columns = { status = "status" }
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = { area = ["x1", "y1", "x2", "y2"] }
[sources.badges]
concept = "person"
attribute = "position"
id = "id"
key = "who"
value = ["x", "y"]
[policies]
window = "2s"
[actions."look"]
append = "seen"
type = "alarm.raised"
"""
INSIDE = """concepts
  person A (status='guest')
  room R
conditions
  A is inside R
actions
  look
"""
ALONE = """concepts
  person A (status='guest')
  person B (status='employee')
  room R
conditions
  A is inside R
  NOT B is inside R
actions
  look
"""
LASTING = """concepts
  person A (status='guest')
  room R
conditions
  A is inside R for 3 s
actions
  look
"""
WHO = ("ann", "bob", "eve")


def make_place(place: Path) -> Path:
    """The site: ann and eve are guests, bob is an employee, and all of the lab is one room."""
    (place / "site.toml").write_text(SITE)
    for name, text in (("inside", INSIDE), ("alone", ALONE), ("lasting", LASTING)):
        (place / f"{name}.dpl").write_text(text)
    (place / "rooms.csv").write_text("id,x1,y1,x2,y2\nlab,0,0,10,10\n")
    people(place, "guest", "employee", "guest")
    return place


def people(place: Path, *statuses: str) -> None:
    """What the table says of ann, bob and eve; the salary is nobody's business."""
    rows = [f"{who},{status},1000\n" for who, status in zip(WHO, statuses, strict=True)]
    (place / "people.csv").write_text("id,status,salary\n" + "".join(rows))


def seen(id: str, who: str, time: int, *, x: float = 5) -> Event:
    """Somebody was at a place, inside the lab unless `x` says otherwise."""
    return make_event(
        source="badges",
        id=id,
        type="person.position",
        subject=f"person/{who}",
        time=time,
        data={"key": who, "value": [x, 5.0]},
    )


class Life:
    """A node that is moved by hand: it is begun, but nothing runs by itself."""

    def __init__(self, node: Node, clock: ManualClock) -> None:
        self.node, self.clock = node, clock

    async def send(self, *events: Event) -> None:
        """Readings arrive; policies take all there are."""
        await self.node.channels.channel("events").append(events)
        while await self.node.policy.step(timeout_ms=0):
            pass

    async def refresh(self, table: str = "people") -> None:
        """The table is read again, and policies get what it says."""
        await self.node.fresh_tables.refreshing.refresh(table)
        await self.node.fresh_tables.settle()

    async def pass_by(self, duration_ms: int) -> None:
        """Nothing comes for a while."""
        self.clock.set_ms(self.clock.now_ms() + duration_ms)
        await self.node.policy.step(timeout_ms=0)

    async def told(self) -> list[Detection]:
        """What was detected so far."""
        kept = await self.node.channels.channel("detections").read_after(0, limit=10_000)
        return [Detection.from_event(one.event) for one in kept if one.event.type == DETECTED]

    async def versions(self) -> list[RowsVersion]:
        """What is on record of the tables."""
        return await versions_on_record(self.node.channels)


def living(
    place: Path, story: Callable[[Life], Awaitable[None]], clock: ManualClock | None = None
) -> None:
    """What happens to a node; it ends as if it had been killed: nothing is committed at the end."""
    clock = clock or ManualClock(NOW)

    async def run() -> None:
        node = make_node(load_site(place), NodeSettings(port=0), clock)
        try:
            await node.meanings.begin()
            await node.fresh_tables.begin()
            await node.policies.begin()
            await node.fresh_tables.settle()
            await story(Life(node, clock))
        finally:
            await node.stop()

    asyncio.run(run())
