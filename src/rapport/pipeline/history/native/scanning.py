"""The files of a history as readings on Spark, for plans that Spark decides by itself. [PI-5]

Files in which nothing is late or faulty are read by Spark as they are; the others go through the
reader that the operators' tasks use, in a small step of Python, so that exactly the same rows
count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from rapport.core.schema import PARTS
from rapport.pipeline.history.feeds import GroupFacts
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, Series
from rapport.pipeline.history.footers import cannot_read
from rapport.pipeline.history.lateness import GroupAt, is_late
from rapport.pipeline.history.native.spark_columns import quoted
from rapport.pipeline.history.reading import Reader
from rapport.pipeline.history.rows import (
    CLOCK,
    FIRST_PART,
    ID,
    KEY,
    STREAM,
    TIME,
    Codes,
    rows_schema,
)
from rapport.policy.readings import part_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_SQL = {
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.float64(): "double",
    pa.bool_(): "boolean",
}
_PATTERN = frozenset("*?[]{}\\")
"""What Spark takes for a pattern in the name of a file."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A history of which every row group that matters was read once, and what that showed."""

    series: tuple[Series, ...]
    groups: tuple[GroupAt, ...]
    shown: dict[int, GroupFacts]
    """By the number of the group."""
    lateness_ms: int
    end: int
    """Readings from this time on do not count yet."""


def why_not_scanned(history: ReadingsFiles, streams: Collection[str]) -> str:
    """Why Spark cannot read the files as they are; empty when it can. Reads their schemas;
    raises SiteError for a file that is gone or damaged.
    """
    given = rows_schema(history.series, streams).names[FIRST_PART:]
    absent = set(streams) - {name.rpartition(".")[0] for name in given}
    if absent:
        return f"there are no files with readings of {', '.join(sorted(absent))}"
    for series in _of_streams(history.series, streams):
        wanted = _kinds(series, streams)
        if series.stream and len(set(series.value)) != len(PARTS[series.kind]):
            return f"the values of {series.source or series.stream} are not columns of their own"
        for file in series.files:
            reason = _why_not(file, wanted, is_whole=bool(series.stream))
            if reason:
                return reason
    return ""


def scanned(spark: SparkSession, judged: Judged, streams: Collection[str]) -> DataFrame:
    """The readings of some streams that are not late: `time, id, stream, key` and their parts."""
    schema = rows_schema(judged.series, streams)
    frames = []
    careful: list[int] = []
    for number, series in enumerate(judged.series):
        if not _matters(series, streams):
            continue
        as_it_is = [file for file in series.files if _is_plain(file)]
        odd = _odd_files(judged, number)
        clean = [] if series.left_out else [f for f in as_it_is if f.path not in odd]
        if clean:
            frames.append(_scan(spark, series, clean, streams))
        paths = {file.path for file in clean}
        careful += [
            place
            for place, at in enumerate(judged.groups)
            if at.series == number and series.files[at.file].path not in paths
        ]
    if careful or not frames:
        frames.append(_through_reader(spark, judged, careful, schema, streams))
    every = ["time", "id", "stream", "key", *schema.names[FIRST_PART:]]
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    for name in every:
        if name not in rows.columns:
            rows = rows.selectExpr("*", f"CAST(NULL AS {_SQL[schema.field(name).type]}) `{name}`")
    return rows.select(*map(quoted, every)).where(f"time < {judged.end}")


