"""Which rectangles hold a point, at a cost that does not grow with their number. [PO-6]"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.policy.runners.operators.table import Rows, spread

Floats = npt.NDArray[np.float64]

_FINEST = 1_024
_MOST_ENTRIES_PER_RECTANGLE = 32


class Grid:
    """A uniform grid over rectangles; each cell lists those that touch it.

    Cells are numbered by a function that never decreases along an axis, so a point of a closed
    rectangle always falls into a cell the rectangle is listed in: rounding cannot lose one.
    """

    def __init__(self, rectangles: Floats) -> None:
        self._count = len(rectangles)
        low = np.minimum(rectangles[:, :2], rectangles[:, 2:])
        high = np.maximum(rectangles[:, :2], rectangles[:, 2:])
        self._low = low.min(axis=0) if self._count else np.zeros(2)
        self._high = high.max(axis=0) if self._count else np.zeros(2)
        side = int(min(max(np.sqrt(self._count) * 2, 1), _FINEST))
        while (
            side > 1 and self._entries(low, high, side) > self._count * _MOST_ENTRIES_PER_RECTANGLE
        ):
            side //= 2
        self._side = side
        self._first, self._listed = self._fill(low, high)

    @staticmethod
    def can_hold(rectangles: Floats) -> bool:
        """Whether there is something to index; infinite and missing corners cannot be laid on a
        grid.
        """
        return len(rectangles) > 0 and bool(np.isfinite(rectangles).all())

    def candidates(self, points: Floats) -> tuple[Rows, Rows]:
        """Pairs (point, rectangle) among which are all where the rectangle holds the point."""
        within = ((points >= self._low) & (points <= self._high)).all(axis=1)
        rows = np.flatnonzero(within)
        chosen = points[rows]
        cells = self._cell(chosen[:, 0], 0, self._side) * self._side
        cells += self._cell(chosen[:, 1], 1, self._side)
        owners, places = spread(self._first[cells], self._first[cells + 1])
        return rows[owners], self._listed[places]

    def _cell(self, values: Floats, axis: int, side: int) -> Rows:
        with np.errstate(over="ignore"):
            width = (self._high[axis] - self._low[axis]) / side
        # An axis too long for a number of its own length is not divided either.
        if not 0 < width < np.inf:
            return np.zeros(len(values), np.int64)
        cells: Rows = ((values - self._low[axis]) / width).astype(np.int64)
        np.minimum(cells, side - 1, out=cells)
        return cells

    def _reach(self, low: Floats, high: Floats, side: int) -> tuple[Any, Any, Any, Any]:
        return (
            self._cell(low[:, 0], 0, side),
            self._cell(high[:, 0], 0, side),
            self._cell(low[:, 1], 1, side),
            self._cell(high[:, 1], 1, side),
        )

    def _entries(self, low: Floats, high: Floats, side: int) -> int:
        left, right, bottom, top = self._reach(low, high, side)
        return int(((right - left + 1) * (top - bottom + 1)).sum())

    def _fill(self, low: Floats, high: Floats) -> tuple[Rows, Rows]:
        """The list of each cell, one after the other, and where each begins."""
        left, right, bottom, top = self._reach(low, high, self._side)
        rectangle, column = spread(left, right + 1)
        place, row = spread(bottom[rectangle], top[rectangle] + 1)
        cells = column[place] * self._side + row
        order = np.argsort(cells, kind="stable")
        counts = np.bincount(cells, minlength=self._side**2)
        return np.concatenate(([0], np.cumsum(counts))), rectangle[place][order]
