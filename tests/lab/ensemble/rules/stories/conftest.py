"""Small stories of a few nodes, told event by event, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rapport.ensemble.trace import IP, RADIO, Kind, NodeFacts, System, Trace, TraceEvent

EPOCH_MS = 1_000_000
HOP_MS = 10
Node = str


class Story:
    """A trace in the making; every message takes exactly 10 ms."""

    def __init__(self, nodes: dict[str, NodeFacts], *, end_ms: float) -> None:
        self.system = System(
            nodes=nodes, shortest_ms=HOP_MS, longest_ms=HOP_MS, end_ms=end_ms, losses=True
        )
        self.events: list[TraceEvent] = []
        for node in nodes:
            self.at(0, Kind.STARTED, node)

    def at(self, time_ms: float, kind: Kind, node: str, component: str = "", **more: Any) -> None:
        """Tells one event; `version=100` means: created at 100 ms."""
        version = more.pop("version", 0)
        if version:
            version += EPOCH_MS
            if kind in _WITH_CREATION:
                more.setdefault("value", version)
        event = TraceEvent(
            time_ms,
            int(EPOCH_MS + time_ms),
            kind,
            node,
            component=component,
            version=version,
            **more,
        )
        self.events.append(event)

    def link(self, *pairs: str, medium: str = RADIO) -> None:
        """`ab` means that a and b hear each other from the beginning."""
        for one, other in pairs:
            self.at(0, Kind.LINKED, one, other=other, medium=medium)
            self.at(0, Kind.LINKED, other, other=one, medium=medium)

    def radio(self, time_ms: float, kind: Kind, node: str, heard_by: str, **more: Any) -> None:
        """A node sends by radio."""
        self.at(time_ms, kind, node, medium=RADIO, **more)
        for receiver in heard_by:
            self.at(time_ms + HOP_MS, RECEIVED[kind], receiver, other=node, medium=RADIO, **more)

    def ip(self, time_ms: float, kind: Kind, node: str, to: str, **more: Any) -> None:
        """A node sends to each of some others."""
        for receiver in to:
            self.at(time_ms, kind, node, other=receiver, medium=IP, **more)
            self.at(time_ms + HOP_MS, RECEIVED[kind], receiver, other=node, medium=IP, **more)

    def header(self, time_ms: float, node: str, told_ms: int, **more: Any) -> None:
        """A header of the component A is in a node's buffer."""
        self.at(time_ms, Kind.HEADER_ADDED, node, "A", value=EPOCH_MS + told_ms, **more)

    def trace(self) -> Trace:
        """In order of time; what happened at one time at one node stays as it was told."""
        return Trace(self.system, sorted(self.events, key=lambda event: event.time_ms))

    def change(self, time_ms: float, kind: Kind, node: str, /, **fields: Any) -> None:
        """Spoils the one event that is meant."""
        self._found(time_ms, kind, node)
        if "time_ms" in fields:
            fields.setdefault("wall_ms", EPOCH_MS + fields["time_ms"])
        self.events = [
            msgspec.structs.replace(event, **fields)
            if (event.time_ms, event.kind, event.node) == (time_ms, kind, node)
            else event
            for event in self.events
        ]

    def drop(self, time_ms: float, kind: Kind, node: str) -> None:
        """Leaves out the event that is meant."""
        self._found(time_ms, kind, node)
        self.events = [
            event
            for event in self.events
            if (event.time_ms, event.kind, event.node) != (time_ms, kind, node)
        ]

    def told(self, node: str, **fields: Any) -> None:
        """The node had other settings."""
        facts = msgspec.structs.replace(self.system.nodes[node], **fields)
        nodes = {**self.system.nodes, node: facts}
        self.system = msgspec.structs.replace(self.system, nodes=nodes)

    def _found(self, time_ms: float, kind: Kind, node: str) -> None:
        keys = [(event.time_ms, event.kind, event.node) for event in self.events]
        assert (time_ms, kind, node) in keys, "the story has no such event"


RECEIVED = {
    Kind.KNOWLEDGE_SENT: Kind.KNOWLEDGE_RECEIVED,
    Kind.HEADERS_SENT: Kind.HEADERS_RECEIVED,
    Kind.PULL_SENT: Kind.PULL_RECEIVED,
    Kind.PART_SENT: Kind.PART_RECEIVED,
    Kind.PART_PULL_SENT: Kind.PART_PULL_RECEIVED,
}
_WITH_CREATION = {
    Kind.PUBLISHED,
    Kind.REPLACED,
    Kind.KNOWLEDGE_SENT,
    Kind.KNOWLEDGE_RECEIVED,
}