def read_rows(
    judged: Judged, numbers: Iterable[int], schema: pa.Schema, streams: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups that count, their columns named by number; no Spark in here."""
    codes = Codes.none()
    reader = Reader(judged.series, schema, codes)
    for number in numbers:
        at = judged.groups[number]
        for rows in reader.read(at, lambda problem: None):
            times = rows.column(TIME).to_numpy()
            kept = np.ones(len(rows), np.bool_)
            if not judged.series[at.series].is_judged:
                kept = ~is_late(times, rows.column(CLOCK).to_numpy(), judged.lateness_ms)
            wanted = [text in streams for text in codes.streams.known]
            kept &= np.array(wanted, np.bool_)[rows.column(STREAM).to_numpy()]
            if kept.any():
                yield _sent(rows.filter(pa.array(kept)), codes)


def _scan(
    spark: SparkSession, series: Series, files: Sequence[ReadingsFile], streams: Collection[str]
) -> DataFrame:
    from pyspark.sql import functions as sql
    from pyspark.sql import types

    kinds = _kinds(series, streams)
    if series.only_column:
        kinds[series.only_column] = pa.string()
    fields = [types.StructField(name, _spark_type(kind)) for name, kind in kinds.items()]
    # Only the files named here, whatever the folders around them are called.
    reader = spark.read.schema(types.StructType(fields)).option("recursiveFileLookup", "true")
    rows = reader.parquet(*(f"file://{file.path}" for file in files))
    if series.only_column:
        rows = rows.where(sql.col(quoted(series.only_column)).isin(list(series.only)))
    if not series.stream:
        return rows
    parts = [sql.col(quoted(own)).alias(name) for own, name in series.parts().items()]
    return rows.select(
        sql.col(quoted(series.time)).alias("time"),
        sql.col(quoted(series.id)).alias("id"),
        sql.lit(series.stream).alias("stream"),
        sql.col(quoted(series.key)).alias("key"),
        *parts,
    )


def _through_reader(
    spark: SparkSession,
    judged: Judged,
    numbers: Sequence[int],
    schema: pa.Schema,
    streams: Collection[str],
) -> DataFrame:
    wanted = frozenset(streams)
    names = ["time", "id", "stream", "key", *schema.names[FIRST_PART:]]
    kinds = [pa.int64(), pa.string(), pa.string(), pa.string()]
    kinds += [field.type for field in list(schema)[FIRST_PART:]]
    columns = ", ".join(f"c{place} {_SQL[kind]}" for place, kind in enumerate(kinds))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read_rows(judged, batch.column(0).to_pylist(), schema, wanted)

    if not numbers:
        return spark.createDataFrame([], columns).toDF(*names)
    given = spark.createDataFrame(pa.table({"number": pa.array(numbers, pa.int64())}))
    parts = min(len(numbers), 2 * int(spark.sparkContext.defaultParallelism))
    return given.repartition(parts).mapInArrow(read, columns).toDF(*names)


def _sent(rows: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    columns = [
        rows.column(TIME),
        rows.column(ID),
        codes.streams.column(rows.column(STREAM)).cast(pa.string()),
        codes.keys.column(rows.column(KEY)).cast(pa.string()),
        *rows.columns[FIRST_PART:],
    ]
    names = [f"c{place}" for place in range(len(columns))]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _odd_files(judged: Judged, series: int) -> set[str]:
    """Files with rows that do not count, or that nobody has read."""
    files = judged.series[series].files
    found = set()
    for number, at in enumerate(judged.groups):
        if at.series != series:
            continue
        shown = judged.shown.get(number)
        if shown is None or shown.late or shown.faulty:
            found.add(files[at.file].path)
    return found


def _of_streams(series: Iterable[Series], streams: Collection[str]) -> Iterator[Series]:
    return (one for one in series if _matters(one, streams))


def _matters(series: Series, streams: Collection[str]) -> bool:
    return bool(series.files) and (not series.stream or series.stream in streams)


def _kinds(series: Series, streams: Collection[str]) -> dict[str, pa.DataType]:
    """The columns of the files that make readings, with the types that readings have."""
    if series.stream:
        kinds = {series.time: pa.int64(), series.id: pa.string(), series.key: pa.string()}
        return kinds | dict.fromkeys(series.value, part_type(series.kind))
    parts = list(rows_schema([series], streams))[FIRST_PART:]
    kinds = {"time": pa.int64(), "id": pa.string(), "stream": pa.string(), "key": pa.string()}
    return kinds | {field.name: field.type for field in parts}


def _why_not(file: ReadingsFile, wanted: dict[str, pa.DataType], *, is_whole: bool) -> str:
    try:
        schema = pyarrow.parquet.read_schema(file.path)
    except (OSError, pa.ArrowException) as error:
        raise cannot_read(Path(file.path), error) from None
    name = file.path.rpartition("/")[2]
    spelt = [column.lower() for column in schema.names]
    for column, kind in wanted.items():
        if spelt.count(column.lower()) > 1:
            return f"{name} has several columns {column!r}, which Spark does not tell apart"
        if column not in schema.names:
            if is_whole or column in ("time", "id", "stream", "key"):
                return f"{name} has no column {column!r}"
            continue
        given = schema.field(column).type
        given = given.value_type if pa.types.is_dictionary(given) else given
        if given != kind or kind not in _SQL:
            return f"{column!r} of {name} is {given} and has to be converted"
    return ""


def _is_plain(file: ReadingsFile) -> bool:
    """Whether Spark reads a file by its name; hidden ones it passes over without a word."""
    name = file.path.rpartition("/")[2]
    return not name.startswith((".", "_")) and not _PATTERN & set(file.path)


def _spark_type(kind: pa.DataType) -> DataType:
    from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType

    known = {"bigint": LongType, "string": StringType, "double": DoubleType, "boolean": BooleanType}
    made: DataType = known[_SQL[kind]]()
    return made
