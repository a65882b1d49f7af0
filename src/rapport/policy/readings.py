"""Readings: the columns that policies run on, and their conversion from events. [PO-2, PO-7]

A reading says that an instance of a concept had a value of an event-based attribute at a time. A
batch is an Arrow record batch: time, id, stream, source, key, then one column per part of every
stream's type.

Data in the canonical encoding `{"key":"5","value":[1.5,2]}` (no spaces, no escapes, the key first)
are parsed as columns: the positions of all commas or quotes give the fields, and every constant
part is compared, so that no other data is accepted and no field crosses two readings. Other data
are decoded one by one with the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.codec import decode_bare_block
from rapport.core.errors import Problem
from rapport.core.event import MAX_NAME, BareEvent, BareStoredEvent, Event, StoredEvent
from rapport.core.event_columns import (
    BlockEvents,
    EventColumns,
    Offsets,
    all_equal,
    column_bytes,
    column_offsets,
    decode_columns,
    slice_columns,
)
from rapport.core.schema import PARTS, AttributeType
from rapport.policy.ontology import Ontology
from rapport.units.areas import check_position

Octets = npt.NDArray[np.uint8]
Columns = tuple[pa.Array, list[pa.Array]]
"""Keys, and the parts of the values."""

_BEGIN, _MIDDLE, _END = b'{"key":"', b'","value":[', b"]}"
_TEXT_MIDDLE, _TEXT_END = b'","value":["', b'"]}'
_QUOTES, _TEXT_QUOTES, _KEY_QUOTE, _TEXT_QUOTE = 6, 8, 3, 7
"""Number of quotes in a reading, and which of them end the key and the text."""
_QUOTE, _COMMA, _ESCAPE, _MINUS, _DOT = (ord(sign) for sign in '",\\-.')
_ZERO = ord("0")
_IN_NUMBERS = b"0123456789.-+eE"


_REPEATED = 2**14
PART_TYPES: dict[AttributeType, pa.DataType] = {
    "text": pa.string(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "point": pa.float64(),
    "rectangle": pa.float64(),
    "area": pa.string(),
    "geo_point": pa.float64(),
    "geo_area": pa.string(),
}
_FAULTS = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)
FARTHEST_MS = 2**60
"""Limit of reading times, so that windows and lateness can be added within 64 bits."""
_MANY = 1_000
"""From this many readings on, columns are worth their preparation of 0.1 ms."""
Some = TypeVar("Some", Event, BareEvent)


@lru_cache(maxsize=64)
def _many_of(text: str) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), _REPEATED)


def repeated(text: str, count: int) -> pa.Array:
    """A column of one text; common sizes are slices of a cached one."""
    if count > _REPEATED or len(text) > MAX_NAME:
        return pa.repeat(pa.scalar(text, pa.string()), count)
    return _many_of(text)[:count]


class _Spread(NamedTuple):
    """The data of all readings in one buffer, with begin and end of each."""

    buffer: pa.Buffer
    octets: Octets
    begins: Offsets
    ends: Offsets


def columns_of_data(data: pa.Array, kind: AttributeType) -> Columns | None:
    """Keys and parts of the readings in a binary column without nulls; None when one of them is not
    canonical or not a reading.
    """
    spread = _spread(data)
    if spread is None:
        return None
    if kind == "text":
        return _text_columns(spread)
    tokens = _tokens(spread, len(PARTS[kind]))
    if tokens is None:
        return None
    keys, values = tokens
    read = _truths(values) if kind == "boolean" else _numbers(values)
    if read is None:
        return None
    count = len(keys)
    if kind == "geo_point" and not are_on_earth(*np.split(read.to_numpy(), 2)):
        return None
    return keys, [read[first : first + count] for first in range(0, len(read), count)]


def _spread(data: pa.Array) -> _Spread | None:
    """None when a character needs decoding or an item is too short."""
    edges = column_offsets(data).astype(np.int64)
    begins, ends = edges[:-1], edges[1:]
    if not len(data) or int((ends - begins).min()) < len(_BEGIN + _MIDDLE + _END):
        return None
    octets = column_bytes(data)
    if int(octets.min()) < 0x20 or (octets == _ESCAPE).any():
        return None
    if int(octets.max()) >= 0x80 and not _is_text(octets):
        return None
    return _Spread(data.buffers()[2], octets, begins, ends)


def _is_text(octets: Octets) -> bool:
    """Whether the bytes are UTF-8. Each reading begins and ends with an ASCII character, so the
    check of all is a check of each.
    """
    try:
        octets.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _places_of(spread: _Spread, sign: int, each: int) -> Offsets | None:
    """The positions of a character, a row per reading; None unless it occurs `each` times per
    reading in total. The caller checks which reading they are in.
    """
    places = np.flatnonzero(spread.octets == sign)
    if len(places) != each * len(spread.begins):
        return None
    places += spread.begins[0]
    return places.reshape(-1, each)


def _tokens(spread: _Spread, count: int) -> tuple[pa.Array, pa.Array] | None:
    """Keys, and the text of each part of a non-text value: the first part of all readings, then the
    second. With every constant part in place, an extra quote would be in a key, and an extra comma
    in a key or a value.
    """
    commas = _places_of(spread, _COMMA, count)
    if commas is None or np.count_nonzero(spread.octets == _QUOTE) != _QUOTES * len(commas):
        return None
    first = commas[:, 0]
    if not _is_framed(spread, first - 1, commas[:, -1] + 1, _MIDDLE, _END):
        return None
    places = [spread.begins + len(_BEGIN), first - 1, first - 1 + len(_MIDDLE)]
    for number in range(1, count):
        places += [commas[:, number], commas[:, number] + 1]
    places.append(spread.ends - len(_END))
    keys, values = slice_columns(spread.buffer, places, pa.string(), (1, count))
    return keys, values


def _text_columns(spread: _Spread) -> Columns | None:
    quotes = _places_of(spread, _QUOTE, _TEXT_QUOTES)
    if quotes is None:
        return None
    middle, last = quotes[:, _KEY_QUOTE], quotes[:, _TEXT_QUOTE]
    if not _is_framed(spread, middle, last, _TEXT_MIDDLE, _TEXT_END):
        return None
    if (last != spread.ends - len(_TEXT_END)).any():
        return None
    begins = spread.begins + len(_BEGIN)
    places = [begins, middle, middle + len(_TEXT_MIDDLE), last]
    keys, values = slice_columns(spread.buffer, places, pa.string(), (1, 1))
    return keys, [values]


def _is_framed(
    spread: _Spread, middle: Offsets, last: Offsets, between: bytes, after: bytes
) -> bool:
    """Whether every reading has the expected beginning, middle behind the key, and end, with `last`
    between middle and end.
    """
    begins, ends, buffer = spread.begins, spread.ends, spread.buffer
    in_order = (begins + len(_BEGIN) < middle) & (last <= ends - len(after))
    in_order &= middle + len(between) <= ends - len(after)
    return (
        bool(in_order.all())
        and all_equal(buffer, begins, _BEGIN)
        and all_equal(buffer, middle, between)
        and all_equal(buffer, ends - len(after), after)
    )


# --- values ---


def _truths(tokens: pa.Array) -> pa.Array | None:
    true = pc.equal(tokens, "true")
    known = pc.or_(true, pc.equal(tokens, "false"))
    return true if pc.all(known).as_py() else None


def are_on_earth(lon: npt.NDArray[np.float64], lat: npt.NDArray[np.float64]) -> bool:
    """Whether all are longitudes and latitudes; a missing one is not."""
    return bool((np.abs(lon) <= 180.0).all() and (np.abs(lat) <= 90.0).all())


def _numbers(tokens: pa.Array) -> pa.Array | None:
    """The numbers of the tokens; None when one is not a JSON number or is too large. Arrow accepts
    more forms than JSON, but rounds in the same way.
    """
    octets, edges = column_bytes(tokens), column_offsets(tokens).astype(np.int64)
    edges -= edges[0]
    if octets.tobytes().translate(None, _IN_NUMBERS):
        return None
    begins, ends = edges[:-1], edges[1:]
    if (begins == ends).any() or not _are_json(octets, begins, ends):
        return None
    try:
        numbers = pc.cast(tokens, pa.float64())
    except pa.ArrowInvalid:
        return None
    values = numbers.to_numpy()
    # An integer has no sign when it is zero: -0 is 0, and -0.0 is not.
    plain = (values == 0) & (octets[begins] == _MINUS) & (ends - begins == 2)
    return None if plain.any() or not np.isfinite(values).all() else numbers


def _are_json(octets: Octets, begins: Offsets, ends: Offsets) -> bool:
    """Whether each begins with a digit (after a minus), has no digit after a leading zero, ends
    with a digit, and has one after its point.
    """
    is_digit = octets - np.uint8(_ZERO) < 10
    last = ends - 1
    if not is_digit[last].all():
        return False
    # A token that ends with a digit has one after a minus and after a point.
    first = begins + (octets[begins] == _MINUS)
    zeros = first[(octets[first] == _ZERO) & (first < last)]
    points = np.flatnonzero(octets == _DOT)
    return bool(
        is_digit[first].all() and not is_digit[zeros + 1].any() and is_digit[points + 1].all()
    )


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


class _GeoPoint(msgspec.Struct, gc=False):
    key: str
    value: tuple[float, float]

    def __post_init__(self) -> None:
        if hint := check_position(*self.value):
            raise ValueError(f"{hint} - at `$.value`")


Payload = _Text | _Number | _Boolean | _Point | _Rectangle | _GeoPoint
_PAYLOADS: dict[AttributeType, Any] = {
    "text": _Text,
    "number": _Number,
    "boolean": _Boolean,
    "point": _Point,
    "rectangle": _Rectangle,
    "area": _Text,
    "geo_point": _GeoPoint,
    "geo_area": _Text,
}
_READ_ONE: dict[AttributeType, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(payload) for kind, payload in _PAYLOADS.items()
}


def read_payload(data: bytes, kind: AttributeType) -> Payload | Problem:
    """The payload of one event, or why it is not a reading."""
    try:
        row: Payload = _READ_ONE[kind].decode(data)
    except _FAULTS as error:
        code = "reading.bad_value" if "$.value" in str(error) else "reading.bad_data"
        hint = f'a reading is {{"key": "5", "value": [...]}} with {", ".join(PARTS[kind])}'
        return Problem(code=code, message=f"not a {kind}: {error}", hint=hint)
    return row if row.key else Problem(code="reading.no_key", message="the key is empty")


def columns_of_each(data: Sequence[bytes], kind: AttributeType) -> Columns | None:
    """Keys and parts of many readings; None when one of them is not a reading."""
    try:
        rows = list(map(_READ_ONE[kind].decode, data))
    except _FAULTS:
        return None
    keys = [row.key for row in rows]
    return None if "" in keys else (pa.array(keys, pa.string()), _parts(rows, kind))


def _parts(rows: Sequence[Payload], kind: AttributeType) -> list[pa.Array]:
    count = len(PARTS[kind])
    if PART_TYPES[kind] != pa.float64():
        return [pa.array([row.value[0] for row in rows], PART_TYPES[kind])]
    numbers = chain.from_iterable([row.value for row in rows])
    values = np.fromiter(numbers, np.float64, count * len(rows))
    return [pa.array(np.ascontiguousarray(values[place::count])) for place in range(count)]


def readings_schema(ontology: Ontology) -> pa.Schema:
    """The columns of readings: five common ones, then `<concept>.<attribute>.<part>`."""
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
    return PART_TYPES[kind]


class ReceivedReadings(NamedTuple):
    """Readings, and when the node received each; no times if no reading is ahead of its arrival."""

    readings: pa.RecordBatch
    times: npt.NDArray[np.int64] | None = None


def bare_readings(
    batch: Sequence[StoredEvent | BareStoredEvent], ontology: Ontology, skew_ms: int
) -> ReceivedReadings | None:
    """Readings of events without headers; None when one of them needs its headers: it is too far
    ahead, is not a reading, or its source is not declared.
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
    """Readings of whole events, and the other events with their problems."""
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
    """`split_events` for the bare events of log blocks, without decoding each if all are alike;
    raises Corrupt for invalid blocks.
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
    """The readings of the events, in their order, and the other events with their problems."""
    streams = ontology.streams()
    if any(event.type not in streams for event in events):
        events = [event for event in events if event.type in streams]
    readings = _readings_of_events(events, ontology, streams)
    if readings is not None:
        return readings, []
    found = [(event, _problem_of(event, streams[event.type])) for event in events]
    usable = [event for event, problem in found if problem is None]
    readings = _readings_of_events(usable, ontology, streams)
    assert readings is not None
    return readings, [(event, problem) for event, problem in found if problem is not None]


def _readings_of_columns(columns: EventColumns, ontology: Ontology) -> pa.RecordBatch | None:
    """Readings of bare events of one source and type; None when one needs decoding."""
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


def _readings_of_events(
    events: Sequence[Event | BareEvent], ontology: Ontology, streams: dict[str, AttributeType]
) -> pa.RecordBatch | None:
    """Readings of events, converted by stream and then put in the order of the events; None when
    one of them is not a reading.
    """
    schema, named = readings_schema(ontology), ontology.sources.keys()
    places: dict[str, list[int]] = {}
    for place, event in enumerate(events):
        places.setdefault(event.type, []).append(place)
    batches = []
    for stream, own in places.items():
        some = [events[place] for place in own] if len(places) > 1 else events
        batch = _one_stream(some, stream, streams[stream], named, schema)
        if batch is None:
            return None
        batches.append(batch)
    if len(batches) < 2:
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
    order = np.empty(len(events), np.int64)
    order[np.concatenate([np.array(own, np.int64) for own in places.values()])] = np.arange(
        len(events)
    )
    return pa.concat_batches(batches).take(pa.array(order))


def _one_stream(
    events: Sequence[Event | BareEvent],
    stream: str,
    kind: AttributeType,
    named: Collection[str],
    schema: pa.Schema,
) -> pa.RecordBatch | None:
    """Readings of many events of one stream; None when one needs decoding."""
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


def _are_near(times: npt.NDArray[np.int64]) -> bool:
    return not len(times) or -FARTHEST_MS < int(times.min()) <= int(times.max()) < FARTHEST_MS


def _columns(events: Sequence[Event | BareEvent], kind: AttributeType) -> Columns | None:
    """Keys and parts; each event is parsed alone, so that none can be part of its neighbour."""
    data = [event.data for event in events]
    found = columns_of_data(pa.array(data, pa.binary()), kind) if len(data) >= _MANY else None
    return columns_of_each(data, kind) if found is None else found


def _problem_of(event: Event | BareEvent, kind: AttributeType) -> Problem | None:
    """Why the event is not a reading."""
    if not -FARTHEST_MS < event.time < FARTHEST_MS:
        return Problem(code="reading.bad_time", message=f"{event.time} is out of range")
    found = read_payload(event.data, kind)
    return found if isinstance(found, Problem) else None


def _sources(events: Sequence[Event | BareEvent], named: Collection[str]) -> pa.Array:
    """The source of each event; usually one for all."""
    given = {event.source for event in events}
    if len(given) == 1 and given <= set(named):
        return repeated(given.pop(), len(events))
    return pa.array([_source(event, named) for event in events], pa.string())


def _source(event: Event | BareEvent, named: Collection[str]) -> str:
    """The declared push source of the event. An envelope may have another source; then the raw
    channel names it.
    """
    if event.source in named or isinstance(event, BareEvent):
        return event.source
    return event.headers.get("rawchannel", "").removeprefix("raw.") or event.source


def _batch(
    schema: pa.Schema, stream: str, own: Sequence[pa.Array], parts: list[pa.Array]
) -> pa.RecordBatch:
    """A batch of one stream from times, ids, sources and keys; columns of other streams are
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
