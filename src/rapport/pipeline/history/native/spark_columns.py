"""Small conditions as columns of Spark. [PI-5]"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from rapport.pipeline.history.native.cover import Cover
from rapport.pipeline.history.native.values import Interval

if TYPE_CHECKING:
    from pyspark.sql import Column


def in_box(x: Column, y: Column, box: tuple[float, float, float, float]) -> Column:
    """Whether a point lies in a closed rectangle. Not a number, which Spark holds to be larger
    than any, counts where there is no upper end.
    """
    return within(x, Interval(box[0], box[2])) & within(y, Interval(box[1], box[3]))


def within(number: Column, interval: Interval) -> Column:
    """Whether a number lies in an interval; not a number counts where there is no upper end."""
    from pyspark.sql import functions as sql

    low, high = sql.lit(interval.low), sql.lit(interval.high)
    above = number > low if interval.open_low else number >= low
    below = number < high if interval.open_high else number <= high
    if interval.high == math.inf:
        return above
    return below if interval.low == -math.inf else above & below


def any_of(parts: Iterable[Column]) -> Column:
    """Whether one of the conditions holds."""
    from pyspark.sql import functions as sql

    every = list(parts)
    return reduce(or_, every) if every else sql.lit(False)


def square_of(x: Column, y: Column, cover: Cover) -> Column:
    """The number of the square a point lies in; below 0, or one that is not covered, for what lies
    beyond all squares.
    """
    from pyspark.sql import functions as sql

    def place(value: Column, axis: int) -> Column:
        exact = (value - sql.lit(cover.low[axis])) / sql.lit(cover.width[axis])
        # Bounded first: what is too large for a whole number would be an error.
        beyond = sql.lit(cover.stride - 1.0)
        return sql.floor(sql.greatest(sql.lit(-1.0), sql.least(exact, beyond)))

    return place(x, 0) * sql.lit(int(cover.stride)) + place(y, 1)


def quoted(name: str) -> str:
    """A column's name, which may have dots."""
    return f"`{name}`"
