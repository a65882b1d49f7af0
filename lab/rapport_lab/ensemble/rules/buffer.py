"""The reception buffer of each node, replayed from a trace. [EN-3, EN-8]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.ensemble.trace import Kind, NodeFacts, TraceEvent
from rapport_lab.ensemble.rules.index import TraceIndex


class Buffer:
    """What one node had in its buffer, as its machine told."""

    def __init__(self, facts: NodeFacts) -> None:
        self._facts = facts
        self.global_ms: dict[str, int] = {}
        """The latest reception by anybody, for each component in the buffer."""
        self.local_ms: dict[str, int] = {}
        """The time of the version that is held; of the first header while none is."""
        self.held: dict[str, int] = {}
        """The version of each replica."""
        self.flagged_ms: dict[str, float] = {}
        """Which components somebody pulls, and the steady time of the last pull."""
        self.ended: set[str] = set()
        """Components that lived here and do no more: their last version is not told again."""

    def apply(self, event: TraceEvent) -> None:
        """Takes note of one event of the node."""
        component = event.component
        match event.kind:
            case Kind.HEADER_ADDED:
                if component not in self.global_ms and event.detail != "knowledge":
                    self.local_ms[component] = event.value
                self.global_ms[component] = event.value
            case Kind.HEADER_EXPIRED:
                self.global_ms.pop(component, None)
            case Kind.FLAG_SET:
                self.flagged_ms[component] = event.time_ms
            case Kind.FLAG_CLEARED:
                self.flagged_ms.pop(component, None)
            case Kind.REMOVED:
                self.ended.add(component)
            case Kind.REPLACED:
                self.ended.discard(component)
                self.held[component] = event.version
                self.local_ms[component] = self.time_of(event)
            case Kind.PUBLISHED:
                self.ended.discard(component)
                self.held[component] = event.version
            case Kind.STOPPED:
                for kept in (self.global_ms, self.local_ms, self.held, self.flagged_ms):
                    kept.clear()

    def time_of(self, replaced: TraceEvent) -> int:
        """What counts as the time of a version's reception; never later than now."""
        if self._facts.times == "created":
            return min(replaced.value, replaced.wall_ms)
        return replaced.wall_ms

    def is_flagged(self, component: str, time_ms: float) -> bool:
        """Whether somebody pulled it not longer ago than the global time-out."""
        flagged_ms = self.flagged_ms.get(component)
        return flagged_ms is not None and time_ms < flagged_ms + self._facts.global_ms

    def live(self, wall_ms: int) -> dict[str, int]:
        """The headers that are not older than the global time-out."""
        oldest_ms = wall_ms - self._facts.global_ms
        return {component: told for component, told in self.global_ms.items() if told >= oldest_ms}

    def outdated(self, wall_ms: int) -> dict[str, int]:
        """Of these, the ones older than the local time-out, with the version that is held."""
        oldest_ms = wall_ms - self._facts.local_ms
        return {
            component: self.held.get(component, 0)
            for component in self.live(wall_ms)
            if self.local_ms[component] < oldest_ms
        }


def replayed(index: TraceIndex) -> Iterator[tuple[int, TraceEvent, Buffer]]:
    """Each event with its position and the buffer of its node as it was just before."""
    buffers = {node: Buffer(index.facts(node)) for node in index.by_node}
    for position, event in enumerate(index.events):
        buffer = buffers[event.node]
        yield position, event, buffer
        buffer.apply(event)
