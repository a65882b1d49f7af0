"""Delta tables for Spark: read as a plain file scan, written by executors. [LK-1, LK-5]

Reading resolves the table's log to files and hands Spark a Parquet scan over them: partitions are
pruned, filters and columns pushed down, as `explain` shows. Where Delta's jars are on Spark's class
path the same tables open with `format("delta")` too. Writing: executors write Parquet files into
the table's folder and return what the log has to know of each; the driver commits them at once.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import date
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from rapport.lake.places import BRONZE, Lake
from rapport.lake.table import NewFile, Table, local_path, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1_000_000, 128 * 1024 * 1024

_BRONZE = (
    "channel STRING, position BIGINT, received BIGINT, time BIGINT, source STRING, id STRING, "
    "type STRING, subject STRING, headers MAP<STRING, STRING>, data STRING"
)
_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "large_string": "STRING",
    "binary": "BINARY",
    "large_binary": "BINARY",
    "date32[day]": "DATE",
    "timestamp[us]": "TIMESTAMP_NTZ",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
}


def read_table(
    spark: SparkSession, lake: Lake, layer: str, name: str = "", **bounds: tuple[Any, Any]
) -> DataFrame:
    """All rows of a table; `bounds` leave out files by partition or statistics. Empty with the
    table's columns where it has no files; raises UnknownName where there is no table.
    """
    table = lake.open(layer, name)
    return read_files(spark, table, [file.uri for file in table.files(**bounds)])


def read_bronze(
    spark: SparkSession,
    lake: Lake,
    *names: str,
    positions: Mapping[str, tuple[int, int]] | None = None,
    days: tuple[date | None, date | None] = (None, None),
) -> DataFrame:
    """The events of the named channels as one table, times in milliseconds, data as text. A name
    ending in `.*` stands for all channels below, `*` for all; one that the lake does not have has
    no rows. `positions`: of each channel only those after one, up to another. `days`: of arrival.
    """
    found: list[DataFrame] = []
    for channel in chosen_channels(lake.names(BRONZE), names):
        bounds: dict[str, tuple[Any, Any]] = {} if days == (None, None) else {"day": days}
        after, until = (positions or {}).get(channel, (None, None))
        if until is not None:
            bounds["position"] = (after, until)
        rows = read_table(spark, lake, BRONZE, channel, **bounds)
        if until is not None:
            rows = rows.where(f"position > {after} AND position <= {until}")
        found.append(
            rows.selectExpr(
                f"'{channel}' AS channel",
                "position",
                "unix_millis(received) AS received",
                "coalesce(time_ms, unix_millis(time)) AS time",
                *("source", "id", "type", "subject", "headers"),
                "coalesce(data, CAST(data_bytes AS STRING)) AS data",
            )
        )
    if not found:
        return spark.createDataFrame([], _BRONZE)
    return reduce(lambda all_rows, rows: all_rows.union(rows), found)


def chosen_channels(channels: Iterable[str], names: Sequence[str]) -> list[str]:
    """The channels that these names or patterns mean."""
    return [one for one in channels if any(_is_named(one, name) for name in names)]


class WrittenTable:
    """The whole content of a table that executors have written and nobody sees yet. Reading it
    costs a scan, whatever the plan was that made it."""

    def __init__(self, rows: DataFrame, lake: Lake, layer: str, name: str) -> None:
        schema = pa.schema(rows.limit(0).toArrow().schema)
        uri = lake.table_uri(layer, name)
        self._table = Table.ensure(uri, plain_schema(schema), options=lake.options)
        self._files = write_rows(rows, self._table, lake)

    def read(self, spark: SparkSession) -> DataFrame:
        return read_files(
            spark, self._table, [f"{self._table.uri}/{one.path}" for one in self._files]
        )

    def publish(self) -> None:
        """Replaces what the table had: a reader sees the old or the new rows."""
        self._table.replace_files(self._files)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Columns without Spark's notes, all of which may be null, as tables have them."""
    return pa.schema([pa.field(one.name, one.type) for one in schema])


