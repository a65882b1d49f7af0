"""Raw events through the generated Python, batch by batch. [ME-14, PI-4]

For interpretations that cannot be written as column expressions, and for single rows about which
expressions are not certain. The outcome of an event is a row: a reading, or the reason for its
rejection. One set of columns holds readings of every stream: numbers in `n1` to `n4` (a point has
two, a rectangle four), text and booleans in their own.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

from rapport.core.event import Event, StoredEvent
from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.memory import SourceMemory
from rapport.mediation.reader import EventTransformer
from rapport.mediation.reading_times import RepeatedHours
from rapport.mediation.rejections import Rejection
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.pipeline.mediation.meanings import Meanings, meaning_of, unpacked
from rapport.pipeline.mediation.worker_rows import (
    NAMES,
    NUMBERS,
    OUTCOME,
    PART_COLUMNS,
    RAW_COLUMNS,
)
from rapport.policy.ontology import Ontology
from rapport.policy.readings import FARTHEST_MS, split_events
from rapport.units.areas import check_position

Outcome = tuple[Any, ...]
"""In the order of `OUTCOME`."""
_PARTS = len(PART_COLUMNS)
_PLACES = {name: place for place, name in enumerate(PART_COLUMNS)}


class _Data(msgspec.Struct):
    key: str
    value: list[Any]


_READ = msgspec.json.Decoder(_Data)


@cache
def part_columns(kind: AttributeType) -> dict[str, str]:
    """Where the parts of an attribute's value are: from their names to columns.

    >>> part_columns("point"), part_columns("text")
    ({'x': 'n1', 'y': 'n2'}, {'value': 'words'})
    """
    if kind in ("text", "boolean"):
        return {PARTS[kind][0]: "words" if kind == "text" else "truth"}
    return dict(zip(PARTS[kind], NUMBERS, strict=False))


def of_reading(reading: Event, kind: AttributeType, ontology: Ontology, source: str) -> Outcome:
    """A reading as mediation appends it to `events`; one that policies cannot use, since no float
    can hold its numbers, they are no longitude and latitude, or its time is too far away, is
    rejected with what they say of it.
    """
    data = _READ.decode(reading.data)
    source = reading.source if reading.source in ontology.sources else source
    stamp = reading.headers.get("interpretation", "")
    first = (reading.time, reading.id, reading.type, source, data.key)
    parts: list[Any] = [None] * _PARTS
    try:
        for column, part in zip(part_columns(kind).values(), data.value, strict=True):
            parts[_PLACES[column]] = float(part) if column in NUMBERS else part
        is_place = kind != "geo_point" or not check_position(*map(float, data.value))
        if is_place and -FARTHEST_MS < reading.time < FARTHEST_MS:
            return (*first, *parts, stamp, None, None, None)
    except OverflowError:
        parts = [None] * _PARTS
    (_event, fault), *_ = split_events([reading], ontology)[1]
    time = reading.time if -(2**63) <= reading.time < 2**63 else None
    return (time, *first[1:], *parts, stamp, fault.code, fault.message, fault.hint)


def of_rejection(rejection: Rejection) -> Outcome:
    """Why a raw event has no meaning, in the words of the quarantine."""
    event = rejection.event
    first = (event.time, event.id, None, event.source, None)
    told = (rejection.interpretation, rejection.code, rejection.message, rejection.hint)
    return (*first, *([None] * _PARTS), *told)


_MOST_KEPT = 4
_kept: dict[str, tuple[Meanings, dict[str, EventTransformer]]] = {}

Row = tuple[str, Event]
"""The channel, and the raw event in it."""


class _Asked(msgspec.Struct):
    """A raw event as Spark writes it; what is null it leaves out."""

    channel: str
    time: int = 0
    source: str = ""
    id: str = ""
    type: str = ""
    subject: str = ""
    headers: dict[str, str] = {}
    data: str | None = None


_READ_ASKED = msgspec.json.Decoder(_Asked)


class ByRows:
    """Made on the driver, called in tasks; carries the meanings as bytes."""

    def __init__(self, meanings: Meanings, *, in_order: bool = False) -> None:
        """`in_order`: what conversions remember is kept from batch to batch of one task."""
        self._digest, self._packed = meanings.sent
        self._in_order = in_order

    def stream(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: from rows of channels to rows of outcomes with their raw event."""
        meanings, shared = _unpacked(self._digest, self._packed)
        built: dict[str, EventTransformer] = {} if self._in_order else shared
        hours: dict[str, RepeatedHours] | None = {} if self._in_order else None
        for batch in batches:
            outcomes = _outcomes(meanings, built, _rows(batch), hours)
            places = [place for place, found in enumerate(outcomes) for _ in found]
            raw = batch.select(list(RAW_COLUMNS))
            if places != list(range(len(batch))):
                raw = raw.take(pa.array(places, pa.int64()))
            made = _columns([one for found in outcomes for one in found])
            columns = [*made, pa.StructArray.from_arrays(raw.columns, raw.schema.names)]
            yield pa.RecordBatch.from_arrays(columns, names=[*NAMES, "raw"])


