"""A node that signs: every event it made can be checked, here and at a neighbour. [CH-18]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.channel.access.signatures import find_node_key, proofs_of
from rapport.channel.federation import LinkReceiver
from rapport.channel.validation import is_reserved
from rapport.core.detection import DETECTED
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.kernel.signing_keys import KeyRing, verify_event
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import load_site

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "signing"
lateness = "100ms"
[access]
sign = true
[channels.told]
signed = "required"
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
columns = { area = ["x1", "y1", "x2", "y2"] }
[sources.badges]
concept = "person"
attribute = "position"
key = "who"
value = ["x", "y"]
[peers.lea]
addresses = ["inbox:"]
[actions."write it down"]
append = "told"
type = "alarm.raised"
data = { room = "{R}" }
"""
POLICY = """concepts
  person A
  room R
conditions
  A is inside R
actions
  tell the lead
    to peer lea
    say "{A} is in {R}"
  write it down
"""
NEIGHBOUR = """
[site]
name = "neighbour"
[concepts.room.attributes]
area = "rectangle"
[access.keys]
other = "{key}"
[channels."other.*"]
signed = "required"
"""


def make_site(directory: Path) -> Path:
    directory.mkdir()
    (directory / "site.toml").write_text(SITE)
    (directory / "rooms.csv").write_text("id,x1,y1,x2,y2\nlab,0,0,10,10\n")
    (directory / "watch.dpl").write_text(POLICY)
    return directory


async def until(node: Node, channel: str, found: Callable[[Event], bool] = bool) -> Event:
    position, source = 0, node.channels.channel(channel)
    while await source.wait_after(position, timeout_ms=20_000):
        for stored in await source.read_after(position):
            position = stored.position
            if found(stored.event):
                return stored.event
    raise AssertionError(f"nothing of the kind in {channel}")


async def lived_through(node: Node) -> dict[str, list[Event]]:
    """What is in every channel once somebody was seen and something could not be read."""
    seen = {"who": "ana", "x": 1.0, "y": 1.0, "t": format_time(CLOCK.now_ms())}
    strange = {"who": "ana", "x": "here"}
    readings = [
        make_event(source="badges", id=f"r{number}", type="raw", time=CLOCK.now_ms(), data=data)
        for number, data in enumerate((seen, strange))
    ]
    await node.append("raw.badges", readings)
    await until(node, "detections", lambda event: event.type == DETECTED)
    for channel in ("quarantine", "told", "output.inbox", "log"):
        await until(node, channel)
    return {
        name: [stored.event for stored in await node.channels.channel(name).read_after(0)]
        for name in node.channels.names()
    }


def test_everything_that_a_node_makes_is_signed_and_stands_the_check_of_a_neighbour(
    tmp_path: Path,
) -> None:
    site = make_site(tmp_path / "site")

    async def scenario() -> None:
        node = make_node(load_site(site), NodeSettings(port=0), CLOCK)
        try:
            await node.start()
            found = await lived_through(node)
            key = find_node_key(site / ".rapport")
            assert key is not None
            keys = KeyRing([key])
            for name, events in found.items():
                states = {verify_event(event, keys).state for event in events}
                by_node = is_reserved(name) or name == "told"
                assert states == ({"ok"} if by_node else {"unsigned"}), name
            action = found["told"][0]
            proofs = await proofs_of(node.channels, action.id, keys)
            assert {one.channel for one in proofs} >= {"told", "detections", "events", "raw.badges"}
        finally:
            await node.stop()
        await check_at_neighbour(
            neighbour_site(tmp_path / "neighbour", key.as_text()), found["detections"]
        )

    asyncio.run(scenario())


def neighbour_site(directory: Path, key: str) -> Path:
    directory.mkdir()
    (directory / "site.toml").write_text(NEIGHBOUR.format(key=key))
    return directory


async def check_at_neighbour(site: Path, events: list[Event]) -> None:
    """What arrives over a link is taken as it was signed, and buried when it was not."""
    node = make_node(load_site(site), NodeSettings(port=0), CLOCK)
    buried: list[str] = []

    async def bury(_channel: str, _sender: str, event: Event, error: InvalidInput) -> None:
        buried.append(error.code)

    try:
        receiver = LinkReceiver("bbbbbbbb", node.channels, node.append, bury)
        forged = [make_event(source="x", id="f", type=DETECTED, time=1, data={})]
        taken = await receiver.take_in("other.detections", "aaaaaaaa", [*events, *forged])
        assert (taken.stored, taken.refused) == (len(events), 1)
        assert buried == ["signature.missing"]
    finally:
        await node.stop()