def _is_named(channel: str, name: str) -> bool:
    if name == "*":
        return True
    return channel.startswith(name[:-1]) if name.endswith(".*") else channel == name


def read_files(spark: SparkSession, table: Table, files: Sequence[str]) -> DataFrame:
    """The rows of some files of a table."""
    columns = spark_schema(table.schema)
    if not files:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option("basePath", spark_path(table.uri, pattern=False))
    return reader.parquet(*map(spark_path, files))


def spark_schema(schema: pa.Schema) -> str:
    """The columns as Spark writes them in DDL."""
    return ", ".join(f"`{field.name}` {spark_type(field.type)}" for field in schema)


def spark_type(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = ", ".join(f"`{field.name}`: {spark_type(field.type)}" for field in kind)
        return f"STRUCT<{fields}>"
    return _NAMES[str(kind)]


def spark_path(uri: str, *, pattern: bool = True) -> str:
    """A URI as Spark reads it: not percent-encoded, and nothing in it looks like a pattern."""
    path = local_path(uri)
    text = f"file:{path}" if path is not None else uri.replace("s3://", "s3a://", 1)
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", text) if pattern else text


def write_rows(rows: DataFrame, table: Table, lake: Lake) -> list[NewFile]:
    """Executors write the rows into the table's folder; the driver gets a line for each file, to be
    committed with `table.commit`.
    """
    uri, schema, options, columns = table.uri, table.schema, lake.options, table.partition_by

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = TableFiles({"": uri}, options, columns)
        for batch in batches:
            yield from files.add("", pa.Table.from_batches([batch]).cast(schema))
        yield from files.finish()

    chosen = rows.select(*schema.names)
    return collect_table_files(chosen.mapInArrow(write, TABLE_FILES)).get("", [])


def plan_text(rows: DataFrame, mode: str = "formatted") -> str:
    """The physical plan, as `explain` prints it."""
    out = io.StringIO()
    with redirect_stdout(out):
        rows.explain(mode=mode)
    return out.getvalue()


TABLE_FILES = "name STRING, file BINARY"
"""The schema of what writing tasks return: the table's name, and a `NewFile`."""


class TableFiles:
    """Rows of several tables that a task collects and writes: files of some size, whatever the
    number of tables."""

    def __init__(
        self,
        uris: Mapping[str, str],
        options: Mapping[str, str],
        partition_by: Sequence[str] = ("day",),
    ) -> None:
        self._uris, self._options, self._partition_by = uris, options, list(partition_by)
        self._waiting: dict[str, list[pa.Table]] = {}
        self._rows = self._size = 0

    def add(self, name: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Takes rows of a table; yields what was written meanwhile."""
        if not rows.num_rows:
            return
        self._waiting.setdefault(name, []).append(rows)
        self._rows, self._size = self._rows + rows.num_rows, self._size + rows.nbytes
        if self._rows >= _ROWS_AT_ONCE or self._size >= _BYTES_AT_ONCE:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        for name, tables in sorted(self._waiting.items()):
            rows = pa.concat_tables(tables)
            new = write_files(self._uris[name], rows, self._partition_by, self._options)
            names = pa.array([name] * len(new), pa.string())
            encoded = pa.array([msgspec.msgpack.encode(file) for file in new], pa.binary())
            yield pa.RecordBatch.from_arrays([names, encoded], ["name", "file"])
        self._waiting, self._rows, self._size = {}, 0, 0


def collect_table_files(rows: DataFrame) -> dict[str, list[NewFile]]:
    """Runs the job that writes; the files by table. A task that ran twice has written files that
    nobody names.
    """
    found: dict[str, list[NewFile]] = {}
    for row in rows.toArrow().to_pylist():
        file = msgspec.msgpack.decode(row["file"], type=NewFile)
        found.setdefault(row["name"], []).append(file)
    return found
