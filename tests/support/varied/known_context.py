"""A site whose policies read context, and two lives of its node in which that changes: for all who
look back at it. [PO-2, PO-11, CX-8]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.event import make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.lake.bronze import export_channels
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import load_site

CLOCK = SystemClock()
ROOMS = ("r1", "r2")
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
[sources.badges]
concept = "person"
attribute = "position"
key = "who"
value = ["x", "y"]
[policies]
window = "500ms"
[context]
listen = "127.0.0.1:0"
[actions."look"]
append = "seen"
type = "alarm.raised"
"""
CLOSED = """concepts
  person A
  room R (status='closed')
conditions
  A is inside R
actions
  look
"""
STAYS = CLOSED.replace("A is inside R", "A is inside R for 300 ms")


def make_place(place: Path) -> None:
    """Two rooms; a broker in the node, which nobody has told anything yet."""
    (place / "site.toml").write_text(SITE)
    (place / "rooms.csv").write_text("id,x1,y1,x2,y2\nr1,0,0,10,10\nr2,20,0,30,10\n")
    (place / "closed.dpl").write_text(CLOSED)
    (place / "stays.dpl").write_text(STAYS)


def live(place: Path) -> None:
    """Two lives of the site's node, the second of which fills the lake."""
    make_place(place)
    living(place, _first_life)
    living(place, _second_life)


def living(place: Path, story: Callable[[Node], Awaitable[None]]) -> None:
    """What happens to a node that runs by the machine's clock."""

    async def work() -> None:
        node = make_node(load_site(place), NodeSettings(port=0), CLOCK)
        try:
            await node.start()
            async with asyncio.timeout(120):
                await story(node)
        finally:
            await node.stop()

    asyncio.run(work())


async def _until(look: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(30):
        while not await look():
            await CLOCK.sleep(10)


async def _tell(node: Node, room: str, status: str, valid_ms: int) -> None:
    """Somebody says it, and policies know it."""
    assert node.context is not None
    now = CLOCK.now_ms()
    record = ContextRecord(
        "desk", EntityRef("room", room), "status", now, now + valid_ms, {"status": status}
    )
    await node.context.broker.put(record)
    await _known(node, room, status)


async def _known(node: Node, room: str, status: str | None) -> None:
    async def look() -> bool:
        is_so = node.site.tables.lookup("present", room, "status") == status
        return is_so and not node.fresh_tables.waits()

    await _until(look)


async def badge(node: Node, id: str, who: str, room: str) -> None:
    """Somebody is seen in a room."""
    now = CLOCK.now_ms()
    where = {"who": who, "x": 5.0 + 20 * ROOMS.index(room), "y": 5.0, "time": format_time(now)}
    event = make_event(source="badges", id=id, type="seen", time=now, data=where)
    await node.append("raw.badges", [event])
    await CLOCK.sleep(150)


async def decided(node: Node) -> None:
    """Everything that was received has been judged."""

    async def look() -> bool:
        kept = await node.channels.channel("events").read_after(0)
        received = await node.channels.channel("raw.badges").read_after(0)
        return len(kept) == len(received) and node.policy.behind() == 0

    await _until(look)
    await CLOCK.sleep(1_500)  # the lateness, the window, and the clock's next step


async def _first_life(node: Node) -> None:
    await badge(node, "e1", "ann", "r1")
    await _tell(node, "r1", "closed", 60_000)
    for number in range(2, 6):
        await badge(node, f"e{number}", "ann", "r1")
        await badge(node, f"f{number}", "bob", "r2")
    await _tell(node, "r2", "closed", 1_500)
    await badge(node, "e6", "bob", "r2")
    await _known(node, "r2", None)  # nobody says it any more
    await badge(node, "e7", "bob", "r2")
    await decided(node)


async def _second_life(node: Node) -> None:
    await _tell(node, "r1", "open", 60_000)
    await badge(node, "e8", "ann", "r1")
    await _tell(node, "r1", "closed", 60_000)
    await badge(node, "e9", "ann", "r1")
    await decided(node)
    await export_channels(node.channels, node.site.data_directory / "lake")
