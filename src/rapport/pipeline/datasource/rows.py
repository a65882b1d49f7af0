"""Rows of a channel: columns, conditions on them, and Arrow batches of stored events. Pure. [PI-2,
CH-4]

Times are milliseconds UTC as 64-bit integers; `data` is the event's JSON, untouched. Conditions
come from the option `where` or from Spark's filters. One on `position` narrows the ranges that are
read, one on `channel` skips channels, one on `received` skips blocks without decoding them; the
others are applied to Arrow columns before the remaining columns are made. Headers cost more than
all the rest of an event and are decoded only when their column is read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.channel.query import tree
from rapport.channel.query.compiler import Matches, compile_condition
from rapport.channel.query.parser import parse_condition
from rapport.core.event import BareEvent, Event, StoredEvent
from rapport.pipeline.datasource.offsets import PositionRange

CHANNEL_ROWS = (
    "channel STRING, position BIGINT, received BIGINT, time BIGINT, source STRING, id STRING, "
    "type STRING, subject STRING, headers MAP<STRING, STRING>, data BINARY"
)
"""The columns as a Spark schema."""

CHANNEL_SCHEMA = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("received", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("data", pa.binary()),
    ]
)
"""The columns as an Arrow schema."""

EVENT_COLUMNS = ("source", "id", "type", "subject", "time", "headers", "data")
"""Columns of the event itself, which the sink appends."""


NUMBERS = ("position", "received", "time")
TEXTS = ("channel", "source", "id", "type", "subject")

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}
_LIKE = {"starts": pc.starts_with, "ends": pc.ends_with, "contains": pc.match_substring}
# Texts are ordered by code points here and by their bytes in Arrow and Spark, which is the same.
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "starts": str.startswith,
    "ends": str.endswith,
    "contains": operator.contains,
}


class ColumnCondition(msgspec.Struct, frozen=True):
    """`column operation value`; `in` has a tuple of values. No column is ever null."""

    column: str
    operation: str
    value: Any
    negated: bool = False

    def mask(self, column: pa.Array) -> pa.Array:
        if self.operation == "in":
            found = pc.is_in(column, value_set=pa.array(self.value, column.type))
        elif self.operation in _LIKE:
            found = _LIKE[self.operation](column, pattern=self.value)
        else:
            found = _COMPARE[self.operation](column, pa.scalar(self.value, column.type))
        return pc.invert(found) if self.negated else found

    def holds(self, value: object) -> bool:
        if self.operation == "in":
            return (value in self.value) is not self.negated
        return _HOLDS[self.operation](value, self.value) is not self.negated


def column_condition(
    column: str, operation: str, value: object, *, negated: bool = False
) -> ColumnCondition | None:
    """The condition if the source decides it exactly as Spark would, else None."""
    if column in NUMBERS:
        is_right = _is_number
    elif column in TEXTS:
        is_right = _is_text
    else:
        return None
    if operation == "in":
        if not isinstance(value, Sequence) or isinstance(value, str):
            return None
        # `x NOT IN (1, NULL)` is never true.
        if None in value and negated:
            return None
        value = tuple(one for one in value if one is not None)
        return ColumnCondition(column, "in", value, negated) if all(map(is_right, value)) else None
    if operation in _LIKE and column not in TEXTS:
        return None
    return ColumnCondition(column, operation, value, negated) if is_right(value) else None


def prune_ranges(
    ranges: Iterable[PositionRange], conditions: Sequence[ColumnCondition]
) -> list[PositionRange]:
    """The parts of the ranges that conditions on channel and position leave."""
    low, high = _bounds([one for one in conditions if one.column == "position"])
    names = [one for one in conditions if one.column == "channel"]
    left = []
    for positions in ranges:
        after, through = max(positions.after, low - 1), min(positions.through, high)
        if after < through and all(one.holds(positions.channel) for one in names):
            left.append(PositionRange(positions.channel, after, through))
    return left


def may_hold(conditions: Sequence[ColumnCondition], received: int) -> bool:
    """Whether events received at this time can fulfil the conditions."""
    return all(one.holds(received) for one in conditions if one.column == "received")


def _bounds(conditions: Sequence[ColumnCondition]) -> tuple[int, int]:
    low, high = 1, 2**63 - 1
    for one in conditions:
        if one.negated:
            continue
        value = one.value
        if one.operation == "in" and value:
            low, high = max(low, min(value)), min(high, max(value))
        elif one.operation == "=":
            low, high = max(low, value), min(high, value)
        elif one.operation in (">", ">="):
            low = max(low, value + (one.operation == ">"))
        elif one.operation in ("<", "<="):
            high = min(high, value - (one.operation == "<"))
    return low, high


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_WHERE_OPERATIONS = {"=": "=", "<>": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


class WhereCondition(msgspec.Struct, frozen=True):
    """A condition in two parts, both of which must hold."""

    simple: tuple[ColumnCondition, ...] = ()
    """Applied to whole columns."""
    rest: Matches | None = None
    """Applied to each event."""


def parse_where(text: str) -> WhereCondition:
    """Parses the option `where` ("" = every row); raises QueryError."""
    if not text:
        return WhereCondition()
    whole = parse_condition(text)
    parts: Sequence[tree.Condition] = whole.parts if isinstance(whole, tree.And) else (whole,)
    simple = [(part, _simple(part)) for part in parts]
    others = tuple(part for part, found in simple if found is None)
    rest = None
    if others:
        rest = compile_condition(others[0] if len(others) == 1 else tree.And(others))
    return WhereCondition(tuple(found for _part, found in simple if found is not None), rest)


def _simple(part: tree.Condition) -> ColumnCondition | None:
    match part:
        case tree.Compare(operator, tree.Field((str(name),)), tree.Literal(value)):
            negated = operator == "<>"
            return column_condition(name, _WHERE_OPERATIONS[operator], value, negated=negated)
        case tree.In(tree.Field((str(name),)), choices):
            return column_condition(name, "in", tuple(choice.value for choice in choices))
    return None


BATCH_ROWS = 10_000
BATCH_BYTES = 16 * 1024 * 1024
"""Limits of a batch, which bound memory."""
PART_ROWS = 2_000
"""Rows for which columns are made at once: more events leave the processor's cache."""

