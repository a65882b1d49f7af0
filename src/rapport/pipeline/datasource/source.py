"""The data source `rapport`: channels as Spark DataFrames and streams, to read and to append to.
[PI-2]

Spark finds it by itself through the package `pyspark_rapport`. Needs pyspark 4.0 or newer; filters
are pushed down from 4.1 on, `most_rows` limits micro-batches from 4.2 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource as spark_datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructType

from rapport.channel.validation import check_channel_name
from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.datasource.append import AppendTarget, append_rows, check_columns
from rapport.pipeline.datasource.locations import (
    SiteSettings,
    last_site_settings,
    location_of,
    remember_site_settings,
    spans_of,
)
from rapport.pipeline.datasource.offsets import (
    ChannelSpan,
    Offset,
    PositionRange,
    check_offset,
    end_offset,
    limit_offset,
    skip_removed,
    split_ranges,
    start_offset,
)
from rapport.pipeline.datasource.rows import (
    CHANNEL_SCHEMA,
    HEADERS,
    ColumnCondition,
    column_condition,
    parse_where,
    prune_ranges,
    row_batches,
)
from rapport.pipeline.datasource.source_options import (
    EVERY_CHANNEL,
    SinkOptions,
    SourceOptions,
    sink_options,
    source_options,
)
from rapport.pipeline.errors import encoded_errors

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    _LIMITS_BATCHES = True
except ImportError:  # before Spark 4.2
    ReadAllAvailable = ReadMaxRows = SupportsTriggerAvailableNow = object
    _LIMITS_BATCHES = False

_StreamArrowWriter = getattr(spark_datasource, "DataSourceStreamArrowWriter", None)
_StreamWriter = _StreamArrowWriter or spark_datasource.DataSourceStreamWriter

_log = get_logger(__name__)
_SQL_TYPES = {"string": StringType(), "int64": LongType(), "binary": BinaryType()}
_HEADERS_TYPE = MapType(StringType(), StringType())
_FILTERS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "StringStartsWith": "starts",
    "StringEndsWith": "ends",
    "StringContains": "contains",
}
_QUERY, _EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"
_WRITE_ROWS = 1_000
_TABLE_OPTIONS = "rapport.options"


class RapportSource(DataSource):  # type: ignore[misc]
    """`format("rapport")`. Wrong options are refused before anything runs."""

    @classmethod
    def name(cls) -> str:
        return "rapport"

    def schema(self) -> StructType:
        with encoded_errors():
            source_options(self.options)
        columns = StructType()
        for field in CHANNEL_SCHEMA:
            columns = columns.add(field.name, _SQL_TYPES.get(str(field.type), _HEADERS_TYPE))
        if "provider" in self.options:
            # CREATE TABLE: Spark keeps the options, but gives a reader the schema only.
            columns.fields[0].metadata = {_TABLE_OPTIONS: dict(self.options)}
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the rows that the channels hold now."""
        with encoded_errors():
            options = source_options(self._all_options(schema))
            kind = FilteringReader if options.pushes_filters else ChannelReader
            return kind(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads the rows that the channels hold and those that follow."""
        with encoded_errors():
            options = source_options(self._all_options(schema))
            return ChannelStreamReader(options, arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Appends the rows of a batch."""
        with encoded_errors():
            options = sink_options(self._all_options(schema))
            return ChannelWriter(options, schema.fieldNames(), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Appends the rows of every micro-batch."""
        with encoded_errors():
            options = sink_options(self._all_options(schema))
            return ChannelStreamWriter(options, schema.fieldNames(), overwrite)

    def _all_options(self, schema: StructType) -> dict[str, str]:
        """The options of a catalogue table, if it is one, and those of the query."""
        kept = (field.metadata.get(_TABLE_OPTIONS) for field in schema.fields)
        return {**next(filter(None, kept), {}), **self.options}


# --- reading --------------------------------------------------------------------------------------


class ChannelReader(DataSourceReader):  # type: ignore[misc]
    """Reads the rows that the channels hold when the query is planned."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._pushed: list[ColumnCondition] = []

    def partitions(self) -> Sequence[InputPartition]:
        """One per range of positions that the conditions leave."""
        options = self._options
        with encoded_errors(), location_of(options.location).opened() as channels:
            spans = spans_of(channels, options.channels, streaming=False)
            start, end = start_offset(options.start, spans), end_offset(options.until, spans)
        return partitions_of(start, end, options, self._pushed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._schema, self._pushed)


class FilteringReader(ChannelReader):
    """Takes over the filters of a query (option `push_filters`).

    Not the default: Spark 4.1 to 4.3 keep the plan of a filtered read with the DataFrame and use it
    again for every other query of the same DataFrame, whose rows are then missing.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Returns the filters that Spark has to apply itself."""
        for one in filters:
            if type(one).__name__ == "IsNotNull":
                continue  # no column of a channel is ever null
            taken = as_condition(one)
            if taken is None:
                yield one
            else:
                self._pushed.append(taken)


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads the rows of the channels from an offset on."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._target: Offset | None = None
        if options.until != "end":
            raise InvalidInput(
                "a stream has no end: until is for batches",
                code="source.bad_option",
                hint="to stop at what is there now use .trigger(availableNow=True)",
            )
        if options.most_rows and not _LIMITS_BATCHES:
            _log.warning("most_rows needs Spark 4.2 or newer: micro-batches are not limited")

    def initialOffset(self) -> Offset:
        """The offset that the option `from` names."""
        with encoded_errors():
            return start_offset(self._options.start, self._spans())

    def getDefaultReadLimit(self) -> Any:
        """`most_rows`, or no limit."""
        most = self._options.most_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """The end of the next micro-batch. Spark before 4.2 gives neither start nor limit."""
        with encoded_errors():
            spans = self._spans()
            ends = {name: span.last for name, span in spans.items()}
            if start is None:
                return ends
            check_offset(start, spans)
            # Positions that retention removed would make thousands of empty batches.
            begin = skip_removed(self._with_all_channels(start, spans), spans)
            if self._target is not None:
                ends = {
                    name: max(min(last, self._target[name]), begin[name])
                    for name, last in ends.items()
                }
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return limit_offset(begin, ends, most, in_turn=self._options.in_turn)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the run."""
        self._target = self.reportLatestOffset()

    def reportLatestOffset(self) -> Offset:
        """The ends of the channels, from which Spark computes how far behind a query is."""
        with encoded_errors():
            return {name: span.last for name, span in self._spans().items()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One per range of positions."""
        with encoded_errors():
            spans = self._spans()
            check_offset(end, spans)
            begin = self._with_all_channels(start, spans)
            for name, span in spans.items():
                if (gone := min(span.first - 1, end.get(name, 0)) - begin[name]) > 0:
                    _log.warning("not in the log any more", channel=name, events=gone)
        ends = {name: last for name, last in end.items() if name in begin}
        return partitions_of(begin, ends, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._schema, ())

    def _spans(self) -> dict[str, ChannelSpan]:
        with location_of(self._options.location).opened() as channels:
            return spans_of(channels, self._options.channels, streaming=True)

    def _with_all_channels(self, start: Offset, spans: dict[str, ChannelSpan]) -> Offset:
        """Channels that the checkpoint does not have yet begin at their start."""
        return {name: start.get(name, span.first - 1) for name, span in spans.items()}


class ChannelPartition(InputPartition):  # type: ignore[misc]
    """A range of positions, with the site's settings as the planner read them: a worker may find
    the file while somebody edits it."""

    def __init__(self, positions: PositionRange, settings: SiteSettings | None) -> None:
        super().__init__(positions)
        self.settings = settings


def partitions_of(
    start: Offset, end: Offset, options: SourceOptions, pushed: Sequence[ColumnCondition] = ()
) -> list[InputPartition]:
    """The ranges between two offsets that conditions on positions and channels leave."""
    conditions = (*parse_where(options.where).simple, *pushed)
    settings = last_site_settings(options.location.site) if options.location.site else None
    ranges = prune_ranges(split_ranges(start, end), conditions)
    return [ChannelPartition(positions, settings) for positions in ranges]


def read_partition(
    partition: InputPartition,
    options: SourceOptions,
    schema: pa.Schema,
    pushed: Sequence[ColumnCondition],
) -> Iterator[pa.RecordBatch]:
    """The rows of a range that fulfil all conditions. Spark gives None when there is no range."""
    positions: PositionRange | None = partition.value
    if positions is None:
        return
    if isinstance(partition, ChannelPartition) and partition.settings is not None:
        remember_site_settings(options.location.site, partition.settings)
    where = parse_where(options.where)
    conditions = (*where.simple, *pushed)
    bare = HEADERS not in schema.names and where.rest is None
    with encoded_errors(), location_of(options.location).opened() as channels:
        chunks = channels.chunks(
            positions, conditions, bare=bare, passes_damage=options.passes_damage
        )
        yield from row_batches(chunks, positions.channel, schema, conditions, where.rest)


def as_condition(given: Any) -> ColumnCondition | None:
    """A filter of Spark as a condition of the source; None when Spark has to decide it."""
    negated = type(given).__name__ == "Not"
    inner = given.child if negated else given
    operation = _FILTERS.get(type(inner).__name__)
    if operation is None or len(inner.attribute) != 1:
        return None
    return column_condition(inner.attribute[0], operation, inner.value, negated=negated)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a read in Arrow's types; raises InvalidInput for one that channels lack."""
    for field in schema.fields:
        if field.name not in CHANNEL_SCHEMA.names:
            raise UnknownName(
                "column", field.name, CHANNEL_SCHEMA.names, code="source.unknown_column"
            )
        kind = str(CHANNEL_SCHEMA.field(field.name).type)
        right = _SQL_TYPES.get(kind, _HEADERS_TYPE).simpleString()
        if field.dataType.simpleString() != right:
            raise InvalidInput(
                f"the column {field.name!r} is {right}, not {field.dataType.simpleString()}",
                code="source.wrong_column",
            )
    return pa.schema([CHANNEL_SCHEMA.field(name) for name in schema.fieldNames()])


# --- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):  # type: ignore[misc]
    """Rows that a task appended, and how many of them the channel had already."""

    rows: int
    known: int


class ChannelWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Appends the rows of a batch. Tasks append by themselves; there is nothing to undo when a
    batch is aborted, since rows that are written again have the same ids."""

    def __init__(self, options: SinkOptions, columns: Sequence[str], overwrite: bool) -> None:
        self._target, self._token = _target(options, columns, overwrite), options.batch_token

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Appends the rows of a task."""
        token = f"{self._token}/{_task().partitionId()}" if self._token else ""
        return _append(self._target, iterator, token)


class ChannelStreamWriter(_StreamWriter):  # type: ignore[misc, valid-type]
    """Appends the rows of a stream. Rows without an id are named by query, epoch, partition and
    number, which are the same when an epoch is written again."""

    def __init__(self, options: SinkOptions, columns: Sequence[str], overwrite: bool) -> None:
        self._target = _target(options, columns, overwrite)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """Appends the rows of a task."""
        task = _task()
        query, epoch = task.getLocalProperty(_QUERY), task.getLocalProperty(_EPOCH)
        batches = iterator if _StreamArrowWriter else _arrow_batches(iterator)
        return _append(self._target, batches, f"{query}/{epoch}/{task.partitionId()}")


def _target(options: SinkOptions, columns: Sequence[str], overwrite: bool) -> AppendTarget:
    if overwrite:
        raise Unsupported("overwriting", "a channel", hint="use the mode append")
    check_columns(columns)
    if options.channel == EVERY_CHANNEL and "channel" not in columns:
        raise InvalidInput("the rows have no column 'channel'", code="sink.missing_column")
    return AppendTarget(
        location_of(options.location), options.channel, options.location.patience_ms
    )


def _append(target: AppendTarget, batches: Iterator[pa.RecordBatch], token: str) -> TaskCommit:
    with encoded_errors():
        if target.channel != EVERY_CHANNEL:
            written = append_rows(target, batches, token=token)
            return TaskCommit(written.rows, written.known)
        by_channel: dict[str, list[pa.RecordBatch]] = {}
        for batch in batches:
            names = batch.column("channel")
            for name in pc.unique(names).to_pylist():
                check_channel_name(name)
                by_channel.setdefault(name, []).append(batch.filter(pc.equal(names, name)))
        done = [
            append_rows(msgspec.structs.replace(target, channel=name), own, token=f"{token}/{name}")
            for name, own in by_channel.items()
        ]
        return TaskCommit(sum(one.rows for one in done), sum(one.known for one in done))


def _arrow_batches(rows: Iterator[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Spark 4.0 gives a stream writer rows, whose maps are dicts and whose times are local."""
    while portion := [row.asDict() for row in islice(rows, _WRITE_ROWS)]:  # type: ignore[attr-defined]
        for row in portion:
            if isinstance(row.get(HEADERS), dict):
                row[HEADERS] = list(row[HEADERS].items())
            if hasattr(row.get("time"), "timestamp"):
                row["time"] = round(row["time"].timestamp() * 1_000)
        fields = [CHANNEL_SCHEMA.field(name) for name in portion[0] if name != "data"]
        schema = pa.schema(fields)
        table = pa.Table.from_pylist(portion, schema=schema)
        data = pa.array([row["data"] for row in portion])
        yield from table.append_column("data", data).to_batches()


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a sink writes in a task of Spark"
    return context
