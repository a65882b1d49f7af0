"""Readings: the columns policies are executed on, and how events of the channel become them. [PO-2,
PO-7]

A reading says that an instance of a concept had a value of an event-based attribute at a time. A
batch of them is an Arrow record batch: time, id, stream, key, then one column per part of every
stream's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import Event
from rapport.core.schema import PARTS, AttributeType
from rapport.policy.ontology import Ontology

FARTHEST_MS = 2**60
"""No reading lies further from 1970: windows and lateness can be added without leaving 64 bits."""

_PART_TYPES: dict[AttributeType, pa.DataType] = {
    "text": pa.string(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "point": pa.float64(),
    "rectangle": pa.float64(),
}
_WORTH_ARROW = 200
"""From this many events on, Arrow's JSON reader is faster than msgspec one by one."""


class _Payload(msgspec.Struct):
    key: str
    value: list[Any]


_READ = msgspec.json.Decoder(_Payload)
_READ_MANY = msgspec.json.Decoder(list[_Payload])


def readings_schema(ontology: Ontology) -> pa.Schema:
    """The columns of readings: four of every stream, then `<concept>.<attribute>.<part>`."""
    fields = [
        ("time", pa.int64()),
        ("id", pa.string()),
        ("stream", pa.string()),
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


def split_events(
    events: Sequence[Event], ontology: Ontology
) -> tuple[pa.RecordBatch, list[tuple[Event, Problem]]]:
    """Readings of the events that are some, in their order, and the others with what is wrong with
    them.
    """
    streams = ontology.streams()
    schema = readings_schema(ontology)
    kinds = {event.type for event in events}
    if not kinds <= streams.keys():
        events = [event for event in events if event.type in streams]
        kinds &= streams.keys()
    if len(kinds) == 1:
        stream = kinds.pop()
        columns = _columns_at_once(events, streams[stream])
        if columns is not None:
            return _batch(schema, stream, events, *columns), []
    return _one_by_one(events, streams, schema)


def _columns_at_once(
    events: Sequence[Event], kind: AttributeType
) -> tuple[pa.Array, list[pa.Array]] | None:
    """Keys and parts of many events of one stream; None when one of them needs a closer look."""
    data = [event.data for event in events]
    if any(not -FARTHEST_MS < event.time < FARTHEST_MS for event in events):
        return None
    if len(data) >= _WORTH_ARROW:
        columns = _read_with_arrow(data, kind)
        if columns is not None:
            return columns
    try:
        rows = _READ_MANY.decode(b"[" + b",".join(data) + b"]")
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    if len(rows) != len(data) or any(_fault(row, kind) for row in rows):
        return None
    parts = zip(*(row.value for row in rows), strict=True) if rows else [[] for _ in PARTS[kind]]
    made = [pa.array(part, _PART_TYPES[kind]) for part in parts]
    return pa.array([row.key for row in rows], pa.string()), made


def _read_with_arrow(
    data: list[bytes], kind: AttributeType
) -> tuple[pa.Array, list[pa.Array]] | None:
    joined = b"\n".join(data)
    if joined.count(b"\n") != len(data) - 1:
        return None
    schema = pa.schema([("key", pa.string()), ("value", pa.list_(_PART_TYPES[kind]))])
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(joined) + 1, 1024))
    try:
        table = pyarrow.json.read_json(
            pa.py_buffer(joined), read_options=reading, parse_options=options
        )
    except pa.ArrowInvalid:
        return None
    keys, values = (table.column(name).combine_chunks() for name in ("key", "value"))
    lengths = pc.list_value_length(values)
    count = len(PARTS[kind])
    flat = values.flatten()
    sound = (
        len(keys) == len(data)
        and not keys.null_count + values.null_count + flat.null_count
        and pc.all(pc.equal(lengths, count)).as_py()
        and not pc.any(pc.equal(keys, "")).as_py()
    )
    return (keys, _every_nth(flat, count)) if sound else None


def _every_nth(flat: pa.Array, count: int) -> list[pa.Array]:
    if count == 1:
        return [flat]
    values = flat.to_numpy()
    return [pa.array(np.ascontiguousarray(values[place::count])) for place in range(count)]


def _fault(row: _Payload, kind: AttributeType) -> Problem | None:
    """What keeps a payload from being a value of the type."""
    if not row.key:
        return Problem(code="reading.no_key", message="the key is empty")
    if len(row.value) != len(PARTS[kind]):
        return Problem(
            code="reading.bad_value",
            message=f"a {kind} has {len(PARTS[kind])} parts, not {len(row.value)}",
            hint=f"give {', '.join(PARTS[kind])}",
        )
    wanted: Any = {"text": str, "boolean": bool}.get(kind, (int, float))
    for part in row.value:
        if not isinstance(part, wanted) or (isinstance(part, bool) and kind != "boolean"):
            return Problem(code="reading.bad_value", message=f"{part!r} is not a part of a {kind}")
    return None


def _one_by_one(
    events: Sequence[Event], streams: dict[str, AttributeType], schema: pa.Schema
) -> tuple[pa.RecordBatch, list[tuple[Event, Problem]]]:
    rejected: list[tuple[Event, Problem]] = []
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for event in events:
        row, fault = _look_closer(event, streams[event.type])
        if row is None:
            assert fault is not None
            rejected.append((event, fault))
            continue
        for column in columns.values():
            column.append(None)
        for name, value in (
            ("time", event.time),
            ("id", event.id),
            ("stream", event.type),
            ("key", row.key),
        ):
            columns[name][-1] = value
        for part, value in zip(PARTS[streams[event.type]], row.value, strict=True):
            columns[f"{event.type}.{part}"][-1] = value
    return pa.RecordBatch.from_pydict(columns, schema=schema), rejected


def _look_closer(event: Event, kind: AttributeType) -> tuple[_Payload | None, Problem | None]:
    if not -FARTHEST_MS < event.time < FARTHEST_MS:
        return None, Problem(code="reading.bad_time", message=f"{event.time} is out of range")
    try:
        row = _READ.decode(event.data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        hint = 'a reading is {"key": "5", "value": [1.5, 2.0]}'
        return None, Problem(code="reading.bad_data", message=str(error), hint=hint)
    fault = _fault(row, kind)
    return (None, fault) if fault is not None else (row, None)


def _batch(
    schema: pa.Schema, stream: str, events: Sequence[Event], keys: pa.Array, parts: list[pa.Array]
) -> pa.RecordBatch:
    """A batch of one stream; the columns of other streams are null."""
    count = len(events)
    own = {name: part for name, part in zip(_names(schema, stream), parts, strict=True)}
    arrays = [
        pa.array([event.time for event in events], pa.int64()),
        pa.array([event.id for event in events], pa.string()),
        pa.repeat(pa.scalar(stream), count),
        keys,
    ]
    for field in list(schema)[4:]:
        arrays.append(own[field.name] if field.name in own else pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _names(schema: pa.Schema, stream: str) -> list[str]:
    return [name for name in schema.names if name.rpartition(".")[0] == stream]
