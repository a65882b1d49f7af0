"""Matches whose absence is not yet known, by the time at which it will be. [PO-6]"""

from __future__ import annotations

import heapq
from itertools import count as numbers

import numpy as np

from rapport.policy.runners.operators.table import Columns, concatenate, count, take


class OpenMatches:
    """Rows with a column `due`, of one combination. A look at what is due costs what is due and
    the logarithm of the batches that opened something, however many matches are open.
    """

    def __init__(self) -> None:
        self._chunks: list[tuple[int, int, Columns]] = []
        """First due time, a number that tells equal ones apart, rows by due time; a heap."""
        self._numbers = numbers()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, frame: Columns) -> None:
        """Opens matches."""
        due = frame["due"]
        if len(due) > 1 and (due[1:] < due[:-1]).any():
            frame = take(frame, np.argsort(due, kind="stable"))
        self._push(frame)

    def pop_due(self, watermark: int) -> Columns | None:
        """Takes out what is due by the watermark; None when nothing is."""
        parts = []
        while self._chunks and self._chunks[0][0] <= watermark:
            _, _, frame = heapq.heappop(self._chunks)
            edge = int(np.searchsorted(frame["due"], watermark, "right"))
            parts.append(take(frame, slice(0, edge)))
            if edge < count(frame):
                self._push(take(frame, slice(edge, None)))
        return concatenate(parts) if parts else None

    def first_due(self) -> int | None:
        """When the first of them is due."""
        return self._chunks[0][0] if self._chunks else None

    def least(self, of: str, or_else: str, after_ms: int) -> int | None:
        """Over all rows the least of the larger of a column and another some time later."""
        frames = [frame for _, _, frame in self._chunks]
        found = [np.maximum(one[of], one[or_else] + after_ms).min() for one in frames]
        return min(map(int, found), default=None)

    def state(self) -> Columns | None:
        """All rows as one frame."""
        frames = [frame for _, _, frame in sorted(self._chunks, key=lambda chunk: chunk[:2])]
        return concatenate(frames) if frames else None

    def _push(self, frame: Columns) -> None:
        first = int(frame["due"][0])
        heapq.heappush(self._chunks, (first, next(self._numbers), frame))
