"""Readings: the columns policies are executed on, and how events of the channel become them. [PO-2,
PO-7]

A reading says that an instance of a concept had a value of an event-based attribute at a time. A
batch of them is an Arrow record batch: time, id, stream, source, key, then one column per part of
every stream's type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from types import GenericAlias
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import BareEvent, BareStored, Event, StoredEvent
from rapport.core.schema import PARTS, AttributeType
from rapport.policy.ontology import Ontology

FARTHEST_MS = 2**60
"""No reading lies further from 1970: windows and lateness can be added without leaving 64 bits."""

Some = TypeVar("Some", Event, BareEvent)

_PART_TYPES: dict[AttributeType, pa.DataType] = {
    "text": pa.string(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "point": pa.float64(),
    "rectangle": pa.float64(),
}


class _Text(msgspec.Struct, gc=False):
    key: str
    value: tuple[str]


class _Number(msgspec.Struct, gc=False):
    key: str
    value: tuple[float]


class _Boolean(msgspec.Struct, gc=False):
    key: str
    value: tuple[bool]


class _Point(msgspec.Struct, gc=False):
    key: str
    value: tuple[float, float]


class _Rectangle(msgspec.Struct, gc=False):
    key: str
    value: tuple[float, float, float, float]


_Payload = _Text | _Number | _Boolean | _Point | _Rectangle
_PAYLOADS: dict[AttributeType, Any] = {
    "text": _Text,
    "number": _Number,
    "boolean": _Boolean,
    "point": _Point,
    "rectangle": _Rectangle,
}
_READ_ONE: dict[AttributeType, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(payload) for kind, payload in _PAYLOADS.items()
}
_READ_MANY: dict[AttributeType, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(GenericAlias(list, (payload,)))
    for kind, payload in _PAYLOADS.items()
}
_FAULTS = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)


def readings_schema(ontology: Ontology) -> pa.Schema:
    """The columns of readings: five of every stream, then `<concept>.<attribute>.<part>`."""
    fields = [
        ("time", pa.int64()),
        ("id", pa.string()),
        ("stream", pa.string()),
        ("source", pa.string()),
        ("key", pa.string()),
    ]
    for stream, kind in sorted(ontology.streams().items()):
        fields += [(f"{stream}.{part}", _PART_TYPES[kind]) for part in PARTS[kind]]
    return pa.schema(fields)


def part_type(kind: AttributeType) -> pa.DataType:
    """The column type of each part of an attribute."""
    return _PART_TYPES[kind]


def readings_from_events(events: Sequence[Event], ontology: Ontology) -> pa.RecordBatch:
    """Events of the `events` channel as readings, in their order; events of other types are left
    out.

    Raises InvalidInput for the first whose data is not a reading of its stream.
    """
    readings, rejected = split_events(events, ontology)
    if rejected:
        event, problem = rejected[0]
        raise InvalidInput(
            f"event {event.id!r}: {problem.message}", code=problem.code, hint=problem.hint
        )
    return readings


def bare_readings(
    batch: Sequence[StoredEvent | BareStored], ontology: Ontology, skew_ms: int
) -> pa.RecordBatch | None:
    """Readings of events without headers; None when one of them needs a closer look: it is dated
    ahead, is no reading, or its source has no declared name.
    """
    bare = [item.event for item in batch if isinstance(item, BareStored)]
    if len(bare) < len(batch) or any(item.event.time > item.received + skew_ms for item in batch):
        return None
    streams = ontology.streams()
    given = {event.source for event in bare if event.type in streams}
    if not given <= ontology.sources.keys():
        return None
    readings, rejected = split_events(bare, ontology)
    return None if rejected else readings


def split_events(
    events: Sequence[Some], ontology: Ontology
) -> tuple[pa.RecordBatch, list[tuple[Some, Problem]]]:
    """Readings of the events that are some, in their order, and the others with what is wrong with
    them.
    """
    streams = ontology.streams()
    schema = readings_schema(ontology)
    named = ontology.sources.keys()
    kinds = {event.type for event in events}
    if not kinds <= streams.keys():
        events = [event for event in events if event.type in streams]
        kinds &= streams.keys()
    if len(kinds) == 1:
        stream = kinds.pop()
        columns = _columns_at_once(events, streams[stream])
        if columns is not None:
            sources = _sources(events, named)
            return _batch(schema, stream, sources, events, *columns), []
    return _one_by_one(events, streams, named, schema)


def _columns_at_once(
    events: Sequence[Event | BareEvent], kind: AttributeType
) -> tuple[pa.Array, pa.Array, list[pa.Array]] | None:
    """Times, keys and parts of many events of one stream, decoded by one call; None when one of
    them needs a closer look.
    """
    try:
        times = np.array([event.time for event in events], np.int64)
    except OverflowError:
        return None
    if len(times) and not -FARTHEST_MS < times.min() <= times.max() < FARTHEST_MS:
        return None
    try:
        rows = _READ_MANY[kind].decode(b"[" + b",".join([event.data for event in events]) + b"]")
    except _FAULTS:
        return None
    keys = [row.key for row in rows]
    if len(rows) != len(events) or "" in keys:
        return None
    return pa.array(times), pa.array(keys, pa.string()), _parts(rows, kind)


def _parts(rows: Sequence[_Payload], kind: AttributeType) -> list[pa.Array]:
    count = len(PARTS[kind])
    if _PART_TYPES[kind] != pa.float64():
        return [pa.array([row.value[0] for row in rows], _PART_TYPES[kind])]
    numbers = chain.from_iterable([row.value for row in rows])
    values = np.fromiter(numbers, np.float64, count * len(rows))
    return [pa.array(np.ascontiguousarray(values[place::count])) for place in range(count)]


def _one_by_one(
    events: Sequence[Some],
    streams: dict[str, AttributeType],
    named: Collection[str],
    schema: pa.Schema,
) -> tuple[pa.RecordBatch, list[tuple[Some, Problem]]]:
    rejected: list[tuple[Some, Problem]] = []
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for event in events:
        row, fault = _look_closer(event, streams[event.type])
        if row is None:
            assert fault is not None
            rejected.append((event, fault))
            continue
        for column in columns.values():
            column.append(None)
        values: dict[str, Any] = {
            "time": event.time,
            "id": event.id,
            "stream": event.type,
            "source": _source(event, named),
            "key": row.key,
        }
        names = [f"{event.type}.{part}" for part in PARTS[streams[event.type]]]
        values |= zip(names, row.value, strict=True)
        for name, value in values.items():
            columns[name][-1] = value
    return pa.RecordBatch.from_pydict(columns, schema=schema), rejected


def _look_closer(
    event: Event | BareEvent, kind: AttributeType
) -> tuple[_Payload | None, Problem | None]:
    """The payload of one event, or what keeps it from being a reading."""
    if not -FARTHEST_MS < event.time < FARTHEST_MS:
        return None, Problem(code="reading.bad_time", message=f"{event.time} is out of range")
    try:
        row = _READ_ONE[kind].decode(event.data)
    except _FAULTS as error:
        code = "reading.bad_value" if "$.value" in str(error) else "reading.bad_data"
        hint = f'a reading is {{"key": "5", "value": [...]}} with {", ".join(PARTS[kind])}'
        return None, Problem(code=code, message=f"not a {kind}: {error}", hint=hint)
    if not row.key:
        return None, Problem(code="reading.no_key", message="the key is empty")
    return row, None


def _sources(events: Sequence[Event | BareEvent], named: Collection[str]) -> pa.Array:
    """The source of each event; mostly they share one."""
    given = {event.source for event in events}
    if len(given) == 1 and given <= set(named):
        return pa.repeat(pa.scalar(given.pop()), len(events))
    return pa.array([_source(event, named) for event in events], pa.string())


def _source(event: Event | BareEvent, named: Collection[str]) -> str:
    """The push source the event came from. Whoever publishes an envelope of his own may call
    himself as he likes; then the raw channel it came in by has the name.
    """
    if event.source in named or isinstance(event, BareEvent):
        return event.source
    return event.headers.get("rawchannel", "").removeprefix("raw.") or event.source


def _batch(
    schema: pa.Schema,
    stream: str,
    sources: pa.Array,
    events: Sequence[Event | BareEvent],
    times: pa.Array,
    keys: pa.Array,
    parts: list[pa.Array],
) -> pa.RecordBatch:
    """A batch of one stream; the columns of other streams are null."""
    count = len(events)
    own = {name: part for name, part in zip(_names(schema, stream), parts, strict=True)}
    arrays = [
        times,
        pa.array([event.id for event in events], pa.string()),
        pa.repeat(pa.scalar(stream), count),
        sources,
        keys,
    ]
    for field in list(schema)[len(arrays) :]:
        arrays.append(own[field.name] if field.name in own else pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _names(schema: pa.Schema, stream: str) -> list[str]:
    return [name for name in schema.names if name.rpartition(".")[0] == stream]
