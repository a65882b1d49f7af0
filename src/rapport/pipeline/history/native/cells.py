"""Squares of several sizes over many rectangles: what points and rectangles are joined by. [PI-5]

A rectangle is listed under the squares it touches, of a size that makes them few; a point has one
square of every size in use. All squares of the coarsest size are one: there stands what is endless
or huge. Squares at the rim reach to the end of the world, so that every point has one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rapport.pipeline.history.native.values import Floats
from rapport.policy.operators.columns import Rows, spread

_FINEST = 4_096
_MOST_SQUARES = 64
"""One rectangle touches no more; larger ones are listed by larger squares."""
_STEP = 8
_OUTLIERS = 1.0
"""Per cent of the corners, at either end, that do not widen the squares."""


class Level(NamedTuple):
    """Squares of one size: `side` by `side`, numbered from `first` on."""

    side: int
    first: int
    low: tuple[float, float]
    width: tuple[float, float]


class Cells:
    """The squares of rectangles (n, 4), none of which misses a corner or has it the wrong way
    round. Memory: at most 64 entries per rectangle.
    """

    def __init__(self, rectangles: Floats) -> None:
        low, high = _extent(rectangles)
        levels: list[Level] = []
        entries: list[tuple[Rows, Rows]] = []
        left, side, first = np.arange(len(rectangles)), _finest(len(rectangles)), 0
        while len(left):
            level = _level(side, first, low, high)
            reach = _reach(rectangles[left], level)
            fits = (_touched(reach) <= _MOST_SQUARES) if side > 1 else np.ones(len(left), np.bool_)
            if fits.any():
                levels.append(level)
                owners, cells = _listed(reach[fits], level)
                entries.append((cells, left[fits][owners]))
                first += side * side
            left, side = left[~fits], max(side // _STEP, 1)
        self.levels = tuple(levels)
        """Those in use, the finest first."""
        self.cells: Rows = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in entries)])
        """Of each entry the square..."""
        self.rows: Rows = np.concatenate([np.zeros(0, np.int64), *(part[1] for part in entries)])
        """...and the rectangle."""

    def of_points(self, points: Floats) -> tuple[Rows, Rows]:
        """Every (point, square) of the points, which miss nothing."""
        numbers = np.arange(len(points))
        found = [_numbers(points, level) for level in self.levels]
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.tile(numbers, len(found)), np.concatenate(found)


def _finest(count: int) -> int:
    """About four squares per rectangle, as a power of eight."""
    side = 1
    while side < _FINEST and side * side < 4 * count:
        side *= _STEP
    return side


def _extent(rectangles: Floats) -> tuple[Floats, Floats]:
    """Where the squares lie: around all but the outermost corners."""
    finite = rectangles[np.isfinite(rectangles).all(axis=1)]
    if not len(finite):
        return np.zeros(2), np.ones(2)
    low = np.percentile(finite[:, :2], _OUTLIERS, axis=0, method="nearest")
    high = np.percentile(finite[:, 2:], 100 - _OUTLIERS, axis=0, method="nearest")
    return np.minimum(low, high), np.maximum(low, high)


def _level(side: int, first: int, low: Floats, high: Floats) -> Level:
    width = high / side - low / side
    width = np.where(width > 0, width, 1.0)
    return Level(side, first, (float(low[0]), float(low[1])), (float(width[0]), float(width[1])))


def _place(values: npt.NDArray[Any], level: Level, axis: int) -> Rows:
    """The row or column of squares; never decreases with the value."""
    with np.errstate(over="ignore"):
        exact = np.floor((values - level.low[axis]) / level.width[axis])
    return np.clip(exact, 0.0, level.side - 1.0).astype(np.int64)


def _numbers(points: Floats, level: Level) -> Rows:
    across, upward = _place(points[:, 0], level, 0), _place(points[:, 1], level, 1)
    return level.first + across * level.side + upward


def _reach(rectangles: Floats, level: Level) -> Rows:
    """The squares of the corners: left, bottom, right, top."""
    return np.column_stack([_place(rectangles[:, k], level, k % 2) for k in range(4)])


def _touched(reach: Rows) -> Rows:
    found: Rows = (reach[:, 2] - reach[:, 0] + 1) * (reach[:, 3] - reach[:, 1] + 1)
    return found


def _listed(reach: Rows, level: Level) -> tuple[Rows, Rows]:
    owner, column = spread(reach[:, 0], reach[:, 2] + 1)
    place, row = spread(reach[owner, 1], reach[owner, 3] + 1)
    return owner[place], level.first + column[place] * level.side + row
