"""A run over history as one Spark job: scan, spread, shuffle, operators, write. [PI-5, PI-10]

Spark plans the scan of the Parquet files: columns are pruned, and the time range and the status of
rows are pushed down as filters. The arrival order of a row is its file (`_metadata.file_path`) and
its place in it (`_metadata.row_index`); a row group is always read by one task, in order.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from rapport.core.errors import Unsupported
from rapport.core.schema import PARTS
from rapport.pipeline.history.exchange import (
    EXCHANGE_COLUMNS,
    MOST_FILE_ROWS,
    ORDER,
    Batches,
    Job,
    ScannedFile,
    run_parts,
    spread_rows,
    start_rows,
)
from rapport.pipeline.history.files import READING_COLUMNS, ReadingsFile, ReadingsFiles, Series
from rapport.pipeline.history.results import OUTPUT_COLUMNS, OutputFiles
from rapport.pipeline.history.rows import FIRST_PART
from rapport.pipeline.history.tables import Pull
from rapport.pipeline.lake.spark_tables import plan_text
from rapport.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PATTERN = frozenset("*?[]{}\\")
"""Characters that Spark takes for a pattern in the name of a file."""
_SQL = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "SMALLINT",
    pa.uint16(): "INT",
    pa.uint32(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.date32(): "DATE",
}
FileAt = tuple[int, int]
"""A file by its series and its number there."""


class Scan(msgspec.Struct):
    """Files that Spark reads in one scan: they have the same columns and types."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    only_column: str
    only: tuple[str, ...]
    time: str
    is_judged: bool
    files: dict[str, FileAt]
    """By path."""


def why_not_scanned(history: ReadingsFiles, streams: Collection[str]) -> str:
    """Why Spark cannot read the files with the same result; empty if it can. Raises SiteError for
    a file that is gone or damaged.
    """
    for series in history.series:
        if series.stream and len(set(series.value)) != len(PARTS[series.kind]):
            return f"the values of {series.source or series.stream} are not columns of their own"
        for file in series.files:
            if file.name.startswith((".", "_")) or _PATTERN & set(file.path):
                return f"Spark does not read a file called {file.name}"
            schema = file.arrow_schema()
            spelt = [name.lower() for name in schema.names]
            for name in _columns(series, schema, streams):
                if spelt.count(name.lower()) > 1:
                    return f"{file.name} has several columns {name!r}, which Spark confuses"
                if not _sql_type(schema.field(name).type):
                    return f"{name!r} of {file.name} is {schema.field(name).type}"
    return ""


def _columns(series: Series, schema: pa.Schema, streams: Collection[str]) -> list[str]:
    """The columns of a file that make readings."""
    if series.stream:
        return list(series.columns())
    own = [name for name in READING_COLUMNS if name in schema.names]
    return own + [name for name in schema.names if name.rpartition(".")[0] in streams]


