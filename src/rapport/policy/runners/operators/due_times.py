"""What falls due when, in order of time: for deadlines that a later reading may call off. [PO-6]"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from rapport.policy.runners.operators.table import Mask, Rows

_NONE = np.zeros(0, np.int64)
_TO_SPARE = 10_000
_LOOK_AT = 64

Entries = tuple[Rows, Rows, Rows]
"""Times, numbers of what is due, and marks."""


class DueQueue:
    """A queue of (time, number, mark), filled in order of time.

    Calling off costs nothing: `still(numbers, marks)` tells which entries count, the others are
    passed over. Holds at most about twice as many entries as count; adding and taking cost what
    they add and take, spread over time.
    """

    def __init__(self, still: Callable[[Rows, Rows], Mask]) -> None:
        self._still = still
        self._entries: deque[Entries] = deque()
        self._size = self._counted = 0

    def push(self, times: Rows, numbers: Rows, marks: Rows) -> None:
        """Adds entries in order of time, none before those that are here."""
        if len(times):
            self._entries.append((times, numbers, marks))
            self._size += len(times)
            if self._size > 2 * self._counted + _TO_SPARE:
                self._drop_called_off()

    def pop_before(self, limit: int) -> Entries:
        """Takes out what is due before a time and still counts."""
        found: list[Entries] = []
        while self._entries and self._entries[0][0][0] < limit:
            times, numbers, marks = self._entries.popleft()
            self._size -= len(times)
            due = int(np.searchsorted(times, limit))
            found.append((times[:due], numbers[:due], marks[:due]))
            if due < len(times):
                self._entries.appendleft((times[due:], numbers[due:], marks[due:]))
                self._size += len(times) - due
        return self._counting(found)

    def first(self) -> int | None:
        """The earliest time at which something that still counts is due."""
        while self._entries:
            times, numbers, marks = self._entries[0]
            called_off = self._called_off(numbers, marks)
            self._size -= called_off
            if called_off < len(times):
                rest = slice(called_off, None)
                self._entries[0] = (times[rest], numbers[rest], marks[rest])
                return int(times[called_off])
            self._entries.popleft()
        return None

    def _called_off(self, numbers: Rows, marks: Rows) -> int:
        """How many of the first entries no longer count; mostly few, so looks at few first."""
        first, some = 0, _LOOK_AT
        while first < len(numbers):
            chosen = slice(first, first + some)
            counting = np.flatnonzero(self._still(numbers[chosen], marks[chosen]))
            if len(counting):
                return first + int(counting[0])
            first, some = first + some, 4 * some
        return len(numbers)

    def _drop_called_off(self) -> None:
        kept = self._counting(list(self._entries))
        self._entries = deque([kept] if len(kept[0]) else [])
        self._size = self._counted = len(kept[0])

    def _counting(self, parts: list[Entries]) -> Entries:
        if not parts:
            return _NONE, _NONE, _NONE
        times, numbers, marks = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        still = self._still(numbers, marks)
        return times[still], numbers[still], marks[still]
