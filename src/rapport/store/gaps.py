"""Positions of a log that should be there and cannot be read. [CH-13, CH-14]

Positions count without gaps, so whatever lies between two blocks, and was not let go by retention,
is damaged or missing. Comparing positions finds it; nothing is read for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from rapport.core.event import Gap, clip_gaps
from rapport.store.base import Block

DAMAGED, MISSING = "damaged", "missing"
"""Reasons of a gap: the records are there and fail their checksum, or they are not there at all."""


class KeepingLog(Protocol):
    """What is needed of a log store to tell a gap from what was let go."""

    def first_position(self, log: str) -> int:
        """See LogStore."""


class LogGaps:
    """The gaps of one log, as far as its blocks have been read. Safe to call from any thread.

    Reading a sound log costs one comparison per block. A stretch that is read again is judged
    again: what somebody has restored meanwhile is no gap any more.
    """

    def __init__(self, store: KeepingLog, log: str) -> None:
        self._store, self._log = store, log
        self._guard = threading.Lock()
        self._gaps: tuple[Gap, ...] = ()

    def note(self, position: int, through: int, blocks: Iterable[Block]) -> None:
        """Takes in what a read found: `blocks` is everything readable after `position` and up to
        `through`.
        """
        lost = list(_lost(position, through, blocks))
        if lost or self._gaps:
            kept = self._store.first_position(self._log)
            found = [
                Gap(max(first, kept), last, self._reason(max(first, kept)))
                for first, last in lost
                if last >= kept
            ]
            with self._guard:
                before = clip_gaps(self._gaps, kept, position)
                after = clip_gaps(self._gaps, through + 1)
                self._gaps = tuple(_joined([*before, *found, *after]))

    def between(self, after: int, through: int) -> tuple[Gap, ...]:
        """The gaps among the positions after `after` and up to `through`."""
        return tuple(clip_gaps(self._gaps, after + 1, through)) if self._gaps else ()

    def forget_before(self, position: int) -> None:
        """Retention has let go of what stands before a position."""
        with self._guard:
            self._gaps = tuple(clip_gaps(self._gaps, position))

    def _reason(self, position: int) -> str:
        explain = getattr(self._store, "gap_reason", None)
        return MISSING if explain is None else str(explain(self._log, position))


def _lost(position: int, through: int, blocks: Iterable[Block]) -> Iterator[tuple[int, int]]:
    for block in blocks:
        if block.first > position + 1:
            yield position + 1, block.first - 1
        position = block.last
    if position < through:
        yield position + 1, through


def _joined(gaps: Sequence[Gap]) -> Iterator[Gap]:
    """The same gaps, neighbours with one reason as one."""
    held: Gap | None = None
    for gap in gaps:
        if held is not None and held.last + 1 == gap.first and held.reason == gap.reason:
            held = Gap(held.first, gap.last, gap.reason)
        else:
            if held is not None:
                yield held
            held = gap
    if held is not None:
        yield held