def _sql_type(kind: pa.DataType) -> str:
    """As Spark names the type; empty if it does not read it as Arrow does."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            return ""
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _SQL.get(kind, "")


def scans_of(
    history: ReadingsFiles, job: Job, chosen: Collection[FileAt] | None = None
) -> list[Scan]:
    """The scans of a job; `chosen`: only these files."""
    streams = {name.rpartition(".")[0] for name in job.schema.names[FIRST_PART:]}
    found: dict[tuple[object, int], Scan] = {}
    taken: set[tuple[object, int, int]] = set()
    for number, series in enumerate(history.series):
        for place, file in enumerate(series.files):
            if not file.rows or (chosen is not None and (number, place) not in chosen):
                continue
            scan = _scan(series, file, streams, (number, place))
            # The same columns and types; files of one checksum cannot be told apart in a scan.
            kind = tuple(getattr(scan, name) for name in Scan.__struct_fields__[:-1])
            same = zlib.crc32(_file_path(file.path).encode())
            turn = 0
            while (kind, same, turn) in taken:
                turn += 1
            taken.add((kind, same, turn))
            found.setdefault((kind, turn), scan).files.update(scan.files)
    return list(found.values())


def _scan(series: Series, file: ReadingsFile, streams: Collection[str], at: FileAt) -> Scan:
    schema = file.arrow_schema()
    columns = _columns(series, schema, streams)
    return Scan(
        columns=tuple(columns),
        kinds=tuple(_sql_type(schema.field(name).type) for name in columns),
        only_column=series.only_column,
        only=series.only,
        time=series.time,
        is_judged=series.is_judged,
        files={file.path: at},
    )


class SparkEngine:
    """Runs jobs on a session, a classic or a Connect one."""

    def __init__(
        self,
        spark: SparkSession,
        pull: Pull,
        output: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            pull: tables as plain data (`tables_for_workers`).
            output: a directory that executors and this process reach; None: a temporary one.
            progress: called with the number of rows read, whenever a task of the scan ends.
        """
        self._spark, self._pull, self._output = spark, pull, output
        self._progress = progress

    def run(
        self, job: Job, history: ReadingsFiles, chosen: Collection[FileAt] | None = None
    ) -> OutputFiles:
        """Runs a job over the files, or those `chosen`."""
        made = OutputFiles.temporary()
        if self._output is not None:
            made = OutputFiles(self._output, self._load if "://" in self._output else None)
        history.check_unchanged()
        try:
            frame = self.frame(job, history, chosen)
            frame.write.partitionBy("kind").mode("overwrite").parquet(made.directory)
        finally:
            history.check_unchanged()
        return made

    def _load(self, folder: str) -> pa.Table:
        return self._spark.read.parquet(folder).toArrow()

    def explain(self, job: Job, history: ReadingsFiles) -> str:
        """The physical plan of a job."""
        return plan_text(self.frame(job, history))

    def frame(
        self, job: Job, history: ReadingsFiles, chosen: Collection[FileAt] | None = None
    ) -> DataFrame:
        """What executors write, as rows of OUTPUT."""
        shared = _Shared.of((job, self._pull))
        done = _counter(self._spark, self._progress)
        starts = pa.Table.from_batches([start_rows(job)])
        frames = [self._spark.createDataFrame(starts)]
        for scan in scans_of(history, job, chosen):
            frames.append(self._spread(scan, history, job, shared, done))
        every: DataFrame = reduce(lambda one, other: one.unionAll(other), frames)

        def run(batches: Batches) -> Iterator[pa.RecordBatch]:
            given, pull = shared.value()
            return run_parts(given, batches, pull)

        count = len(job.parts) + 1
        if hasattr(every, "repartitionById"):  # pyspark 4.1 and later
            spread = every.repartitionById(count, "part")
        else:
            spread = every.repartition(count, "part")
        return spread.sortWithinPartitions(*ORDER).mapInArrow(run, OUTPUT_COLUMNS)

    def _spread(
        self,
        scan: Scan,
        history: ReadingsFiles,
        job: Job,
        shared: _Shared,
        done: Callable[[int], None],
    ) -> DataFrame:
        from pyspark.sql import functions as sql

        rows = self._read(scan, job.window)
        files = _by_number(rows.inputFiles(), _scanned_files(scan, history, job))
        columns = scan.columns

        def spread(batches: Batches) -> Iterator[pa.RecordBatch]:
            given, pull = shared.value()
            return spread_rows(given, files, columns, batches, pull, done)

        # Names with dots do not reach Python: columns go by number.
        numbered = [sql.col(_quoted(name)).alias(f"c{at}") for at, name in enumerate(columns)]
        file = sql.crc32(sql.col("_metadata.file_path"))
        place = (file * MOST_FILE_ROWS + sql.col("_metadata.row_index")).alias("place")
        return rows.select(place, *numbered).mapInArrow(spread, EXCHANGE_COLUMNS)

    def _read(self, scan: Scan, window: tuple[int, int] | None) -> DataFrame:
        from pyspark.sql import functions as sql

        kinds = dict(zip(scan.columns, scan.kinds, strict=True))
        if scan.only_column:
            kinds.setdefault(scan.only_column, "STRING")
        schema = ", ".join(f"{_quoted(name)} {kind}" for name, kind in kinds.items())
        # Only the files named here, whatever the folders around them are called.
        reader = self._spark.read.schema(schema).option("recursiveFileLookup", "true")
        rows = reader.parquet(*map(_uri, scan.files))
        if scan.only_column:
            rows = rows.where(sql.col(_quoted(scan.only_column)).isin(list(scan.only)))
        if window is not None:
            in_time = _in_window(scan, kinds[scan.time], window)
            rows = rows if in_time is None else rows.where(in_time)
        return rows


