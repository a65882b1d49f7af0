"""Which values of a stream can matter: numbers in intervals, listed texts, points in boxes. [PI-5]

Each may name more values than matter, never fewer. A missing value (null, NaN) is in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.policy.language.tree import Operator

Floats = npt.NDArray[np.float64]

MOST_INTERVALS = 16
MOST_TEXTS = 1_000
BOOLEANS = frozenset(("true", "false"))
"""How booleans are written among texts."""


class Interval(msgspec.Struct, frozen=True, order=True):
    """Numbers from `low` to `high`, both included or not."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False


class Numbers(msgspec.Struct, frozen=True):
    """Numbers in one of the intervals, which are sorted and do not touch."""

    intervals: tuple[Interval, ...]


class Texts(msgspec.Struct, frozen=True):
    """One of these texts; booleans are written `true` and `false`."""

    texts: frozenset[str]


class Boxes(msgspec.Struct, frozen=True):
    """Points in one of many closed rectangles, kept as the bytes of (n, 4) numbers."""

    raw: bytes

    @staticmethod
    def of(boxes: npt.NDArray[Any]) -> Boxes:
        """Of rectangles (x1, y1, x2, y2), each once, without those in which no point lies."""
        holding = (boxes[:, 0] <= boxes[:, 2]) & (boxes[:, 1] <= boxes[:, 3])
        distinct = np.unique(np.asarray(boxes[holding], np.float64), axis=0)
        return Boxes(np.ascontiguousarray(distinct).tobytes())

    def array(self) -> Floats:
        """The rectangles, (n, 4)."""
        return np.frombuffer(self.raw, np.float64).reshape(-1, 4)

    def hull(self) -> tuple[float, float, float, float]:
        """The smallest rectangle around all; there must be one."""
        boxes = self.array()
        return (*boxes[:, :2].min(axis=0).tolist(), *boxes[:, 2:].max(axis=0).tolist())


Values = Numbers | Texts | Boxes


def is_nothing(values: Values | None) -> bool:
    """Whether no value is among them; None stands for any value at all."""
    match values:
        case Numbers():
            return not values.intervals
        case Texts():
            return not values.texts
        case Boxes():
            return not values.raw
    return False


def union(parts: Iterable[Values]) -> Values | None:
    """Values in any of the parts; None (any value) where parts of different kinds meet."""
    every = list(parts)
    numbers = [part for part in every if isinstance(part, Numbers)]
    texts = [part for part in every if isinstance(part, Texts)]
    boxes = [part for part in every if isinstance(part, Boxes)]
    if len(numbers) == len(every):
        return joined_intervals([one for part in numbers for one in part.intervals])
    if len(texts) == len(every):
        return texts_of(text for part in texts for text in part.texts)
    if len(boxes) == len(every):
        return Boxes.of(np.concatenate([part.array() for part in boxes]))
    return None


def texts_of(texts: Iterable[str]) -> Texts | None:
    """One of the texts; any where there are too many to be worth naming."""
    known = frozenset(texts)
    return Texts(known) if len(known) <= MOST_TEXTS else None


def joined_intervals(intervals: Sequence[Interval]) -> Numbers:
    """The intervals, those that meet or overlap as one; all as one where there are too many."""
    found: list[Interval] = []
    for one in sorted(intervals, key=lambda item: (item.low, item.open_low)):
        if found and _touches(found[-1], one):
            found[-1] = _hull(found[-1], one)
        else:
            found.append(one)
    if len(found) > MOST_INTERVALS:
        found = [_hull(found[0], found[-1])]
    return Numbers(tuple(found))


def compared_with(operator: Operator, bounds: Iterable[float]) -> Numbers:
    """The numbers that stand in the comparison with at least one of the bounds, which may be
    missing.
    """
    known = sorted({bound for bound in bounds if not math.isnan(bound)})
    if not known:
        return Numbers(())
    lowest, highest = known[0], known[-1]
    match operator:
        case "<" | "<=":
            return Numbers((Interval(-math.inf, highest, open_high=operator == "<"),))
        case ">" | ">=":
            return Numbers((Interval(lowest, math.inf, open_low=operator == ">"),))
        case "=":
            return joined_intervals([Interval(bound, bound) for bound in known])
    if lowest < highest:
        return Numbers((Interval(-math.inf, math.inf),))
    below, above = Interval(-math.inf, lowest, open_high=True), Interval(lowest, math.inf, True)
    return Numbers((below, above))


def boxes_around(points: npt.NDArray[Any], reach: float) -> Floats | None:
    """Of each point where another can lie whose distance to it is computed to be at most `reach`;
    None where that may be anywhere.

    A little wider than the reach: squares and roots are rounded, and squares of the smallest
    numbers vanish.
    """
    wide = abs(reach) * 1.001 + 1e-150
    if not math.isfinite(wide * wide):
        return None
    low, high = np.nextafter(points - wide, -np.inf), np.nextafter(points + wide, np.inf)
    return np.column_stack((low, high))


def _touches(left: Interval, right: Interval) -> bool:
    """Whether nothing lies between two intervals of which the left one begins first."""
    if left.high == right.low:
        return not (left.open_high and right.open_low)
    return left.high > right.low


def _hull(left: Interval, right: Interval) -> Interval:
    """From the begin of the left one, which begins first, to the further end."""
    if left.high == right.high:
        return Interval(left.low, left.high, left.open_low, left.open_high and right.open_high)
    further = left if left.high > right.high else right
    return Interval(left.low, further.high, left.open_low, further.open_high)