def answers(digest: str, packed: bytes, rows: Sequence[str]) -> list[str]:
    """What becomes of single rows, in any order; both as JSON."""
    meanings, built = _unpacked(digest, packed)
    read = [_asked(_READ_ASKED.decode(row)) for row in rows]
    return [_answer(found) for found in _outcomes(meanings, built, read)]


def _answer(outcomes: list[Outcome]) -> str:
    named = [dict(zip(NAMES, outcome, strict=True)) for outcome in outcomes]
    return msgspec.json.encode(named).decode()


def _asked(row: _Asked) -> Row:
    data = b"null" if row.data is None else base64.b64decode(row.data)
    event = Event(row.source, row.id, row.type, row.subject, row.time, data, row.headers)
    return row.channel, event


def _unpacked(digest: str, packed: bytes) -> tuple[Meanings, dict[str, EventTransformer]]:
    found = _kept.get(digest)
    if found is None:
        while len(_kept) >= _MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        found = _kept[digest] = (unpacked(packed), {})
    return found


def _rows(batch: pa.RecordBatch) -> list[Row]:
    def column(name: str) -> list[Any]:
        return batch.column(name).to_pylist()  # type: ignore[no-any-return]

    names = ("channel", "source", "id", "type", "subject", "time", "data", "headers")
    return [
        (
            channel,
            Event(
                source or "",
                id or "",
                type or "",
                subject or "",
                time or 0,
                b"null" if data is None else data,
                dict(headers) if headers else {},
            ),
        )
        for channel, source, id, type, subject, time, data, headers in zip(
            *map(column, names), strict=True
        )
    ]


def _columns(outcomes: list[Outcome]) -> list[pa.Array]:
    columns = zip(*outcomes, strict=True) if outcomes else [()] * len(NAMES)
    return [pa.array(column, field.type) for column, field in zip(columns, OUTCOME, strict=True)]


def _outcomes(
    meanings: Meanings,
    built: dict[str, EventTransformer],
    rows: list[Row],
    hours: dict[str, RepeatedHours] | None = None,
) -> list[list[Outcome]]:
    """Of each row what becomes of it; rows next to each other of one source go together, in order,
    so that what conversions remember is right. `hours`: by source, of rows in a file's order.
    """
    found: list[list[Outcome]] = [[] for _ in rows]
    begin = 0
    for end in range(1, len(rows) + 1):
        if end < len(rows) and rows[end][0] == rows[begin][0]:
            continue
        source = rows[begin][0].removeprefix(RAW_PREFIX)
        if source not in built:
            built[source] = meaning_of(meanings, source, SourceMemory(source))
        own = None
        if hours is not None:
            own = hours.setdefault(source, RepeatedHours(built[source].local_zone))
        _of_source(meanings, source, built[source], rows[begin:end], found[begin:end], own)
        begin = end
    return found


def _of_source(
    meanings: Meanings,
    source: str,
    meaning: EventTransformer,
    rows: list[Row],
    found: list[list[Outcome]],
    hours: RepeatedHours | None,
) -> None:
    """Positions may repeat or be anything, so the place among the rows stands in for them."""
    events = [StoredEvent(place, 0, event) for place, (_, event) in enumerate(rows)]
    readings, rejections = meaning.apply_many(events)
    if hours is not None:
        readings = hours.settle(readings)
    streams = meanings.ontology.streams()
    for reading in readings:
        kind = streams.get(reading.type)
        if kind is not None:  # a value that names a type of root is no reading
            place = int(reading.headers["rawposition"])
            found[place].append(of_reading(reading, kind, meanings.ontology, source))
    for rejection in rejections:
        found[rejection.position].append(of_rejection(rejection))
