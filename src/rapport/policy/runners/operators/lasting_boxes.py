"""Who comes near whom within a portion of readings: by the boxes in which they move. [PO-6]"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rapport.policy.runners.operators.lasting_track import EXPIRED, Track
from rapport.policy.runners.operators.table import Array, Rows, spread

_MARGIN = 1.001
_ROUNDING = 1e-12


class Boxes(NamedTuple):
    """The smallest rectangles around all points held in a portion; NaN where there is none."""

    low: Array
    high: Array


def boxes_of(track: Track, codes: Rows) -> Boxes:
    """Where identities (sorted codes) are held to be at any moment of a portion."""
    last = track.last
    last.grow(int(codes.max()) + 1 if len(codes) else 0, track.rows.values)
    assert last.values is not None
    low = last.values[codes]
    low[~last.known[codes]] = np.nan
    high = low.copy()
    readings = np.flatnonzero(track.readings != EXPIRED)
    if len(readings) and len(codes):
        whose, points = track.codes[readings], track.rows.values[track.readings[readings]]
        starts = np.flatnonzero(np.append(True, whose[1:] != whose[:-1]))
        places = np.minimum(np.searchsorted(codes, whose[starts]), len(codes) - 1)
        asked = codes[places] == whose[starts]
        places = places[asked]
        low[places] = np.fmin(low[places], np.fmin.reduceat(points, starts)[asked])
        high[places] = np.fmax(high[places], np.fmax.reduceat(points, starts)[asked])
    return Boxes(low, high)


def near_pairs(first: Boxes, second: Boxes, reach: float) -> tuple[Rows, Rows]:
    """Rows of both whose boxes are at most about `reach` apart; never leaves out any that are.

    Sorted along one axis, so that the cost follows those near each other there.
    """
    rows = np.flatnonzero(~np.isnan(first.low).any(axis=1))
    others = np.flatnonzero(~np.isnan(second.low).any(axis=1))
    others = others[np.argsort(second.low[others, 0])]
    if not len(rows) or not len(others):
        return rows[:0], others[:0]
    pad = reach * _MARGIN
    low, high = first.low[rows] - pad, first.high[rows] + pad
    left = second.low[others, 0]
    with np.errstate(invalid="ignore"):
        widest = np.nan_to_num(second.high[others, 0] - left, nan=np.inf).max()
        from_left = low[:, 0] - widest
        from_left -= np.abs(from_left) * _ROUNDING
    start = np.searchsorted(left, np.nan_to_num(from_left, nan=-np.inf))
    stop = np.searchsorted(left, high[:, 0], side="right")
    asked, places = spread(start, np.maximum(start, stop))
    apart = (second.low[others[places]] > high[asked]) | (second.high[others[places]] < low[asked])
    near = ~apart.any(axis=1)
    return rows[asked[near]], others[places[near]]
