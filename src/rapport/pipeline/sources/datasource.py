"""The data source `rapport`: channels as Spark's DataFrames and streams. [PI-2]

Loaded by Spark's own Python processes and by whoever registers it; needs pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
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
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rapport.core.errors import InvalidInput, UnknownName
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.sources.faults import told
from rapport.pipeline.sources.filters import Condition, condition, narrowed
from rapport.pipeline.sources.options import SourceOptions, sink_options, source_options
from rapport.pipeline.sources.place import place_of, spans_of
from rapport.pipeline.sources.planning import (
    Offset,
    Piece,
    Span,
    admit,
    begin_at,
    check_offset,
    end_at,
    past_gone,
    plan_pieces,
)
from rapport.pipeline.sources.reading import HEADERS, row_batches
from rapport.pipeline.sources.rows import CHANNEL_ROWS, CHANNEL_SCHEMA
from rapport.pipeline.sources.site_place import Said, recall, said_last
from rapport.pipeline.sources.where import read_where

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
        with told():
            source_options(self.options)
        return CHANNEL_ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        """What there is now."""
        with told():
            options = source_options(self.options)
            kind = PushingReader if options.pushes_filters else ChannelReader
            return kind(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What there is and what comes."""
        with told():
            return ChannelStreamReader(source_options(self.options), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Rows to be appended at once."""
        from rapport.pipeline.sources.sink import ChannelWriter

        with told():
            return ChannelWriter(sink_options(self.options), schema.fieldNames(), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Rows to be appended batch by batch."""
        from rapport.pipeline.sources.sink import ChannelStreamWriter

        with told():
            return ChannelStreamWriter(sink_options(self.options), schema.fieldNames(), overwrite)


class ChannelReader(DataSourceReader):  # type: ignore[misc]
    """The rows that the channels hold when the query is planned."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._pushed: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        """One per piece; none of what conditions leave out."""
        options = self._options
        with told(), place_of(options.place).opened() as opened:
            spans = spans_of(opened, options.channels, streaming=False)
            start, end = begin_at(options.start, spans), end_at(options.until, spans)
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
        with told():
            return begin_at(self._options.start, self._spans())

    def getDefaultReadLimit(self) -> ReadLimit:
        """`most_rows`, or everything."""
        most = self._options.most_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next micro-batch goes."""
        with told():
            spans = self._spans()
            check_offset(start, spans)
            # No batches of nothing: after a long pause there would be thousands.
            begin = past_gone(self._whole(start, spans), spans)
            ends = {name: span.last for name, span in spans.items()}
            if self._target is not None:
                ends = {
                    name: max(min(last, self._target[name]), begin[name])
                    for name, last in ends.items()
                }
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return admit(begin, ends, most, in_turn=self._options.in_turn)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is for another run."""
        with told():
            self._target = {name: span.last for name, span in self._spans().items()}

    def reportLatestOffset(self) -> Offset:
        """The ends of the channels, for whoever watches how far behind the query is."""
        with told():
            return {name: span.last for name, span in self._spans().items()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One per piece."""
        with told():
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

    def _spans(self) -> dict[str, Span]:
        with place_of(self._options.place).opened() as opened:
            return spans_of(opened, self._options.channels, streaming=True)

    def _whole(self, start: Offset, spans: dict[str, Span]) -> Offset:
        """The offset with channels that the checkpoint does not know yet: they begin at their
        start.
        """
        return {name: start.get(name, span.first - 1) for name, span in spans.items()}


class PlannedPiece(InputPartition):  # type: ignore[misc]
    """A piece as it travels to a worker, with what the planner read of the site: a worker that was
    just started may find it half-written.
    """

    def __init__(self, piece: Piece, said: Said | None) -> None:
        super().__init__(piece)
        self.said = said


def partitions_of(
    start: Offset, end: Offset, options: SourceOptions, pushed: Sequence[Condition] = ()
) -> list[InputPartition]:
    """The range in pieces, without what bounds on positions and channels leave out."""
    conditions = (*read_where(options.where).simple, *pushed)
    said = said_last(options.place.site) if options.place.site else None
    return [PlannedPiece(piece, said) for piece in narrowed(plan_pieces(start, end), conditions)]


def read_piece(
    partition: InputPartition,
    options: SourceOptions,
    schema: pa.Schema,
    pushed: Sequence[Condition],
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece that fulfil all conditions; no piece has none."""
    piece: Piece | None = partition.value
    if piece is None:
        return
    if isinstance(partition, PlannedPiece) and partition.said is not None:
        recall(options.place.site, partition.said)
    where = read_where(options.where)
    conditions = (*where.simple, *pushed)
    bare = HEADERS not in schema.names and where.rest is None
    with told(), place_of(options.place).opened() as opened:
        chunks = opened.chunks(piece, conditions, bare=bare, passes_damage=options.passes_damage)
        yield from row_batches(chunks, piece.channel, schema, conditions, where.rest)


def as_condition(given: Filter) -> Condition | None:
    """One of Spark's filters as a condition of ours; None when Spark has to decide it."""
    negated = isinstance(given, Not)
    plain: Any = given.child if negated else given
    operation = _OPERATIONS.get(type(plain))
    if operation is None or len(plain.attribute) != 1:
        return None
    return condition(plain.attribute[0], operation, plain.value, negated=negated)


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
