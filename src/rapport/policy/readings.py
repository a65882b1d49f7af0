"""Readings: the columns policies are executed on, and how events of the channel become them. [PO-2,
PO-7]

A reading says that an instance of a concept had a value of an event-based attribute at a time. A
batch of them is an Arrow record batch: time, id, stream, source, key, then one column per part of
every stream's type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.codec import decode_bare_block
from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import BareEvent, BareStoredEvent, Event, StoredEvent
from rapport.core.event_columns import BlockEvents, EventColumns, decode_columns
from rapport.core.schema import PARTS, AttributeType
from rapport.policy.ontology import Ontology
from rapport.policy.reading_columns import Columns, columns_of_data, repeated
from rapport.policy.reading_payloads import PART_TYPES, Payload, columns_of_each, read_payload

FARTHEST_MS = 2**60
"""No reading lies further from 1970: windows and lateness can be added without leaving 64 bits."""

_MANY = 1_000
"""From so many readings on, columns are worth their preparation, which takes 0.1 ms."""

_SEVERAL = 64
"""The same for a batch of each stream."""

Some = TypeVar("Some", Event, BareEvent)


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
        fields += [(f"{stream}.{part}", PART_TYPES[kind]) for part in PARTS[kind]]
    return pa.schema(fields)


def part_type(kind: AttributeType) -> pa.DataType:
    """The column type of each part of an attribute."""
    return PART_TYPES[kind]


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


class ReceivedReadings(NamedTuple):
    """Readings, and when the node received each; no times where no reading is ahead of that."""

    readings: pa.RecordBatch
    times: npt.NDArray[np.int64] | None = None


def bare_readings(
    batch: Sequence[StoredEvent | BareStoredEvent], ontology: Ontology, skew_ms: int
) -> ReceivedReadings | None:
    """Readings of events without headers; None when one of them needs a closer look: it is dated
    further ahead than the skew, is no reading, or its source has no declared name.
    """
    if isinstance(batch, BlockEvents):
        return _readings_of_blocks(batch, ontology, skew_ms)
    bare = [item.event for item in batch if isinstance(item, BareStoredEvent)]
    if len(bare) < len(batch):
        return None
    ahead_ms = max((item.event.time - item.received for item in batch), default=0)
    streams = ontology.streams()
    given = {event.source for event in bare if event.type in streams}
    if ahead_ms > skew_ms or not given <= ontology.sources.keys():
        return None
    readings, rejected = split_events(bare, ontology)
    if rejected:
        return None
    return ReceivedReadings(readings, _times_received(batch, streams) if ahead_ms > 0 else None)


def received_readings(
    batch: Sequence[StoredEvent], ontology: Ontology
) -> tuple[ReceivedReadings, list[tuple[Event, Problem]]]:
    """Readings of whole events, and the events that are none with what is wrong with them."""
    readings, rejected = split_events([item.event for item in batch], ontology)
    if all(item.event.time <= item.received for item in batch):
        return ReceivedReadings(readings), rejected
    refused = {id(event) for event, _problem in rejected}
    kept = [item for item in batch if id(item.event) not in refused]
    return ReceivedReadings(readings, _times_received(kept, ontology.streams())), rejected


def _times_received(
    batch: Sequence[StoredEvent | BareStoredEvent], streams: Collection[str]
) -> npt.NDArray[np.int64]:
    return np.array([item.received for item in batch if item.event.type in streams], np.int64)


def _readings_of_blocks(
    batch: BlockEvents, ontology: Ontology, skew_ms: int
) -> ReceivedReadings | None:
    columns = batch.columns
    ahead = columns.times - batch.received
    if (ahead > skew_ms).any():
        return None
    if columns.type in ontology.streams() and columns.source not in ontology.sources:
        return None
    received = batch.received if (ahead > 0).any() else None
    readings = _readings_of_columns(columns, ontology)
    if readings is None:
        readings, rejected = split_events([item.event for item in batch], ontology)
        if rejected:
            return None
    return ReceivedReadings(readings, received)


def split_blocks(
    blocks: Sequence[bytes], ontology: Ontology
) -> tuple[pa.RecordBatch, list[tuple[BareEvent, Problem]]]:
    """What `split_events` gives of the bare events of log blocks, without making an event of each
    where all are alike; raises Corrupt when the bytes are not blocks.
    """
    columns = decode_columns(blocks)
    if columns is not None:
        readings = _readings_of_columns(columns, ontology)
        if readings is not None:
            return readings, []
    return split_events([event for block in blocks for event in decode_bare_block(block)], ontology)


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
    readings: pa.RecordBatch | None = None
    if len(kinds) == 1:
        stream = kinds.pop()
        readings = _one_stream(events, stream, streams[stream], named, schema)
    elif len(events) >= _SEVERAL:
        readings = _several_streams(events, {kind: streams[kind] for kind in kinds}, named, schema)
    return _one_by_one(events, streams, named, schema) if readings is None else (readings, [])


def _readings_of_columns(columns: EventColumns, ontology: Ontology) -> pa.RecordBatch | None:
    """Readings of bare events of one source and type; None when one needs a closer look."""
    schema, kind = readings_schema(ontology), ontology.streams().get(columns.type)
    if kind is None:
        return pa.RecordBatch.from_pylist([], schema=schema)
    found = columns_of_data(columns.data, kind) if _are_near(columns.times) else None
    if found is None:
        return None
    keys, parts = found
    source = repeated(columns.source, columns.count)
    own = [pa.array(columns.times), columns.ids, source, keys]
    return _batch(schema, columns.type, own, parts)


def _one_stream(
    events: Sequence[Event | BareEvent],
    stream: str,
    kind: AttributeType,
    named: Collection[str],
    schema: pa.Schema,
) -> pa.RecordBatch | None:
    """Readings of many events of one stream; None when one of them needs a closer look."""
    try:
        times = np.array([event.time for event in events], np.int64)
    except OverflowError:
        return None
    if not _are_near(times):
        return None
    found = _columns(events, kind)
    if found is None:
        return None
    keys, parts = found
    ids = pa.array([event.id for event in events], pa.string())
    return _batch(schema, stream, [pa.array(times), ids, _sources(events, named), keys], parts)


def _several_streams(
    events: Sequence[Event | BareEvent],
    kinds: dict[str, AttributeType],
    named: Collection[str],
    schema: pa.Schema,
) -> pa.RecordBatch | None:
    """Readings of many events of these streams, each stream at once, then put in the order of the
    events; None when one of them needs a closer look.
    """
    places: dict[str, list[int]] = {stream: [] for stream in kinds}
    for place, event in enumerate(events):
        places[event.type].append(place)
    batches = []
    for stream, own in places.items():
        batch = _one_stream([events[place] for place in own], stream, kinds[stream], named, schema)
        if batch is None:
            return None
        batches.append(batch)
    order = np.empty(len(events), np.int64)
    order[np.concatenate([np.array(own, np.int64) for own in places.values()])] = np.arange(
        len(events)
    )
    return pa.concat_batches(batches).take(pa.array(order))


def _are_near(times: npt.NDArray[np.int64]) -> bool:
    return not len(times) or -FARTHEST_MS < int(times.min()) <= int(times.max()) < FARTHEST_MS


def _columns(events: Sequence[Event | BareEvent], kind: AttributeType) -> Columns | None:
    """Keys and parts; each event is read alone, so that none can be part of its neighbour."""
    data = [event.data for event in events]
    found = columns_of_data(pa.array(data, pa.binary()), kind) if len(data) >= _MANY else None
    return columns_of_each(data, kind) if found is None else found


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
) -> tuple[Payload | None, Problem | None]:
    """The payload of one event, or what keeps it from being a reading."""
    if not -FARTHEST_MS < event.time < FARTHEST_MS:
        return None, Problem(code="reading.bad_time", message=f"{event.time} is out of range")
    found = read_payload(event.data, kind)
    return (None, found) if isinstance(found, Problem) else (found, None)


def _sources(events: Sequence[Event | BareEvent], named: Collection[str]) -> pa.Array:
    """The source of each event; mostly they share one."""
    given = {event.source for event in events}
    if len(given) == 1 and given <= set(named):
        return repeated(given.pop(), len(events))
    return pa.array([_source(event, named) for event in events], pa.string())


def _source(event: Event | BareEvent, named: Collection[str]) -> str:
    """The push source the event came from. Whoever publishes an envelope of his own may call
    himself as he likes; then the raw channel it came in by has the name.
    """
    if event.source in named or isinstance(event, BareEvent):
        return event.source
    return event.headers.get("rawchannel", "").removeprefix("raw.") or event.source


def _batch(
    schema: pa.Schema, stream: str, own: Sequence[pa.Array], parts: list[pa.Array]
) -> pa.RecordBatch:
    """A batch of one stream from times, ids, sources and keys; the columns of other streams are
    null.
    """
    times, ids, sources, keys = own
    count = len(times)
    named = dict(zip(_names(schema, stream), parts, strict=True))
    arrays = [times, ids, repeated(stream, count), sources, keys]
    for field in list(schema)[len(arrays) :]:
        arrays.append(named[field.name] if field.name in named else pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _names(schema: pa.Schema, stream: str) -> list[str]:
    return [name for name in schema.names if name.rpartition(".")[0] == stream]
