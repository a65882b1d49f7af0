"""Which message of a stream holds a position: learnt on the way, bounded, never wrong. [CH-13]"""

from __future__ import annotations

from bisect import bisect_right

MOST_ENTRIES = 8_192

Begin = tuple[int, int]
"""First position of a group, and the sequence of its first message."""


def guess(position: int, low: Begin, high: Begin, *, halve: bool) -> int:
    """A sequence strictly between two beginnings to look at next: where the position would be if
    all messages held equally much, or in the middle.
    """
    gap = high[1] - low[1]
    if halve or high[0] <= low[0]:
        step = gap // 2
    else:
        step = gap * (position - low[0]) // (high[0] - low[0])
    return low[1] + min(max(step, 1), gap - 1)


class PositionIndex:
    """Pairs of (first position of a group, sequence of its first message), both growing.

    Appending and reading add pairs. When there are too many, every other one is forgotten: what
    lies between two pairs is found by asking the stream, in steps that halve.
    """

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._firsts: list[int] = []
        self._sequences: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, sequence: int) -> None:
        """Takes in where a group begins; the later message wins when an earlier one was given up
        half-way.
        """
        at = bisect_right(self._firsts, first)
        if at and self._firsts[at - 1] == first:
            self._sequences[at - 1] = max(self._sequences[at - 1], sequence)
            return
        self._firsts.insert(at, first)
        self._sequences.insert(at, sequence)
        if len(self._firsts) > self._most:
            del self._firsts[1:-1:2], self._sequences[1:-1:2]

    def around(self, position: int) -> tuple[Begin | None, Begin | None]:
        """Between which beginnings the group holding a position begins: the first is at or before
        it, the second after it; None where nothing is known. They are neighbours when a group is
        known to begin right there.
        """
        at = bisect_right(self._firsts, position)
        lower = (self._firsts[at - 1], self._sequences[at - 1]) if at else None
        if lower is not None and lower[0] == position:
            return lower, (position + 1, lower[1] + 1)
        upper = (self._firsts[at], self._sequences[at]) if at < len(self._firsts) else None
        return lower, upper

    def forget_before(self, sequence: int) -> None:
        """Drops what the stream has let go of."""
        gone = bisect_right(self._sequences, sequence - 1)
        del self._firsts[:gone], self._sequences[:gone]
