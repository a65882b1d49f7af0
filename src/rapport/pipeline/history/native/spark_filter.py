"""An interest as columns of Spark: for readings on their way to the operators. [PI-5]

First a condition that Parquet understands, so that row groups are passed over unread; then the
exact one. Long lists of identities, and squares that cover many boxes, become small tables that
travel to every worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.core.errors import Unsupported
from rapport.pipeline.history.native.cover import Cover, cover_of
from rapport.pipeline.history.native.interest import Interest, Keys, Wanted
from rapport.pipeline.history.native.spark_columns import (
    any_of,
    in_box,
    quoted,
    square_of,
    within,
)
from rapport.pipeline.history.native.values import Boxes, Numbers, Texts, Values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FEW_KEYS = 256
"""More identities are not listed in the condition."""
_MOST_LISTS = 62
"""Bits of a number, one per long list of identities."""
_MARKS = "wanted marks"
_MOST_COVERS = 4
_SQUARE = "wanted square"


def spark_filtered(rows: DataFrame, interest: Interest) -> DataFrame:
    """The readings that matter, with the columns they had; `rows` have the columns of readings and
    perhaps others. Adds no shuffle.
    """
    condition = Condition(rows, interest)
    coarse = rows.where(condition.coarse())
    if condition.is_coarse():
        return coarse
    if condition.lists:
        coarse = _marked(coarse, condition.lists)
    for place, (stream, cover) in enumerate(condition.covers):
        coarse = _with_square(coarse, stream, cover, f"{_SQUARE} {place}")
    return coarse.where(condition.exact()).select(*map(quoted, rows.columns))


class Condition:
    """The conditions of one interest over the columns of one table."""

    def __init__(self, rows: DataFrame, interest: Interest) -> None:
        self._interest = interest
        self._booleans = {name for name, kind in rows.dtypes if kind == "boolean"}
        self._names = frozenset(rows.columns)
        long = [part.keys for part in interest.wanted if _is_long(part.keys)]
        distinct = list(dict.fromkeys(keys for keys in long if keys is not None))
        # A list for which no bit is left is not asked: that lets more through, never less.
        self.lists: list[Keys] = distinct[:_MOST_LISTS]
        covers = [
            (part.stream, cover_of(part.values.array()))
            for part in interest.wanted
            if isinstance(part.values, Boxes)
        ]
        self.covers = [one for one in dict.fromkeys(covers) if one[1].cells][:_MOST_COVERS]

    def is_coarse(self) -> bool:
        """Whether the coarse condition is the exact one already."""
        return not self.lists and not self.covers

    def coarse(self) -> Column:
        """A condition of comparisons of columns with constants only."""
        return self._of_parts(exact=False)

    def exact(self) -> Column:
        """Squares of points and long lists of identities too."""
        return self._of_parts(exact=True)

    def _of_parts(self, *, exact: bool) -> Column:
        from pyspark.sql import functions as sql

        found = [self._wanted(part, exact) for part in self._interest.wanted]
        if self._interest.sources:
            found.append(sql.col("source").isin(sorted(self._interest.sources)))
        if self._interest.began is not None:
            found.append(sql.col("time") == sql.lit(self._interest.began))
        return any_of(found)

    def _wanted(self, part: Wanted, exact: bool) -> Column:
        from pyspark.sql import functions as sql

        found = sql.col("stream") == sql.lit(part.stream)
        if part.values is not None:
            found = found & self._values(part.stream, part.values, exact)
        if part.keys is not None and not _is_long(part.keys):
            found = found & sql.col("key").isin(sorted(part.keys))
        elif exact and part.keys in self.lists:
            bit = 1 << self.lists.index(part.keys)
            found = found & (sql.col(quoted(_MARKS)).bitwiseAND(sql.lit(bit)) != sql.lit(0))
        return found

    def _values(self, stream: str, values: Values, exact: bool) -> Column:
        match values:
            case Numbers():
                number = self._part(f"{stream}.value")
                return any_of(within(number, one) for one in values.intervals)
            case Texts():
                text = self._part(f"{stream}.value", as_text=True)
                return text.isin(sorted(values.texts))
            case Boxes():
                return self._covered(stream, cover_of(values.array()), exact)

    def _covered(self, stream: str, cover: Cover, exact: bool) -> Column:
        """In the hull, and in a square of those that cover the boxes, or one of few boxes."""
        from pyspark.sql import functions as sql

        x, y = self._part(f"{stream}.x"), self._part(f"{stream}.y")
        if not cover.cells:
            return any_of(in_box(x, y, box) for box in cover.boxes)
        found = in_box(x, y, cover.hull)
        if not exact or (stream, cover) not in self.covers:
            return found
        square = sql.col(quoted(f"{_SQUARE} {self.covers.index((stream, cover))}"))
        return found & any_of([*(in_box(x, y, box) for box in cover.boxes), square.isNotNull()])

    def _part(self, name: str, *, as_text: bool = False) -> Column:
        from pyspark.sql import functions as sql

        if name not in self._names:
            raise Unsupported(f"readings without the column {name!r}", "the native filter")
        column = sql.col(quoted(name))
        if name in self._booleans:
            return column.cast("string" if as_text else "double")
        return column


def _marked(rows: DataFrame, lists: list[Keys]) -> DataFrame:
    """The rows with a number whose bits say in which lists their key stands."""
    from pyspark.sql import functions as sql

    marks: dict[str, int] = {}
    for place, keys in enumerate(lists):
        for key in keys:
            marks[key] = marks.get(key, 0) | 1 << place
    table = pa.table(
        {"key": pa.array(marks, pa.string()), _MARKS: pa.array(marks.values(), pa.int64())}
    )
    return rows.join(sql.broadcast(rows.sparkSession.createDataFrame(table)), "key", "left")


def _with_square(rows: DataFrame, stream: str, cover: Cover, name: str) -> DataFrame:
    """The rows with the square their point lies in; null where that is not covered."""
    from pyspark.sql import functions as sql

    x, y = (sql.col(quoted(f"{stream}.{part}")) for part in ("x", "y"))
    table = pa.table({name: pa.array([int(cell) for cell in cover.cells], pa.int64())})
    small = sql.broadcast(rows.sparkSession.createDataFrame(table))
    return rows.join(small, square_of(x, y, cover) == sql.col(quoted(name)), "left")


def _is_long(keys: Keys | None) -> bool:
    return keys is not None and len(keys) > FEW_KEYS