def _radio_story() -> Story:
    """`a` publishes, `b` passes it on, `c` keeps it: a line of three nodes on the radio."""
    facts = NodeFacts(knowledge_ms=1_000, knowledge_offset_ms=100, boundary=True)
    story = Story({"a": facts, "b": facts, "c": facts}, end_ms=1_000)
    story.link("ab", "bc")
    story.at(0, Kind.DEPLOYED, "a", "A")
    story.at(100, Kind.PUBLISHED, "a", "A", version=100, detail="period")
    story.radio(100, Kind.KNOWLEDGE_SENT, "a", "b", component="A", version=100)
    story.at(110, Kind.REPLACED, "b", "A", version=100)
    story.at(110, Kind.DECIDED, "b", "A", version=100, detail="pass")
    story.at(110, Kind.BOUNDED, "b", "A", version=100, detail="inside")
    story.at(110, Kind.PASSED_ON, "b", "A", version=100, detail="strategy")
    story.radio(110, Kind.KNOWLEDGE_SENT, "b", "ac", component="A", version=100)
    story.at(120, Kind.DROPPED, "a", "A", version=100, detail="own")
    story.at(120, Kind.REPLACED, "c", "A", version=100)
    story.at(120, Kind.DECIDED, "c", "A", version=100, detail="keep")
    story.at(200, Kind.EVALUATED, "a", "A", other="A2", detail="Near")
    story.at(200, Kind.EVALUATED, "c", "A", version=100, other="C", detail="Near")
    story.at(200, Kind.EXCHANGED, "c", "A", version=100, other="C", detail="Near")
    return story


def _parts_story() -> Story:
    """`a` publishes in two parts, `b` asks for the second again."""
    facts = NodeFacts(knowledge_ms=1_000, knowledge_offset_ms=100)
    story = Story({"a": facts, "b": facts}, end_ms=1_000)
    story.link("ab")
    story.at(0, Kind.DEPLOYED, "a", "A")
    story.at(100, Kind.PUBLISHED, "a", "A", version=100, detail="period")
    part = {"component": "A", "version": 100}
    story.radio(100, Kind.PART_SENT, "a", "b", entries=(("0", 2),), **part)
    story.radio(101, Kind.PART_SENT, "a", "", entries=(("1", 2),), **part)
    story.at(111, Kind.LOST, "b", "A", version=100, other="a", medium=RADIO, detail="collision")
    story.radio(150, Kind.PART_PULL_SENT, "b", "a", entries=(("1", 0),), **part)
    story.radio(160, Kind.PART_SENT, "a", "b", entries=(("1", 2),), **part)
    story.at(170, Kind.REPLACED, "b", "A", version=100)
    return story


def _ip_story() -> Story:
    """`a` knows three nodes and publishes to two of them; one passes it on to the third."""
    facts = NodeFacts(radio=False, ip=True, knowledge_ms=1_000, knowledge_offset_ms=100, fan_out=2)
    story = Story(dict.fromkeys("abcd", facts), end_ms=1_000)
    story.link("ab", "ac", "ad", "bd", medium=IP)
    for other in "bcd":
        story.at(0, Kind.KNOWN, "a", other=other)
    story.at(0, Kind.KNOWN, "b", other="a")
    story.at(0, Kind.KNOWN, "b", other="d")
    story.at(0, Kind.DEPLOYED, "a", "A")
    story.at(100, Kind.PUBLISHED, "a", "A", version=100, detail="period")
    story.ip(100, Kind.KNOWLEDGE_SENT, "a", "bc", component="A", version=100)
    for receiver, decision in (("b", "pass"), ("c", "keep")):
        story.at(110, Kind.REPLACED, receiver, "A", version=100)
        story.at(110, Kind.DECIDED, receiver, "A", version=100, detail=decision)
    story.at(110, Kind.PASSED_ON, "b", "A", version=100, detail="strategy")
    story.ip(110, Kind.KNOWLEDGE_SENT, "b", "d", component="A", version=100)
    story.at(120, Kind.REPLACED, "d", "A", version=100)
    return story


def _group_story() -> Story:
    """`g` groups; `a` is in the groups north and east, `b` in north, `c` in east."""
    client = NodeFacts(
        radio=False, ip=True, knowledge_ms=1_000, knowledge_offset_ms=100, groups=True
    )
    grouper = msgspec.structs.replace(client, knowledge_ms=0, grouper=True)
    story = Story({"a": client, "b": client, "c": client, "g": grouper}, end_ms=1_000)
    story.link("ag", "bg", "cg", "ab", "ac", medium=IP)
    story.at(0, Kind.DEPLOYED, "a", "A")
    for group, members in (("north", "ab"), ("east", "ac")):
        entries = tuple((member, 0) for member in members)
        for member in members:
            table = {"version": 50, "detail": group, "entries": entries}
            page = f"grouper/g/{group}/0"
            story.at(50, Kind.TABLE_PUBLISHED, "g", page, other=member, medium=IP, **table)
            story.at(60, Kind.TABLE_APPLIED, member, page, other="g", **table)
    story.at(100, Kind.PUBLISHED, "a", "A", version=100, detail="period")
    story.ip(100, Kind.KNOWLEDGE_SENT, "a", "gbc", component="A", version=100)
    for receiver in "gbc":
        story.at(110, Kind.REPLACED, receiver, "A", version=100)
    return story


