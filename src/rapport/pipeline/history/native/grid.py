"""Points in rectangles, and points near points, on Spark: joined by squares, then looked at
closely. [PI-5]

The squares are a small table that travels to every worker; nothing is shuffled. Exact where
`policy/relations.py` is: rectangles are closed, what is missing lies nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rapport.pipeline.history.native.cells import Cells, Level
from rapport.pipeline.history.native.spark_columns import in_box
from rapport.pipeline.history.native.values import Floats, boxes_around

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CELL = "grid cell"
CORNERS = ("x1", "y1", "x2", "y2")


def points_in_rectangles(
    rows: DataFrame, x: str, y: str, rectangles: pa.Table, *, corners: tuple[str, ...] = CORNERS
) -> DataFrame:
    """Each row once per rectangle that holds its point (`x`, `y` name columns), with the columns of
    `rectangles` beside, among which are `corners`. Rows in none are left out.
    """
    from pyspark.sql import functions as sql

    boxes = _numbers(rectangles, corners)
    found = _candidates(rows, x, y, rectangles, boxes)
    at_x, at_y = sql.col(x), sql.col(y)
    left, bottom, right, top = (sql.col(name) for name in corners)
    return found.where((left <= at_x) & (at_x <= right) & (bottom <= at_y) & (at_y <= top))


def points_near_points(
    rows: DataFrame, x: str, y: str, places: pa.Table, reach: float, *, at: tuple[str, str]
) -> DataFrame:
    """Each row once per place whose distance may be at most `reach`, with the columns of `places`
    beside, of which `at` are its x and y. Rows and places that miss a part are left out. The caller
    compares exactly: `squared_distance` has the roundings of the relationship.
    """
    from pyspark.sql import functions as sql

    points = _numbers(places, at)
    complete = ~np.isnan(points).any(axis=1)
    places, boxes = places.filter(pa.array(complete)), boxes_around(points[complete], reach)
    if boxes is not None:
        return _candidates(rows, x, y, places, boxes)
    known = rows.where(~sql.isnan(sql.col(x)) & ~sql.isnan(sql.col(y)))
    return known.crossJoin(sql.broadcast(rows.sparkSession.createDataFrame(places)))


def squared_distance(x: Column, y: Column, other_x: Column, other_y: Column) -> Column:
    """As `policy/relations.py` computes it."""
    across, upward = x - other_x, y - other_y
    return across * across + upward * upward


def _candidates(rows: DataFrame, x: str, y: str, table: pa.Table, boxes: Floats) -> DataFrame:
    """Rows with the entries of `table` whose box touches a square that the point lies in; not a
    number lies nowhere.
    """
    from pyspark.sql import functions as sql

    holding = (boxes[:, 0] <= boxes[:, 2]) & (boxes[:, 1] <= boxes[:, 3])
    table, boxes = table.filter(pa.array(holding)), boxes[holding]
    cells = Cells(boxes)
    listed = table.take(pa.array(cells.rows)).append_column(_CELL, pa.array(cells.cells))
    small = sql.broadcast(rows.sparkSession.createDataFrame(listed))
    at_x, at_y = sql.col(x), sql.col(y)
    if not len(boxes):
        return rows.where(sql.lit(False)).crossJoin(small).drop(_CELL)
    hull = (*boxes[:, :2].min(axis=0).tolist(), *boxes[:, 2:].max(axis=0).tolist())
    inner = rows.where(in_box(at_x, at_y, hull) & ~sql.isnan(at_x) & ~sql.isnan(at_y))
    numbered = [_number(at_x, at_y, level) for level in cells.levels]
    cell = numbered[0] if len(numbered) == 1 else sql.explode(sql.array(*numbered))
    return inner.withColumn(_CELL, cell).join(small, _CELL).drop(_CELL)


def _number(x: Column, y: Column, level: Level) -> Column:
    """The square of a point: the formula of `cells.py`, with its roundings."""
    from pyspark.sql import functions as sql

    if level.side == 1:
        return sql.lit(level.first).cast("bigint")

    def place(value: Column, axis: int) -> Column:
        exact = (value - sql.lit(level.low[axis])) / sql.lit(level.width[axis])
        # Bounded first: what is too large for a whole number would be an error.
        return sql.floor(sql.greatest(sql.lit(0.0), sql.least(exact, sql.lit(level.side - 1.0))))

    return sql.lit(level.first) + place(x, 0) * sql.lit(level.side) + place(y, 1)


def _numbers(table: pa.Table, columns: tuple[str, ...]) -> Floats:
    """Columns of numbers as (n, columns); null is not a number."""
    parts = [table.column(name).to_numpy(zero_copy_only=False) for name in columns]
    return np.column_stack(parts).astype(np.float64).reshape(len(table), len(columns))