HEADERS = "headers"
_ARROW_TEXT, _ARROW_NUMBER = pa.string(), pa.int64()


Numbers = npt.NDArray[np.int64]


class EventChunk(msgspec.Struct):
    """Neighbouring events of a channel, as a location reads them."""

    positions: Sequence[int]
    received: Sequence[int]
    events: Sequence[Event] | Sequence[BareEvent]
    size: int
    """Their size in bytes, roughly."""


class ChannelRows:
    """Rows of one channel that become a batch; columns are made on demand."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.positions: list[Numbers] = []
        self.received: list[Numbers] = []
        self.events: list[Any] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self.events)

    def add(self, chunk: EventChunk) -> None:
        self.positions.append(_numbers(chunk.positions))
        self.received.append(_numbers(chunk.received))
        self.events += chunk.events
        self.size += chunk.size

    def chosen(self, mask: pa.Array) -> ChannelRows:
        """The rows that a mask marks."""
        marked = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        if len(marked) == len(self):
            return self
        rows = ChannelRows(self.channel)
        rows.positions = [np.concatenate(self.positions)[marked]]
        rows.received = [np.concatenate(self.received)[marked]]
        rows.events = [self.events[number] for number in marked.tolist()]
        return rows

    def column(self, name: str) -> pa.Array:
        """One column of CHANNEL_SCHEMA."""
        return _COLUMNS[name](self)

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self.column(name) for name in schema.names], schema=schema
        )

    def stored(self) -> Iterator[StoredEvent]:
        positions = np.concatenate(self.positions).tolist()
        received = np.concatenate(self.received).tolist()
        return map(StoredEvent, positions, received, self.events)


def row_batches(
    chunks: Iterable[EventChunk],
    channel: str,
    schema: pa.Schema = CHANNEL_SCHEMA,
    conditions: Sequence[ColumnCondition] = (),
    matches: Matches | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows that fulfil all conditions and match, with the columns of `schema`, in order."""
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for chosen in _chosen(chunks, channel, conditions, matches):
        part = chosen.batch(schema)
        parts.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.concat_batches(parts)
            parts, rows, size = [], 0, 0
    if parts:
        yield pa.concat_batches(parts)


def _chosen(
    chunks: Iterable[EventChunk],
    channel: str,
    conditions: Sequence[ColumnCondition],
    matches: Matches | None,
) -> Iterator[ChannelRows]:
    for rows in _parts(chunks, channel):
        for one in conditions:
            if rows:
                rows = rows.chosen(one.mask(rows.column(one.column)))
        if rows and matches is not None:
            rows = rows.chosen(pa.array([matches(stored) for stored in rows.stored()]))
        if rows:
            yield rows


def _parts(chunks: Iterable[EventChunk], channel: str) -> Iterator[ChannelRows]:
    rows = ChannelRows(channel)
    for chunk in chunks:
        rows.add(chunk)
        if len(rows) >= PART_ROWS or rows.size >= BATCH_BYTES:
            yield rows
            rows = ChannelRows(channel)
    yield rows


def _numbers(values: Sequence[int]) -> Numbers:
    if isinstance(values, range):
        return np.arange(values.start, values.stop)
    return np.fromiter(values, np.int64, len(values))


def _of_event(name: str, kind: pa.DataType) -> Callable[[ChannelRows], pa.Array]:
    get = attrgetter(name)
    return lambda rows: pa.array(list(map(get, rows.events)), kind)


def _headers(rows: ChannelRows) -> pa.Array:
    """Keys and values end to end with offsets: twice as fast as pairs."""
    headers: list[dict[str, str]] = [event.headers for event in rows.events]
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, headers), np.int32, len(headers)), out=offsets[1:])
    names: list[str] = []
    values: list[str] = []
    for one in headers:
        names += one
        values += one.values()
    return pa.MapArray.from_arrays(
        pa.array(offsets), pa.array(names, _ARROW_TEXT), pa.array(values, _ARROW_TEXT)
    )


_COLUMNS: dict[str, Callable[[ChannelRows], pa.Array]] = {
    "channel": lambda rows: pa.repeat(pa.scalar(rows.channel, _ARROW_TEXT), len(rows)),
    "position": lambda rows: pa.array(np.concatenate(rows.positions), _ARROW_NUMBER),
    "received": lambda rows: pa.array(np.concatenate(rows.received), _ARROW_NUMBER),
    "time": _of_event("time", _ARROW_NUMBER),
    "source": _of_event("source", _ARROW_TEXT),
    "id": _of_event("id", _ARROW_TEXT),
    "type": _of_event("type", _ARROW_TEXT),
    "subject": _of_event("subject", _ARROW_TEXT),
    HEADERS: _headers,
    "data": _of_event("data", pa.binary()),
}
