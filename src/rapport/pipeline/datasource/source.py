"""The data source `rapport`: channels as Spark's DataFrames and streams. [PI-2]

Loaded by Spark's own Python processes and by whoever registers it; needs pyspark.

The sink `rapport`: rows appended to a channel exactly once. [PI-2]

Tasks append their rows themselves; what tells Spark that they are done is two numbers. There is
nothing to take back when a batch is aborted: it will be written again, and ids decide.

Makes `format("rapport")` known to a Spark session. [PI-2]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

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
    CHANNEL_ROWS,
    CHANNEL_SCHEMA,
    HEADERS,
    ColumnCondition,
    column_condition,
    parse_where,
    prune_ranges,
    row_batches,
)
from rapport.pipeline.datasource.source_options import (
    SinkOptions,
    SourceOptions,
    sink_options,
    source_options,
)
from rapport.pipeline.errors import encoded_errors, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

_TYPES = {"string": "string", "int64": "bigint", "binary": "binary"}
_OPERATIONS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
    StringStartsWith: "starts",
    StringEndsWith: "ends",
    StringContains: "contains",
}


class RapportSource(DataSource):  # type: ignore[misc]
    """`format("rapport")`, to read from and to write to."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rapport"

    def schema(self) -> str:
        """The columns of a channel; wrong options are told here, before anything runs."""
        with encoded_errors():
            source_options(self.options)
        return CHANNEL_ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        """What there is now."""
        with encoded_errors():
            options = source_options(self.options)
            kind = PushingReader if options.pushes_filters else ChannelReader
            return kind(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What there is and what comes."""
        with encoded_errors():
            return ChannelStreamReader(source_options(self.options), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Rows to be appended at once."""
        pass  # merged

        with encoded_errors():
            return ChannelWriter(sink_options(self.options), schema.fieldNames(), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Rows to be appended batch by batch."""
        pass  # merged

        with encoded_errors():
            return ChannelStreamWriter(sink_options(self.options), schema.fieldNames(), overwrite)


class ChannelReader(DataSourceReader):  # type: ignore[misc]
    """The rows that the channels hold when the query is planned."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._pushed: list[ColumnCondition] = []

    def partitions(self) -> Sequence[InputPartition]:
        """One per piece; none of what conditions leave out."""
        options = self._options
        with encoded_errors(), location_of(options.place).opened() as opened:
            spans = spans_of(opened, options.channels, streaming=False)
            start, end = start_offset(options.start, spans), end_offset(options.until, spans)
        return partitions_of(start, end, options, self._pushed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""
        return read_piece(partition, self._options, self._schema, self._pushed)


class PushingReader(ChannelReader):
    """The same with the filters that Spark hands over.

    Only when asked for: Spark 4.3 keeps what a filter left of a DataFrame and takes it for the
    whole when the same DataFrame is used again, which gives wrong results.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes the filters that can be decided here; gives the others back."""
        for one in filters:
            if isinstance(one, IsNotNull):
                continue  # no column of a channel is ever null
            taken = as_condition(one)
            if taken is None:
                yield one
            else:
                self._pushed.append(taken)


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The rows of the channels from an offset on."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._target: Offset | None = None
        if options.until != "end":
            raise InvalidInput(
                "a stream has no end: until is for batches",
                code="source.bad_option",
                hint="to stop at what is there now use .trigger(availableNow=True)",
            )

    def initialOffset(self) -> Offset:
        """Where the option `from` says."""
        with encoded_errors():
            return start_offset(self._options.start, self._spans())

    def getDefaultReadLimit(self) -> ReadLimit:
        """`most_rows`, or everything."""
        most = self._options.most_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next micro-batch goes."""
        with encoded_errors():
            spans = self._spans()
            check_offset(start, spans)
            # No batches of nothing: after a long pause there would be thousands.
            begin = skip_removed(self._whole(start, spans), spans)
            ends = {name: span.last for name, span in spans.items()}
            if self._target is not None:
                ends = {
                    name: max(min(last, self._target[name]), begin[name])
                    for name, last in ends.items()
                }
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return limit_offset(begin, ends, most, in_turn=self._options.in_turn)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is for another run."""
        with encoded_errors():
            self._target = {name: span.last for name, span in self._spans().items()}

    def reportLatestOffset(self) -> Offset:
        """The ends of the channels, for whoever watches how far behind the query is."""
        with encoded_errors():
            return {name: span.last for name, span in self._spans().items()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One per piece."""
        with encoded_errors():
            spans = self._spans()
            check_offset(end, spans)
            begin = self._whole(start, spans)
            for name, span in spans.items():
                if (gone := min(span.first - 1, end.get(name, 0)) - begin[name]) > 0:
                    _log.warning("not in the log any more", channel=name, events=gone)
        wanted = {name: last for name, last in end.items() if name in begin}
        return partitions_of(begin, wanted, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""
        return read_piece(partition, self._options, self._schema, ())

    def _spans(self) -> dict[str, ChannelSpan]:
        with location_of(self._options.place).opened() as opened:
            return spans_of(opened, self._options.channels, streaming=True)

    def _whole(self, start: Offset, spans: dict[str, ChannelSpan]) -> Offset:
        """The offset with channels that the checkpoint does not know yet: they begin at their
        start.
        """
        return {name: start.get(name, span.first - 1) for name, span in spans.items()}


class PlannedPiece(InputPartition):  # type: ignore[misc]
    """A piece as it travels to a worker, with what the planner read of the site: a worker that was
    just started may find it half-written.
    """

    def __init__(self, piece: PositionRange, said: SiteSettings | None) -> None:
        super().__init__(piece)
        self.said = said


def partitions_of(
    start: Offset, end: Offset, options: SourceOptions, pushed: Sequence[ColumnCondition] = ()
) -> list[InputPartition]:
    """The range in pieces, without what bounds on positions and channels leave out."""
    conditions = (*parse_where(options.where).simple, *pushed)
    said = last_site_settings(options.place.site) if options.place.site else None
    return [
        PlannedPiece(piece, said) for piece in prune_ranges(split_ranges(start, end), conditions)
    ]


def read_piece(
    partition: InputPartition,
    options: SourceOptions,
    schema: pa.Schema,
    pushed: Sequence[ColumnCondition],
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece that fulfil all conditions; no piece has none."""
    piece: PositionRange | None = partition.value
    if piece is None:
        return
    if isinstance(partition, PlannedPiece) and partition.said is not None:
        remember_site_settings(options.place.site, partition.said)
    where = parse_where(options.where)
    conditions = (*where.simple, *pushed)
    bare = HEADERS not in schema.names and where.rest is None
    with encoded_errors(), location_of(options.place).opened() as opened:
        chunks = opened.chunks(piece, conditions, bare=bare, passes_damage=options.passes_damage)
        yield from row_batches(chunks, piece.channel, schema, conditions, where.rest)


def as_condition(given: Filter) -> ColumnCondition | None:
    """One of Spark's filters as a condition of ours; None when Spark has to decide it."""
    negated = isinstance(given, Not)
    plain: Any = given.child if negated else given
    operation = _OPERATIONS.get(type(plain))
    if operation is None or len(plain.attribute) != 1:
        return None
    return column_condition(plain.attribute[0], operation, plain.value, negated=negated)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns that are wanted, as Spark checks them; raises InvalidInput for others than a
    channel has.
    """
    for field in schema.fields:
        if field.name not in CHANNEL_SCHEMA.names:
            raise UnknownName(
                "column", field.name, CHANNEL_SCHEMA.names, code="source.unknown_column"
            )
        kind = str(CHANNEL_SCHEMA.field(field.name).type)
        right = _TYPES.get(kind, "map<string,string>")
        if field.dataType.simpleString() != right:
            raise InvalidInput(
                f"the column {field.name!r} is {right}, not {field.dataType.simpleString()}",
                code="source.wrong_column",
            )
    return to_arrow_schema(schema, timezone="UTC")


_QUERY, _EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):  # type: ignore[misc]
    """What one task did."""

    rows: int
    known: int


class ChannelWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Rows of a batch."""

    def __init__(self, options: SinkOptions, columns: Sequence[str], overwrite: bool) -> None:
        _check_written(columns, overwrite)
        self._target, self._token = target_of(options), options.batch_token

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Appends the rows of a task."""
        token = f"{self._token}/{_context().partitionId()}" if self._token else ""
        return _append(self._target, iterator, token)


class ChannelStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Rows of a stream's micro-batches."""

    def __init__(self, options: SinkOptions, columns: Sequence[str], overwrite: bool) -> None:
        _check_written(columns, overwrite)
        self._target = target_of(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Appends the rows of a task; those without an id are named by query, epoch, partition and
        number, which are the same when the epoch is written again.
        """
        context = _context()
        query, epoch = context.getLocalProperty(_QUERY), context.getLocalProperty(_EPOCH)
        return _append(self._target, iterator, f"{query}/{epoch}/{context.partitionId()}")


def target_of(options: SinkOptions) -> AppendTarget:
    """The channel that the options name."""
    return AppendTarget(location_of(options.place), options.channel, options.place.patience_ms)


def _check_written(columns: Sequence[str], overwrite: bool) -> None:
    if overwrite:
        raise Unsupported("overwriting", "a channel", hint="use the mode append")
    check_columns(columns)


def _append(target: AppendTarget, batches: Iterator[pa.RecordBatch], token: str) -> TaskCommit:
    with encoded_errors():
        written = append_rows(target, batches, token=token)
    return TaskCommit(written.rows, written.known)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a sink writes in a task of Spark"
    return context


_PUSHES_FILTERS = "spark.sql.python.filterPushdown.enabled"


def register_datasource(spark: SparkSession) -> None:
    """The session can read and write channels from now on; a second call is no error.

    Spark's workers must have this package.
    """
    pass  # merged

    with spark_errors("registering the source of channels"):
        spark.conf.set(_PUSHES_FILTERS, "true")
        spark.dataSource.register(RapportSource)
