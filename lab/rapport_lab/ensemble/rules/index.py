"""A trace put in order once, so that each rule looks at what concerns it only. [EN-3]"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Final

from rapport.ensemble.trace import Kind, NodeFacts, Trace, TraceEvent
from rapport_lab.ensemble.rules.world import RecordedWorld

RECEIVED: Final = {
    Kind.KNOWLEDGE_SENT: Kind.KNOWLEDGE_RECEIVED,
    Kind.HEADERS_SENT: Kind.HEADERS_RECEIVED,
    Kind.PULL_SENT: Kind.PULL_RECEIVED,
    Kind.PART_SENT: Kind.PART_RECEIVED,
    Kind.PART_PULL_SENT: Kind.PART_PULL_RECEIVED,
}
"""Each kind of sending and the kind of its arrival."""
SENT: Final = {received: sent for sent, received in RECEIVED.items()}

Version = tuple[str, str, int]
"""Node, component and version."""
EARLY_MS: Final = 0.001
"""What the sum of many periods may be off."""


def is_of_groupers(event: TraceEvent) -> bool:
    """Whether it is about what groupers say to each other and to members: rules 15 to 17."""
    return event.component.startswith("grouper/")


def version_of(event: TraceEvent) -> Version:
    """At which node which version of which component."""
    return event.node, event.component, event.version


class TraceIndex:
    """Positions of events by kind, node and version, and what the world was like; O(n) to make."""

    def __init__(self, trace: Trace) -> None:
        self.system = trace.system
        self.events = trace.events
        self.by_kind: defaultdict[Kind, list[int]] = defaultdict(list)
        self.by_node: defaultdict[str, list[int]] = defaultdict(list)
        self._by_version: defaultdict[tuple[Kind, Version], list[int]] = defaultdict(list)
        self._rank: list[int] = []
        self._names = {facts.address: node for node, facts in self.system.nodes.items()}
        last_ms = self.events[-1].time_ms if self.events else 0.0
        self.end_ms = last_ms if self.system.end_ms is None else self.system.end_ms
        for position, event in enumerate(self.events):
            of_node = self.by_node[event.node]
            self._rank.append(len(of_node))
            of_node.append(position)
            self.by_kind[event.kind].append(position)
            if event.component:
                self._by_version[event.kind, version_of(event)].append(position)
        self.world = RecordedWorld(self)

    def of_kind(self, *kinds: Kind) -> list[tuple[int, TraceEvent]]:
        """Events of some kinds with their positions, in order."""
        positions = [position for kind in kinds for position in self.by_kind[kind]]
        if len(kinds) > 1:
            positions.sort()
        return [(position, self.events[position]) for position in positions]

    def of_version(self, kind: Kind, version: Version) -> list[int]:
        """Where a kind of event concerned a version at a node."""
        return self._by_version.get((kind, version), [])

    def before(self, kind: Kind, version: Version, position: int) -> int | None:
        """The last such event before a position."""
        positions = self.of_version(kind, version)
        found = bisect_left(positions, position)
        return positions[found - 1] if found else None

    def after(self, kind: Kind, version: Version, position: int) -> int | None:
        """The first such event after a position."""
        positions = self.of_version(kind, version)
        found = bisect_left(positions, position + 1)
        return positions[found] if found < len(positions) else None

    def reaction(self, position: int) -> list[TraceEvent]:
        """What the same node did at the same time, up to what it received next."""
        return [self.events[at] for at in self._reaction_positions(position)]

    def _reaction_positions(self, position: int) -> list[int]:
        event = self.events[position]
        of_node, first = self.by_node[event.node], self._rank[position] + 1
        last = first
        while last < len(of_node):
            following = self.events[of_node[last]]
            if following.time_ms != event.time_ms or following.kind in SENT:
                break
            last += 1
        return of_node[first:last]

    def next_of_node(self, position: int) -> TraceEvent | None:
        """The next event of the same node that is later, or its stop."""
        event = self.events[position]
        of_node = self.by_node[event.node]
        for rank in range(self._rank[position] + 1, len(of_node)):
            following = self.events[of_node[rank]]
            if following.time_ms > event.time_ms or following.kind is Kind.STOPPED:
                return following
        return None

    def is_recorded(self, node: str) -> bool:
        """Whether the node wrote into this trace; what another sent or published is not known."""
        return node in self.system.nodes or node in self.by_node

    def facts(self, node: str) -> NodeFacts:
        """What a node was told to do; the defaults for one that is not named."""
        return self.system.nodes.get(node, _UNKNOWN)

    def peer(self, event: TraceEvent) -> str:
        """The other node of an event, by name also where the event has its address."""
        return self.name_of(event.other) if event.other else ""

    def name_of(self, address: str) -> str:
        """The node at an address; a name stays as it is."""
        return self._names.get(address, address)


_UNKNOWN: Final = NodeFacts()
