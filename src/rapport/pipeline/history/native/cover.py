"""Many boxes as few numbered squares: a coarse question that any engine can ask of a point. [PI-5]

The number of the square of a point is the same formula in numpy, Arrow and Spark, with the same
roundings, and never decreases along an axis; so a point of a box always falls into a square that
the box touches.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.pipeline.history.native.values import Floats
from rapport.policy.operators.columns import spread

FEW_BOXES = 8
_FINEST = 256
_MOST_CELLS = 8_192
_STRIDE = float(1 << 20)
_USUAL, _FAR = 90, 16.0
"""Per cent of the boxes that are near by definition; so many times further out is far."""


class Cover(msgspec.Struct, frozen=True):
    """Boxes to be asked one by one, and squares that touch all the others."""

    hull: tuple[float, float, float, float]
    """Around everything."""
    boxes: tuple[tuple[float, float, float, float], ...]
    """Few; or none where squares stand for all."""
    cells: tuple[float, ...] = ()
    low: tuple[float, float] = (0.0, 0.0)
    width: tuple[float, float] = (1.0, 1.0)
    stride: float = _STRIDE
    """Squares are numbered floor((x - low) / width) * stride + floor((y - low) / width)."""


def cover_of(boxes: Floats) -> Cover:
    """Squares for ordinary boxes, endless and far ones as they are; only the hull around all where
    there are too many of those. `boxes` must hold one at least, none without points.
    """
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    hull = (float(low[0]), float(low[1]), float(high[0]), float(high[1]))
    if len(boxes) <= FEW_BOXES:
        return Cover(hull, _as_tuples(boxes))
    ordinary = _ordinary(boxes)
    others = _as_tuples(boxes[~ordinary])
    squares = _squares(boxes[ordinary]) if len(others) <= FEW_BOXES else None
    if squares is None:
        return Cover(hull, (hull,))
    return msgspec.structs.replace(squares, hull=hull, boxes=others)


def _ordinary(boxes: Floats) -> npt.NDArray[np.bool_]:
    """The boxes that end, and lie not much further out than nearly all others: one far away would
    make all squares too wide.
    """
    finite = np.asarray(np.isfinite(boxes).all(axis=1), np.bool_)
    if not finite.any():
        return finite
    with np.errstate(all="ignore"):
        away = np.abs(boxes - np.median(boxes[finite], axis=0)).max(axis=1)
        usual = np.percentile(away[finite], _USUAL, method="lower")
        ordinary: npt.NDArray[np.bool_] = finite & (away <= _FAR * usual)
    return ordinary


def _squares(boxes: Floats) -> Cover | None:
    """None where all boxes together lie in one square, or are too far apart to be told from one
    another.
    """
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    side = _FINEST
    while side > 1:
        width = high / side - low / side
        width = np.where(width > 0, width, 1.0)
        with np.errstate(over="ignore"):
            first = np.floor((boxes[:, :2] - low) / width)
            last = np.floor((boxes[:, 2:] - low) / width)
        if not np.isfinite(last).all() or last.max() >= _STRIDE:
            return None
        cells = _numbers(first.astype(np.int64), last.astype(np.int64))
        if cells is not None:
            return Cover(
                (0.0, 0.0, 0.0, 0.0),
                (),
                tuple(cells.tolist()),
                (float(low[0]), float(low[1])),
                (float(width[0]), float(width[1])),
            )
        side //= 2
    return None


def _numbers(first: np.ndarray[tuple[int, int], np.dtype[np.int64]], last: Floats) -> Floats | None:
    """The distinct squares from `first` to `last`; None where they are too many."""
    across, upward = last[:, 0] - first[:, 0] + 1, last[:, 1] - first[:, 1] + 1
    if (across * upward).sum() > 64 * _MOST_CELLS:
        return None
    owner, column = spread(first[:, 0], last[:, 0].astype(np.int64) + 1)
    place, row = spread(first[owner, 1], last[owner, 1].astype(np.int64) + 1)
    found = np.unique(column[place] * _STRIDE + row)
    return found if len(found) <= _MOST_CELLS else None


def _as_tuples(boxes: Floats) -> tuple[tuple[float, float, float, float], ...]:
    return tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in boxes.tolist())
