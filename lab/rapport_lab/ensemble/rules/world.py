"""What the world of a trace was like at any position: who ran, who reached whom, who knew whom,
what lived where. [EN-3]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rapport.ensemble.trace import Kind
from rapport_lab.ensemble.rules.timeline import Timeline

if TYPE_CHECKING:
    from rapport_lab.ensemble.rules.index import TraceIndex

ON: Final = {Kind.STARTED, Kind.DEPLOYED, Kind.LINKED, Kind.KNOWN}


class RecordedWorld:
    """Read from the facts in a trace. What was never recorded is unknown and breaks no rule."""

    def __init__(self, index: TraceIndex) -> None:
        self.running, self.living = Timeline(), Timeline()
        self.links, self.known = Timeline(), Timeline()
        self._reached: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._acquainted: defaultdict[str, set[str]] = defaultdict(set)
        self._lives_on: defaultdict[str, set[str]] = defaultdict(set)
        self._homes: defaultdict[str, set[str]] = defaultdict(set)
        for position, event in index.of_kind(Kind.STARTED, Kind.STOPPED):
            self.running.switch(event.node, position, event.kind in ON)
        for position, event in index.of_kind(Kind.DEPLOYED, Kind.REMOVED):
            self.living.switch((event.node, event.component), position, event.kind in ON)
            self._lives_on[event.node].add(event.component)
            self._homes[event.component].add(event.node)
        for position, event in index.of_kind(Kind.LINKED, Kind.UNLINKED):
            self._link(position, event.node, index.peer(event), event.medium, event.kind in ON)
        for position, event in index.of_kind(Kind.KNOWN, Kind.FORGOTTEN):
            self.known.switch((event.node, index.peer(event)), position, event.kind in ON)
            self._acquainted[event.node].add(index.peer(event))

    def _link(self, position: int, node: str, other: str, medium: str, on: bool) -> None:
        self.links.switch((node, other, medium), position, on)
        self._reached[node, medium].add(other)

    def runs(self, node: str, position: int) -> bool:
        """Whether a node ran; one whose start was not recorded always did."""
        return node not in self.running or self.running.holds(node, position)

    def runs_on(self, node: str, first: int, last: int) -> bool:
        """Whether a node ran from one position to another without a stop."""
        return node not in self.running or self.running.holds_throughout(node, first, last)

    def is_local(self, node: str, component: str, position: int) -> bool:
        """Whether a component lived on a node."""
        return self.living.holds((node, component), position)

    def components_of(self, node: str) -> set[str]:
        """All that ever lived on a node."""
        return self._lives_on.get(node, set())

    def homes_of(self, component: str) -> set[str]:
        """All nodes that a component ever lived on."""
        return self._homes.get(component, set())

    def in_range(self, node: str, medium: str, position: int) -> Iterator[str]:
        """Whom a node reached, among those that ran; costs as many as it ever reached."""
        for other in sorted(self._reached.get((node, medium), ())):
            if self.links.holds((node, other, medium), position) and self.runs(other, position):
                yield other

    def known_to(self, node: str, position: int) -> set[str]:
        """Whose addresses a node knew."""
        return {
            other
            for other in self._acquainted.get(node, ())
            if self.known.holds((node, other), position)
        }
