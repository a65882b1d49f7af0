"""Which sending an arrival belongs to, and whether a sending arrived. [EN-3]"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from rapport.ensemble.trace import Kind, TraceEvent
from rapport_lab.ensemble.rules.index import EARLY_MS, RECEIVED, SENT, TraceIndex

_Content = tuple[Kind, str, int, tuple[tuple[str, int], ...], str]
EVERYBODY = "*"


class Deliveries:
    """Sendings, arrivals and losses by what was sent, each found in O(log n)."""

    def __init__(self, index: TraceIndex) -> None:
        self._index = index
        self._sendings: defaultdict[tuple[str, _Content], list[int]] = defaultdict(list)
        self._arrivals: defaultdict[tuple[str, str, _Content], list[float]] = defaultdict(list)
        self._losses: defaultdict[tuple[str, str, str, int], list[float]] = defaultdict(list)
        for position, event in index.of_kind(*RECEIVED):
            self._sendings[event.node, _content(event, event.kind)].append(position)
        for _position, event in index.of_kind(*SENT):
            key = (event.node, index.peer(event), _content(event, SENT[event.kind]))
            self._arrivals[key].append(event.time_ms)
        for _position, event in index.of_kind(Kind.LOST):
            loss = (event.node, index.peer(event), event.component, event.version)
            self._losses[loss].append(event.time_ms)

    def sendings_of(self, arrival: TraceEvent) -> list[int]:
        """Where its sender sent just this, so long before that it may have arrived by now."""
        index, system = self._index, self._index.system
        sender = index.peer(arrival)
        positions = self._sendings.get((sender, _content(arrival, SENT[arrival.kind])), [])
        earliest = arrival.time_ms - system.longest_ms - EARLY_MS
        latest = arrival.time_ms - system.shortest_ms + EARLY_MS
        first = bisect_left(positions, earliest, key=self._time_ms)
        last = bisect_right(positions, latest, key=self._time_ms)
        return positions[first:last]

    def is_accounted_for(self, sending: TraceEvent, receiver: str) -> bool:
        """Whether it arrived at a node in time, or was recorded as lost."""
        content = _content(sending, sending.kind)
        what = (sending.component, sending.version)
        return (
            self._within(self._arrivals.get((receiver, sending.node, content)), sending)
            or self._within(self._losses.get((receiver, sending.node, *what)), sending)
            or self._within(self._losses.get((EVERYBODY, sending.node, *what)), sending)
        )

    def _within(self, times: list[float] | None, sending: TraceEvent) -> bool:
        if times is None:
            return False
        found = bisect_left(times, sending.time_ms - EARLY_MS)
        latest = sending.time_ms + self._index.system.longest_ms + EARLY_MS
        return found < len(times) and times[found] <= latest

    def _time_ms(self, position: int) -> float:
        return self._index.events[position].time_ms


def _content(event: TraceEvent, kind: Kind) -> _Content:
    return kind, event.component, event.version, event.entries, event.medium
