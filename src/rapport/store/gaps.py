"""Gaps of a log: positions that should be readable and are not. [CH-13, CH-14]

Positions count without gaps, so a position between two blocks that retention has not removed is
damaged or missing. Comparing positions finds it without another read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from rapport.core.event import Gap, clip_gaps
from rapport.store.base import Block, LogReader

DAMAGED, MISSING = "damaged", "missing"
"""Reasons of a gap: the records fail their checksum, or there are none."""


class LogGaps:
    """The gaps of one log, as far as its blocks have been read. Thread-safe.

    Reading a sound log costs one comparison per block. Positions that are read again are compared
    again, so a restored file closes its gap.
    """

    def __init__(self, store: LogReader, log: str) -> None:
        self._store, self._log = store, log
        self._guard = threading.Lock()
        self._gaps: tuple[Gap, ...] = ()

    def note(self, position: int, through: int, blocks: Iterable[Block]) -> None:
        """Notes the result of a read: `blocks` is everything readable after `position` and up to
        `through`.
        """
        missing = list(_missing(position, through, blocks))
        if missing or self._gaps:
            kept = self._store.first_position(self._log)
            found = [
                Gap(max(first, kept), last, self._reason(max(first, kept)))
                for first, last in missing
                if last >= kept
            ]
            with self._guard:
                before = clip_gaps(self._gaps, kept, position)
                after = clip_gaps(self._gaps, through + 1)
                self._gaps = tuple(_merged([*before, *found, *after]))

    def between(self, after: int, through: int) -> tuple[Gap, ...]:
        return tuple(clip_gaps(self._gaps, after + 1, through)) if self._gaps else ()

    def forget_before(self, position: int) -> None:
        """Retention has removed the records before a position."""
        with self._guard:
            self._gaps = tuple(clip_gaps(self._gaps, position))

    def _reason(self, position: int) -> str:
        explain = getattr(self._store, "gap_reason", None)
        return MISSING if explain is None else str(explain(self._log, position))


def _missing(position: int, through: int, blocks: Iterable[Block]) -> Iterator[tuple[int, int]]:
    for block in blocks:
        if block.first > position + 1:
            yield position + 1, block.first - 1
        position = block.last
    if position < through:
        yield position + 1, through


def _merged(gaps: Sequence[Gap]) -> Iterator[Gap]:
    """The gaps with neighbours of one reason merged."""
    pending: Gap | None = None
    for gap in gaps:
        if pending is not None and pending.last + 1 == gap.first and pending.reason == gap.reason:
            pending = Gap(pending.first, gap.last, gap.reason)
        else:
            if pending is not None:
                yield pending
            pending = gap
    if pending is not None:
        yield pending