def _pull_story() -> Story:
    """A line of three: `b` keeps what `a` says but tells its header, both pull, and the next
    version is passed on. Then `a` stops; both pull in vain until the header expires.
    """
    facts = NodeFacts(
        knowledge_ms=1_000,
        header_ms=1_000,
        pull_ms=1_000,
        knowledge_offset_ms=100,
        header_offset_ms=200,
        pull_offset_ms=300,
        local_ms=1_150,
        global_ms=2_500,
        times="received",
    )
    story = Story({"a": facts, "b": facts, "c": facts}, end_ms=5_500)
    story.link("ab", "bc")
    story.at(0, Kind.DEPLOYED, "a", "A")
    _told_and_kept(story)
    _pulled(story)
    _passed_on(story)
    _given_up(story)
    return story


def _told_and_kept(story: Story) -> None:
    story.at(100, Kind.PUBLISHED, "a", "A", version=100, detail="period")
    story.radio(100, Kind.KNOWLEDGE_SENT, "a", "b", component="A", version=100)
    story.at(110, Kind.REPLACED, "b", "A", version=100)
    story.header(110, "b", 110, version=100)
    story.at(110, Kind.DECIDED, "b", "A", version=100, detail="keep")
    story.radio(200, Kind.HEADERS_SENT, "b", "ac", entries=(("A", EPOCH_MS + 110),))
    story.header(210, "c", 110, detail="headers")


def _pulled(story: Story) -> None:
    """The second version is lost; what was received at 110 ms is outdated at 1,300 ms."""
    story.at(1_100, Kind.PUBLISHED, "a", "A", version=1_100, detail="period")
    story.radio(1_100, Kind.KNOWLEDGE_SENT, "a", "", component="A", version=1_100)
    story.at(1_110, Kind.LOST, "b", "A", version=1_100, other="a", medium=RADIO, detail="loss")
    story.radio(1_200, Kind.HEADERS_SENT, "b", "ac", entries=(("A", EPOCH_MS + 110),))
    story.radio(1_200, Kind.HEADERS_SENT, "c", "b", entries=(("A", EPOCH_MS + 110),))
    story.radio(1_300, Kind.PULL_SENT, "b", "ac", entries=(("A", EPOCH_MS + 100),))
    story.radio(1_300, Kind.PULL_SENT, "c", "b", entries=(("A", 0),))
    story.at(1_310, Kind.FLAG_SET, "b", "A")
    story.at(1_310, Kind.FLAG_SET, "c", "A")


def _passed_on(story: Story) -> None:
    story.at(2_100, Kind.PUBLISHED, "a", "A", version=2_100, detail="period")
    story.radio(2_100, Kind.KNOWLEDGE_SENT, "a", "b", component="A", version=2_100)
    for time_ms, node, heard_by in ((2_110, "b", "ac"), (2_120, "c", "b")):
        story.at(time_ms, Kind.REPLACED, node, "A", version=2_100)
        story.header(time_ms, node, time_ms, version=2_100)
        story.at(time_ms, Kind.PASSED_ON, node, "A", version=2_100, detail="pulled")
        story.at(time_ms, Kind.FLAG_CLEARED, node, "A", detail="forwarded")
        story.radio(time_ms, Kind.KNOWLEDGE_SENT, node, heard_by, component="A", version=2_100)
    story.radio(2_200, Kind.HEADERS_SENT, "b", "ac", entries=(("A", EPOCH_MS + 2_110),))
    story.radio(2_200, Kind.HEADERS_SENT, "c", "b", entries=(("A", EPOCH_MS + 2_120),))
    story.header(2_210, "b", 2_120, version=2_100, detail="headers")


def _given_up(story: Story) -> None:
    """The last reception by anybody was at 2,120 ms: too old after 4,620 ms."""
    story.at(2_500, Kind.STOPPED, "a")
    header, wanted = (("A", EPOCH_MS + 2_120),), (("A", EPOCH_MS + 2_100),)
    for round_ms in (3_000, 4_000):
        for node, heard_by in (("b", "c"), ("c", "b")):
            story.radio(round_ms + 200, Kind.HEADERS_SENT, node, heard_by, entries=header)
            story.radio(round_ms + 300, Kind.PULL_SENT, node, heard_by, entries=wanted)
    for node in "bc":
        story.at(3_310, Kind.FLAG_SET, node, "A")
        story.at(4_310, Kind.FLAG_SET, node, "A")
        story.at(5_200, Kind.HEADER_EXPIRED, node, "A", value=EPOCH_MS + 2_120, detail="time")
        story.at(5_200, Kind.FLAG_CLEARED, node, "A", detail="time")


STORIES: dict[str, Callable[[], Story]] = {
    "radio": _radio_story,
    "parts": _parts_story,
    "ip": _ip_story,
    "groups": _group_story,
    "pull": _pull_story,
}


@pytest.fixture
def stories() -> dict[str, Callable[[], Story]]:
    return STORIES
