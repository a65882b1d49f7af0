"""When something held, by position in a trace. [EN-3]"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator


class Timeline:
    """Facts that are switched on and off; asked for any position in O(log changes)."""

    def __init__(self) -> None:
        self._changes: dict[Hashable, tuple[list[int], list[bool]]] = {}

    def __bool__(self) -> bool:
        """Whether anything was recorded; what was not recorded cannot be held against anybody."""
        return bool(self._changes)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._changes

    def switch(self, key: Hashable, position: int, on: bool) -> None:
        """Positions have to come in order."""
        positions, states = self._changes.setdefault(key, ([], []))
        positions.append(position)
        states.append(on)

    def holds(self, key: Hashable, position: int) -> bool:
        """Whether it held just after what happened at a position."""
        positions, states = self._changes.get(key, ((), ()))
        change = bisect_right(positions, position)
        return change > 0 and states[change - 1]

    def holds_throughout(self, key: Hashable, first: int, last: int) -> bool:
        """Whether it held at a position and was not switched off up to another."""
        positions, states = self._changes.get(key, ((), ()))
        start, end = bisect_right(positions, first), bisect_right(positions, last)
        return start > 0 and all(states[start - 1 : end])

    def holds_sometime(self, key: Hashable, first: int, last: int) -> bool:
        """Whether it held at a position, or was switched on after it and up to another."""
        positions, states = self._changes.get(key, ((), ()))
        start, end = bisect_right(positions, first), bisect_right(positions, last)
        return any(states[max(start - 1, 0) : end])

    def switched_on(self, key: Hashable) -> Iterator[tuple[int, int | None]]:
        """The stretches in which it held: first position, and the one that ended it (or none)."""
        positions, states = self._changes.get(key, ((), ()))
        began: int | None = None
        for position, on in zip(positions, states, strict=True):
            if on and began is None:
                began = position
            elif not on and began is not None:
                yield began, position
                began = None
        if began is not None:
            yield began, None