def _in_window(scan: Scan, kind: str, window: tuple[int, int]) -> Column | None:
    """The rows whose times can matter; None: this cannot be said of the type.

    Where lateness is still to be judged, rows after the window are needed: they make others late.
    Rows before it make nothing in it late. Faulty rows without a time are reported.
    """
    from pyspark.sql import functions as sql

    column = sql.col(_quoted(scan.time))
    ends = [max(min(end, 2**52), -(2**52)) for end in window]
    if kind == "BIGINT":
        begin, end = (sql.lit(one) for one in ends)
    elif kind == "TIMESTAMP":
        begin, end = (sql.timestamp_millis(sql.lit(one)) for one in ends)
    else:
        return None
    if scan.is_judged:
        return (column >= begin) & (column < end)
    return (column >= begin) | column.isNull()


def _scanned_files(scan: Scan, history: ReadingsFiles, job: Job) -> dict[str, ScannedFile]:
    """The files of a scan by path, as workers know them."""
    numbers: dict[FileAt, list[int]] = {}
    for number, group in enumerate(job.groups):
        numbers.setdefault((group.series, group.file), []).append(number)
    found = {}
    for path, at in scan.files.items():
        file = history.series[at[0]].files[at[1]]
        own = numbers[at]
        found[path] = ScannedFile(
            at[0],
            file.name,
            tuple(file.arrow_schema().names),
            own[0],
            tuple(job.groups[number].row for number in own),
        )
    return found


def _by_number(inputs: Sequence[str], files: dict[str, ScannedFile]) -> dict[int, ScannedFile]:
    """The files by the checksum of their `_metadata.file_path`, which is short to send with every
    row; Spark writes `file:///` in one place and `file:/` in another.
    """
    found: dict[int, ScannedFile] = {}
    for uri in inputs:
        plain = unquote(uri)
        file = files.get(plain) or files[plain.removeprefix("file://").removeprefix("file:")]
        for spelling in {uri, uri.replace("file:///", "file:/", 1)}:
            number = zlib.crc32(spelling.encode())
            if found.setdefault(number, file) != file:
                raise Unsupported(f"{uri} beside a file of the same checksum", "Spark")
    return found


class _Shared:
    """An object for workers, sent as bytes and decoded once by each worker process."""

    _decoded: tuple[str, Any] = ("", None)

    def __init__(self, name: str, body: bytes) -> None:
        self._name, self._body = name, body

    @staticmethod
    def of(value: object) -> _Shared:
        body = pickle.dumps(value)
        return _Shared(hashlib.blake2b(body, digest_size=16).hexdigest(), body)

    def value(self) -> Any:
        if _Shared._decoded[0] != self._name:
            _Shared._decoded = (self._name, pickle.loads(self._body))
        return _Shared._decoded[1]


def _counter(spark: SparkSession, progress: Callable[[int], None] | None) -> Callable[[int], None]:
    """What tasks call with rows that they have read; the driver hears of it when a task ends. A
    Connect session has no such way back.
    """
    if progress is None or is_connect(spark):
        return _ignore
    from pyspark.accumulators import AccumulatorParam

    class Told(AccumulatorParam[int]):  # type: ignore[misc]
        """Plain addition; the driver's own copy reports the sum."""

        def __init__(self, tell: Callable[[int], None] | None) -> None:
            self._tell = tell

        def __reduce__(self) -> Any:
            return Told, (None,)

        def zero(self, value: int) -> int:
            return 0

        def addInPlace(self, value1: int, value2: int) -> int:
            if self._tell is not None and value2:
                self._tell(value2)
            return value1 + value2

    add: Callable[[int], None] = spark.sparkContext.accumulator(0, Told(progress)).add
    return add


def _ignore(rows: int) -> None:
    pass


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks run at a time."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions as sql

    parts = spark.range(1_024).select(sql.spark_partition_id().alias("part"))
    return int(parts.distinct().count())


def _file_path(path: str) -> str:
    """As `_metadata.file_path` has it, unless a character must be encoded."""
    return path if "://" in path else f"file:{path}"


def _uri(path: str) -> str:
    return path if "://" in path else f"file://{path}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
