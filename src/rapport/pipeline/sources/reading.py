"""From stored events to Arrow batches of a channel's rows. Pure. [PI-2]

Headers cost more than all the rest of an event, so they are decoded only when somebody wants the
column. Conditions are decided on the columns they name; of the other rows nothing more is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.channel.query.compiler import Matches
from rapport.core.event import BareEvent, Event, StoredEvent
from rapport.pipeline.sources.filters import Condition
from rapport.pipeline.sources.rows import CHANNEL_SCHEMA

BATCH_ROWS = 10_000
BATCH_BYTES = 16 * 1024 * 1024
"""A batch is handed on when it has that many rows or bytes of data: memory stays bounded."""
PART_ROWS = 2_000
"""Columns are made for about that many rows at once: more events leave the processor's cache."""

HEADERS = "headers"
_TEXT, _NUMBER = pa.string(), pa.int64()


Numbers = npt.NDArray[np.int64]


class Chunk(msgspec.Struct):
    """Events that stand together in a channel, as a place gives them out."""

    positions: Sequence[int]
    received: Sequence[int]
    events: Sequence[Event] | Sequence[BareEvent]
    size: int
    """About how many bytes they are."""


class Rows:
    """Rows of one channel that become a batch; columns are made when they are asked for."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.positions: list[Numbers] = []
        self.received: list[Numbers] = []
        self.events: list[Any] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self.events)

    def add(self, chunk: Chunk) -> None:
        """Takes in more."""
        self.positions.append(_numbers(chunk.positions))
        self.received.append(_numbers(chunk.received))
        self.events += chunk.events
        self.size += chunk.size

    def chosen(self, mask: pa.Array) -> Rows:
        """The rows that a mask marks."""
        marked = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        if len(marked) == len(self):
            return self
        rows = Rows(self.channel)
        rows.positions = [np.concatenate(self.positions)[marked]]
        rows.received = [np.concatenate(self.received)[marked]]
        rows.events = [self.events[number] for number in marked.tolist()]
        return rows

    def column(self, name: str) -> pa.Array:
        """One column of CHANNEL_SCHEMA."""
        return _COLUMNS[name](self)

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema."""
        return pa.RecordBatch.from_arrays(
            [self.column(name) for name in schema.names], schema=schema
        )

    def stored(self) -> Iterator[StoredEvent]:
        """The rows as events, for what looks at each."""
        positions = np.concatenate(self.positions).tolist()
        received = np.concatenate(self.received).tolist()
        return map(StoredEvent, positions, received, self.events)


def row_batches(
    chunks: Iterable[Chunk],
    channel: str,
    schema: pa.Schema = CHANNEL_SCHEMA,
    conditions: Sequence[Condition] = (),
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
    chunks: Iterable[Chunk],
    channel: str,
    conditions: Sequence[Condition],
    matches: Matches | None,
) -> Iterator[Rows]:
    for rows in _parts(chunks, channel):
        for one in conditions:
            if rows:
                rows = rows.chosen(one.mask(rows.column(one.column)))
        if rows and matches is not None:
            rows = rows.chosen(pa.array([matches(stored) for stored in rows.stored()]))
        if rows:
            yield rows


def _parts(chunks: Iterable[Chunk], channel: str) -> Iterator[Rows]:
    rows = Rows(channel)
    for chunk in chunks:
        rows.add(chunk)
        if len(rows) >= PART_ROWS or rows.size >= BATCH_BYTES:
            yield rows
            rows = Rows(channel)
    yield rows


def _numbers(values: Sequence[int]) -> Numbers:
    if isinstance(values, range):
        return np.arange(values.start, values.stop)
    return np.fromiter(values, np.int64, len(values))


def _of_event(name: str, kind: pa.DataType) -> Callable[[Rows], pa.Array]:
    get = attrgetter(name)
    return lambda rows: pa.array(list(map(get, rows.events)), kind)


def _headers(rows: Rows) -> pa.Array:
    """Keys and values end to end, and where each event's begin: twice as fast as pairs."""
    headers: list[dict[str, str]] = [event.headers for event in rows.events]
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, headers), np.int32, len(headers)), out=offsets[1:])
    names: list[str] = []
    values: list[str] = []
    for one in headers:
        names += one
        values += one.values()
    return pa.MapArray.from_arrays(
        pa.array(offsets), pa.array(names, _TEXT), pa.array(values, _TEXT)
    )


_COLUMNS: dict[str, Callable[[Rows], pa.Array]] = {
    "channel": lambda rows: pa.repeat(pa.scalar(rows.channel, _TEXT), len(rows)),
    "position": lambda rows: pa.array(np.concatenate(rows.positions), _NUMBER),
    "received": lambda rows: pa.array(np.concatenate(rows.received), _NUMBER),
    "time": _of_event("time", _NUMBER),
    "source": _of_event("source", _TEXT),
    "id": _of_event("id", _TEXT),
    "type": _of_event("type", _TEXT),
    "subject": _of_event("subject", _TEXT),
    HEADERS: _headers,
    "data": _of_event("data", pa.binary()),
}
