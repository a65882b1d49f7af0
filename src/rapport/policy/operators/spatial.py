"""Spatial indexes: a grid over rectangles, and cells for events near each other. [PO-6]"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rapport.policy.operators.columns import Rows, Table, spread
from rapport.policy.relations import Space

Floats = npt.NDArray[np.float64]

_FINEST = 1_024
_MOST_ENTRIES_PER_RECTANGLE = 32
_FURTHEST = 1 << 30
_FLAT = (4 * _FURTHEST, 1)
_ROUND = (1 << 42, 1 << 21, 1)
"""What a step along each axis adds to the number of a cell, on a plane and in space. Far cells in
space may share a number, which gives more candidates; no two neighbours of a cell do."""
_FINEST_ROUND_METRES = 1.0
"""Positions in space are rounded, so their cells are not smaller."""
# A little wider than the reach: two quotients of points just the reach apart may be rounded apart.
_MARGIN = 1.001
_MOST_PAIRS = 1 << 21
_MANY_NEAR = 32


class Grid:
    """A uniform grid over rectangles; each cell lists those that touch it.

    Cell numbers never decrease along an axis, so a point of a closed rectangle always falls into a
    cell that lists it: rounding loses none.
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
        """Whether there are rectangles, all finite."""
        return len(rectangles) > 0 and bool(np.isfinite(rectangles).all())

    def candidates(self, points: Floats) -> tuple[Rows, Rows]:
        """Pairs (point, rectangle), a superset of those where the rectangle contains the point."""
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
        # An axis whose length overflows is not divided either.
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
        """The concatenated lists of all cells, and where each begins."""
        left, right, bottom, top = self._reach(low, high, self._side)
        rectangle, column = spread(left, right + 1)
        place, row = spread(bottom[rectangle], top[rectangle] + 1)
        cells = column[place] * self._side + row
        order = np.argsort(cells, kind="stable")
        counts = np.bincount(cells, minlength=self._side**2)
        return np.concatenate(([0], np.cumsum(counts))), rectangle[place][order]


class Reach(NamedTuple):
    """How far apart the values of two events may be for a term to hold."""

    metres: float
    space: Space | None = None
    """Puts values where the distance is at least the straight one; None: they are on a plane."""

    def positions(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Where values are, (n, 2) or (n, 3)."""
        return values if self.space is None else self.space(values)

    def least(self) -> float:
        """The straight distance that is looked at, at least the reach."""
        return self.metres if self.space is None else max(self.metres, _FINEST_ROUND_METRES)

    def cells(self, values: npt.NDArray[Any]) -> Rows:
        """The cell of each value, as wide as the reach; those outside all cells, or missing, share
        the outermost."""
        width = self.least() * _MARGIN if self.least() > 0 else 1.0
        # fmin and fmax skip missing values, which therefore share the outermost cell.
        steps = np.floor(self.positions(values) / width)
        bounded = np.fmax(np.fmin(steps, _FURTHEST), -_FURTHEST).astype(np.int64)
        packed: Rows = bounded @ np.array(self._axes(), np.int64)
        return packed

    def around(self) -> list[int]:
        """What to add to a cell for itself and its neighbours."""
        steps = product((-1, 0, 1), repeat=len(self._axes()))
        return [sum(a * b for a, b in zip(step, self._axes(), strict=True)) for step in steps]

    def _axes(self) -> tuple[int, ...]:
        return _FLAT if self.space is None else _ROUND


def partner_rows(
    table: Table, cells: Rows | None, reach: Reach | None, low: Rows, high: Rows
) -> Iterator[tuple[Rows, Rows]]:
    """Pairs (query, row) of the rows in [low, high), with cells only near ones, in portions of
    bounded size."""
    step = _MOST_PAIRS // (_MANY_NEAR if cells is not None else max(len(table), 1))
    for first in range(0, len(low), max(step, 1)):
        some = slice(first, first + max(step, 1))
        if cells is None or reach is None:
            owners, rows = spread(low[some], np.maximum(low[some], high[some]))
        else:
            owners, rows = near_rows(table, cells[some], reach, low[some], high[some])
        yield owners + first, rows


def near_rows(table: Table, cells: Rows, reach: Reach, low: Rows, high: Rows) -> tuple[Rows, Rows]:
    """Pairs (query, row) of the rows in [low, high) in the cells around the query's."""
    found = []
    for step in reach.around():
        start, stop = table.find("cell", cells + step, low, high)
        owners, places = spread(start, stop)
        found.append((owners, table.rows_at("cell", places)))
    return np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])
