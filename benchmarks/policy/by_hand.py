"""The peer: listing 5.8 as a programmer writes it, with dictionaries and lists, event by event.
[PO-7, UX-3]

It knows this one policy and nothing else, as the source's listing in Java does. What it raises is
compared with what the operators find.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TypeVar

import pyarrow as pa

from benchmarks.policy.building import STREAM, WINDOW_MS, Building

Alarm = tuple[int, str, str, str]
"""When it is raised, the guest, the room, and the event that opened it."""
_REACH = 5.0
Row = TypeVar("Row", tuple[int, float, float], tuple[int, str])


class ByHand:
    """Remembers two windows of positions by person, and who was seen in which room."""

    def __init__(self, building: Building) -> None:
        people, rooms = building.instances("person"), building.instances("room")
        self._status = dict(zip(people.ids, people.columns["status"].tolist(), strict=True))
        columns = (rooms.columns["area"].tolist(), rooms.columns["security"].tolist())
        rows = zip(rooms.ids, *columns, strict=True)
        self._rooms = [(id, area) for id, area, security in rows if security == "restricted"]
        self._positions: dict[str, deque[tuple[int, float, float]]] = defaultdict(deque)
        self._seen: dict[str, deque[tuple[int, str]]] = defaultdict(deque)
        self._open: deque[Alarm] = deque()
        self.raised: list[Alarm] = []

    def take(self, time: int, id: str, person: str, x: float, y: float) -> None:
        """One event."""
        self.decide(time)
        _add(self._positions[person], (time, x, y), time)
        is_guest = self._status[person] == "guest"
        for room, (x1, y1, x2, y2) in self._rooms:
            if x1 <= x <= x2 and y1 <= y <= y2:
                if is_guest:
                    self._open.append((time, person, room, id))
                elif self._status[person] == "employee":
                    _add(self._seen[room], (time, person), time)

    def decide(self, time: int) -> None:
        """Raises what was open for a window and nobody came."""
        while self._open and self._open[0][0] + WINDOW_MS <= time:
            began, guest, room, id = self._open.popleft()
            if not self._is_accompanied(began, guest, room):
                self.raised.append((began + WINDOW_MS, guest, room, id))

    def _is_accompanied(self, began: int, guest: str, room: str) -> bool:
        until = began + WINDOW_MS
        present = {who for at, who in self._seen[room] if began <= at < until}
        if not present:
            return False
        places = [(x, y) for at, x, y in self._positions[guest] if began <= at < until]
        for who in present:
            for at, x, y in self._positions[who]:
                if began <= at < until and any(
                    (x - a) * (x - a) + (y - b) * (y - b) <= _REACH * _REACH for a, b in places
                ):
                    return True
        return False


def raised_by_hand(building: Building, readings: pa.RecordBatch) -> list[Alarm]:
    """All alarms, in the order raised."""
    program = ByHand(building)
    names = ("time", "id", "key", f"{STREAM}.x", f"{STREAM}.y")
    columns = [readings.column(name).to_pylist() for name in names]
    for time, id, person, x, y in zip(*columns, strict=True):
        program.take(time, id, person, x, y)
    program.decide(2**62)
    return program.raised


def _add(kept: deque[Row], row: Row, now: int) -> None:
    kept.append(row)
    while kept[0][0] <= now - 2 * WINDOW_MS:
        kept.popleft()
