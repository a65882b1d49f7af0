"""Events near each other: square cells as wide as the reach, so that only nine need looking into.
[PO-6]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.policy.runners.operators.table import Rows, Table, spread

_AROUND = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]
_FURTHEST = 1 << 30
# A little wider than the reach: two quotients of points just the reach apart may be rounded apart.
_MARGIN = 1.001
_MOST_PAIRS = 1 << 21
_MANY_NEAR = 32


def cells_of(points: npt.NDArray[Any], reach: float) -> Rows:
    """The cell of each point; what lies beyond all cells, or nowhere, shares the outermost."""
    width = reach * _MARGIN if reach > 0 else 1.0
    # fmin and fmax pass over missing values, which therefore share the outermost cell.
    bounded = np.fmax(np.fmin(np.floor(points / width), _FURTHEST), -_FURTHEST)
    cells = bounded.astype(np.int64)
    packed: Rows = cells[:, 0] * (4 * _FURTHEST) + cells[:, 1]
    return packed


def partner_rows(
    table: Table, cells: Rows | None, low: Rows, high: Rows
) -> Iterator[tuple[Rows, Rows]]:
    """Pairs (question, row) of the rows in [low, high), only near ones where there are cells; in
    portions of bounded size.
    """
    step = _MOST_PAIRS // (_MANY_NEAR if cells is not None else max(len(table), 1))
    for first in range(0, len(low), max(step, 1)):
        some = slice(first, first + max(step, 1))
        if cells is None:
            owners, rows = spread(low[some], np.maximum(low[some], high[some]))
        else:
            owners, rows = near_rows(table, cells[some], low[some], high[some])
        yield owners + first, rows


def near_rows(table: Table, cells: Rows, low: Rows, high: Rows) -> tuple[Rows, Rows]:
    """Pairs (question, row) of the rows in [low, high) whose cell touches the one asked for."""
    found = []
    for x, y in _AROUND:
        start, stop = table.find("cell", cells + (x * 4 * _FURTHEST + y), low, high)
        owners, places = spread(start, stop)
        found.append((owners, table.rows_at("cell", places)))
    return np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])
