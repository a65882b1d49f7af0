"""How far back several readers of one memory look: what none of them needs may be forgotten.
[PO-13]
"""

from __future__ import annotations

from weakref import WeakSet

from rapport.policy.runners.base import END_OF_TIME


class Horizon:
    """How far back one reader looks; it reads as long as somebody holds this."""

    __slots__ = ("__weakref__", "before")

    def __init__(self) -> None:
        self.before = -END_OF_TIME


class Horizons:
    """Those of all readers. All of them are looked at once for as many moves as there are readers,
    so a move costs the same however many read.
    """

    def __init__(self) -> None:
        self._readers: WeakSet[Horizon] = WeakSet()
        self._moves = 0
        self._is_exact = False

    def __len__(self) -> int:
        return len(self._readers)

    def add(self) -> Horizon:
        """One more reader."""
        made = Horizon()
        self._readers.add(made)
        return made

    def move(self, own: Horizon, before: int) -> None:
        """A reader has done with what ended before a time."""
        if own.before != before:
            own.before = before
            self._moves += 1

    def passed(self, *, at_once: bool) -> int | None:
        """The time before which nobody looks; None when it is the same as at the last question, or,
        unless `at_once`, when asking is not worth it yet.
        """
        if not at_once and self._moves < len(self._readers):
            return None
        if not self._moves and self._is_exact >= at_once:
            return None
        self._moves, self._is_exact = 0, at_once
        return min(each.before for each in self._readers)
