"""Present values, curves and positions of all things, folded from the log of canonical readings.
[CN-5]

A thing is an instance of a concept. Its present values are its newest readings and the rows of its
tables. The fold begins with the newest readings, follows the log from there, and reads backwards a
little at each request until it has seen the whole log; so a page has fresh values at once however
long the log is. A curve is read from the log (and from the lake for what the log no longer holds)
when it is requested.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from rapport.channel.channel import Channel, Channels, HeaderlessReader
from rapport.channel.event_lookup import oldest
from rapport.core.errors import UnknownName
from rapport.core.event import BareStoredEvent, StoredEvent
from rapport.core.event_columns import BlockEvents
from rapport.core.schema import AttributeType
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import run_blocking
from rapport.policy.ontology import Ontology
from rapport.tables.instances import Instances
from rapport.tables.tables import Tables

EVENTS = "events"
_PAGE = 5_000
_FIRST_LOOK = 50_000
"""Newest readings that the first request folds before it answers."""
_BACKWARDS_FOR_NS = 200_000_000
"""How long one request reads further back."""
_MOST_KEYS = 2_000_000
_MOST_SCANNED = 1_000_000
"""Events of one curve that are looked at; older ones are left out, and the curve says so."""
_MOST_POINTS = 600
_MOST_STEPS = 1_000
_AHEAD_MS = 3_600_000
"""A clock that is fast by less than this hides no reading from a curve."""

Light = StoredEvent | BareStoredEvent
Value = list[Any]
"""The parts of a value in the order of its type: one for texts and numbers, x and y for points."""


class _Reading(msgspec.Struct, gc=False):
    key: str
    value: msgspec.Raw


_DECODE = msgspec.json.Decoder(_Reading)
_VALUE = msgspec.json.Decoder(list[Any])


class LatestReading(msgspec.Struct, frozen=True, gc=False):
    """The newest reading of one attribute of one thing; the value stays undecoded."""

    time: int
    received: int
    position: int
    source: str
    id: str
    value: bytes


class AttributeView(msgspec.Struct, frozen=True, kw_only=True):
    """An attribute of a concept."""

    name: str
    type: AttributeType
    unit: str = ""
    live: bool = False
    """Readings give it; otherwise tables do."""


class ConceptView(msgspec.Struct, frozen=True, kw_only=True):
    """A concept and how many instances of it are known."""

    name: str
    count: int
    attributes: list[AttributeView]


class PresentValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a thing has now."""

    attribute: str
    type: AttributeType
    value: Value
    unit: str = ""
    time: int = 0
    """Event time of the reading; 0 when a table gives the value."""
    received: int = 0
    source: str = ""
    """The source of the reading."""
    reading: str = ""
    """The id of the reading."""


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of a concept with its present values."""

    concept: str
    id: str
    name: str
    """What people call it: its attribute `name` where it has one, else its id."""
    heard: int = 0
    """Event time of its newest reading; 0 when there was none."""
    values: list[PresentValue] = []


class ThingList(msgspec.Struct, frozen=True, kw_only=True):
    """A part of all things, in the order of their ids."""

    concepts: list[ConceptView]
    total: int
    """How many things match, all parts together."""
    things: list[Thing]
    complete: bool
    """Whether the whole log was read; until then things that are quiet may be missing."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one attribute over a time. Numbers in as many stretches as a screen has points,
    each with its newest, lowest and highest value; of other types every change.
    """

    attribute: str
    type: AttributeType
    unit: str
    since: int
    until: int
    count: int
    """Readings in this time."""
    times: list[int]
    values: list[Any]
    low: list[float] = []
    high: list[float] = []
    readings: list[str] = []
    """The id of the reading behind each value."""
    complete: bool = True
    """False: more readings than are looked at; the oldest are missing."""


class PlacedThing(msgspec.Struct, frozen=True, kw_only=True):
    """A position (x, y) or an area (x1, y1, x2, y2) on the plan."""

    concept: str
    id: str
    name: str
    attribute: str
    value: list[float]
    time: int = 0


class SourceNews(msgspec.Struct, kw_only=True):
    """When a source was heard last."""

    received: int = 0
    count: int = 0
    """Readings folded so far."""


class Things:
    """The things of a node. All calls belong to one event loop."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._channels, self._clock = channels, clock
        self._latest: dict[str, dict[str, LatestReading]] = {}
        """By stream (`concept.attribute`) and key."""
        self.sources: dict[str, SourceNews] = {}
        self._newest = self._oldest = 0
        """The fold has seen the positions after `_oldest` up to `_newest`."""
        self._is_begun = self.is_complete = False
        self._keys = 0
        self._turn = asyncio.Lock()
        self._sorted: dict[str, tuple[tuple[int, ...], list[str]]] = {}
        self._folded: dict[str, list[str]] = {}

    async def refresh(self) -> None:
        """Folds what is new, and a part of what is old."""
        async with self._turn:
            channel = self._channels.channel(EVENTS)
            last = channel.last_position()
            if not self._is_begun:
                self._newest = self._oldest = max(last - _FIRST_LOOK, 0)
                self._is_begun = True
            async for batch in _batches(channel, self._newest, last):
                await run_blocking(lambda batch=batch: self._fold(batch))  # type: ignore[misc]
                self._newest = batch[-1].position
            self._newest = max(self._newest, last)
            await self._read_back(channel)

    async def _read_back(self, channel: Channel) -> None:
        if self.is_complete:
            return
        first = await oldest(channel)
        begin = first.position - 1 if first is not None else self._oldest
        end_ns = self._clock.steady_ns() + _BACKWARDS_FOR_NS
        while self._oldest > begin and self._clock.steady_ns() < end_ns:
            low = max(self._oldest - _PAGE, begin)
            async for batch in _batches(channel, low, self._oldest):
                await run_blocking(lambda batch=batch: self._fold(batch))  # type: ignore[misc]
            self._oldest = low
        self.is_complete = self._oldest <= begin

    def _fold(self, batch: Sequence[Light]) -> None:
        for stored in batch:
            event = stored.event
            try:
                read = _DECODE.decode(event.data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # no reading; appended by a program
            stream = self._latest.setdefault(event.type, {})
            known = stream.get(read.key)
            news = self.sources.setdefault(event.source, SourceNews())
            news.count += 1
            news.received = max(news.received, stored.received)
            if known is None:
                if self._keys >= _MOST_KEYS:
                    continue
                self._keys += 1
            elif (known.time, known.position) > (event.time, stored.position):
                continue
            stream[read.key] = LatestReading(
                event.time,
                stored.received,
                stored.position,
                event.source,
                event.id,
                bytes(read.value),
            )

    # --- present values ---

    def concepts(self, ontology: Ontology, tables: Tables) -> list[ConceptView]:
        """All concepts with the number of their instances."""
        return [
            ConceptView(
                name=concept,
                count=len(self._ids(ontology, tables, concept)),
                attributes=_attributes(ontology, concept),
            )
            for concept in ontology.concepts
        ]

    async def find(
        self,
        ontology: Ontology,
        tables: Tables,
        *,
        concept: str = "",
        search: str = "",
        offset: int = 0,
        limit: int = 100,
    ) -> ThingList:
        """Things whose id or text contains what is searched for; raises UnknownName."""
        wanted = [_known(ontology, concept)] if concept else list(ontology.concepts)

        def look() -> ThingList:
            found: list[tuple[str, str]] = []
            for one in wanted:
                ids = self._ids(ontology, tables, one)
                if search:
                    texts = self._texts(tables, one, ids)
                    word = search.casefold()
                    ids = [id for id, text in zip(ids, texts, strict=True) if word in text]
                found += [(one, id) for id in ids]
            return ThingList(
                concepts=self.concepts(ontology, tables),
                total=len(found),
                things=[
                    self.thing(ontology, tables, one, id)
                    for one, id in found[offset : offset + limit]
                ],
                complete=self.is_complete,
            )

        async with self._turn:  # sorting 100,000 ids takes a second, once
            return await run_blocking(look)

    def thing(self, ontology: Ontology, tables: Tables, concept: str, id: str) -> Thing:
        """One thing; raises UnknownName for a concept that does not exist, not for an instance that
        nothing was heard of.
        """
        _known(ontology, concept)
        instances = tables.instances(concept)
        row = instances.row(id)
        values: list[PresentValue] = []
        last_ms = 0
        for view in _attributes(ontology, concept):
            reading = self._latest.get(f"{concept}.{view.name}", {}).get(id)
            if reading is not None:
                last_ms = max(last_ms, reading.time)
                values.append(_read_value(view, reading))
            elif row >= 0 and (parts := _table_value(instances, view, row)):
                values.append(
                    PresentValue(attribute=view.name, type=view.type, value=parts, unit=view.unit)
                )
        return Thing(
            concept=concept, id=id, name=_name(instances, row, id), heard=last_ms, values=values
        )

    def is_known(self, ontology: Ontology, tables: Tables, concept: str, id: str) -> bool:
        """Whether a table names the thing or a reading was of it."""
        if tables.instances(_known(ontology, concept)).row(id) >= 0:
            return True
        return any(
            id in self._latest.get(f"{concept}.{name}", {}) for name in ontology.concepts[concept]
        )

    async def placed(self, ontology: Ontology, tables: Tables, most: int) -> list[PlacedThing]:
        """Positions and areas now: areas first, at most so many of each concept."""
        async with self._turn:
            return await run_blocking(partial(self._placed, ontology, tables, most))

    def _placed(self, ontology: Ontology, tables: Tables, most: int) -> list[PlacedThing]:
        found: list[PlacedThing] = []
        for concept in ontology.concepts:
            shapes = [
                one for one in _attributes(ontology, concept) if one.type in ("point", "rectangle")
            ]
            for id in self._ids(ontology, tables, concept)[:most] if shapes else ():
                thing = self.thing(ontology, tables, concept, id)
                found += [
                    PlacedThing(
                        concept=concept,
                        id=id,
                        name=thing.name,
                        attribute=value.attribute,
                        value=value.value,
                        time=value.time,
                    )
                    for value in thing.values
                    if value.type in ("point", "rectangle")
                ]
        return sorted(found, key=lambda one: -len(one.value))

    def _ids(self, ontology: Ontology, tables: Tables, concept: str) -> list[str]:
        """Ids of a concept in the order in which people count: 2 before 10."""
        instances = tables.instances(concept)
        streams = [self._latest.get(f"{concept}.{name}", {}) for name in ontology.concepts[concept]]
        mark = (id(instances), *map(len, streams))
        known = self._sorted.get(concept)
        if known is not None and known[0] == mark:
            return known[1]
        every = set(instances.ids).union(*streams)
        if known is not None and known[0][0] == mark[0] and len(known[1]) == len(every):
            self._sorted[concept] = (mark, known[1])  # readings of known things only
            return known[1]
        known = (mark, sorted(every, key=natural_order))
        self._sorted[concept] = known
        self._folded.pop(concept, None)
        return known[1]

    def _texts(self, tables: Tables, concept: str, ids: list[str]) -> list[str]:
        """What a search looks through, for each of the ids."""
        known = self._folded.get(concept)
        if known is None:
            known = self._folded[concept] = _searchable(tables.instances(concept), ids)
        return known


def _searchable(instances: Instances, ids: Sequence[str]) -> list[str]:
    """Id and texts of each thing in small letters."""
    texts = [column for column in instances.columns.values() if column.dtype == object]
    found: list[str] = []
    for id in ids:
        row = instances.row(id)
        parts = [column[row] for column in texts] if row >= 0 else []
        found.append("\n".join([id, *(part for part in parts if isinstance(part, str))]).casefold())
    return found


def natural_order(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers within texts by their value.

    >>> sorted(["r10", "r2", "a"], key=natural_order)
    ['a', 'r2', 'r10']
    """
    parts: list[tuple[int, int, str]] = []
    digits = word = ""
    for sign in f"{text}\0":
        if sign.isascii() and sign.isdigit():
            if word:
                parts.append((1, 0, word))
                word = ""
            digits += sign
            continue
        if digits:
            parts.append((0, int(digits[:18]), digits))
            digits = ""
        word += sign
    return (*parts, (1, 0, word[:-1]))


def _known(ontology: Ontology, concept: str) -> str:
    if concept not in ontology.concepts:
        raise UnknownName("concept", concept, list(ontology.concepts))
    return concept


def _attributes(ontology: Ontology, concept: str) -> list[AttributeView]:
    streams = ontology.streams()
    units = ontology.units.get(concept, {})
    return [
        AttributeView(
            name=name, type=kind, unit=units.get(name, ""), live=f"{concept}.{name}" in streams
        )
        for name, kind in ontology.concepts[concept].items()
    ]


def _name(instances: Instances, row: int, id: str) -> str:
    names = instances.columns.get("name")
    text = names[row] if names is not None and row >= 0 else None
    return text if isinstance(text, str) and text else id


def _read_value(view: AttributeView, reading: LatestReading) -> PresentValue:
    return PresentValue(
        attribute=view.name,
        type=view.type,
        value=_parts(reading.value),
        unit=view.unit,
        time=reading.time,
        received=reading.received,
        source=reading.source,
        reading=reading.id,
    )


def _parts(value: bytes) -> Value:
    try:
        return _VALUE.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def _table_value(instances: Instances, view: AttributeView, row: int) -> Value:
    """Empty where the table has none."""
    column = instances.columns.get(view.name)
    if column is None:
        return []
    found = column[row]
    if isinstance(found, np.ndarray):
        parts = [float(part) for part in found]
        return [] if any(np.isnan(part) for part in parts) else parts
    if isinstance(found, float):
        return [] if np.isnan(found) else [float(found)]
    return [] if found is None else [found.item() if isinstance(found, np.generic) else found]


# --- the past ---


async def read_curve(
    channels: Channels,
    ontology: Ontology,
    concept: str,
    id: str,
    attribute: str,
    *,
    since: int,
    until: int,
) -> Curve:
    """The values of an attribute in a time; raises UnknownName."""
    kinds = ontology.concepts[_known(ontology, concept)]
    if attribute not in kinds:
        raise UnknownName("attribute", attribute, list(kinds))
    scan = ReadingScan(f"{concept}.{attribute}", id, since=since, until=until)
    complete = await scan.read(channels.channel(EVENTS))
    found = sorted(scan.found)
    unit = ontology.units.get(concept, {}).get(attribute, "")
    times, values, readings, low, high = shown_points(found, kinds[attribute])
    return Curve(
        attribute=attribute,
        type=kinds[attribute],
        unit=unit,
        since=since,
        until=until,
        count=len(found),
        times=times,
        values=values,
        low=low,
        high=high,
        readings=readings,
        complete=complete,
    )


Sample = tuple[int, int, str, bytes, str]
"""Time, position, id, value and key of a reading."""
Points = tuple[list[int], list[Any], list[str], list[float], list[float]]


class ReadingScan:
    """Readings of one stream, or of one thing of it, from the newest to the oldest."""

    def __init__(
        self, stream: str, key: str | None, *, since: int, until: int, most: int = _MOST_SCANNED
    ) -> None:
        self._stream, self._key = stream, key
        self._written = b"" if key is None else msgspec.json.encode(key)
        self._since, self._until, self._most = since, until, most
        self.found: list[Sample] = []

    async def read(self, channel: Channel) -> bool:
        """Reads the channel; False when it stopped before the beginning of the time."""
        seen, high = 0, channel.last_position()
        while high > 0:
            low = max(high - _PAGE, 0)
            newest = 0
            async for batch in _batches(channel, low, high):
                await run_blocking(lambda batch=batch: self._take(batch))  # type: ignore[misc]
                newest = max(newest, batch[-1].received)
                seen += len(batch)
            if newest and newest < self._since - _AHEAD_MS:
                return True
            if seen >= self._most:
                return low == 0
            high = low
        return True

    def _take(self, batch: Sequence[Light]) -> None:
        if isinstance(batch, BlockEvents) and batch.columns.type != self._stream:
            return
        for stored in batch:
            event = stored.event
            if event.type != self._stream or not self._since <= event.time <= self._until:
                continue
            if self._written not in event.data and b"\\" not in event.data:
                continue
            try:
                read = _DECODE.decode(event.data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if self._key in (None, read.key):
                self.found.append(
                    (event.time, stored.position, event.id, bytes(read.value), read.key)
                )


async def placed_at(
    channels: Channels, ontology: Ontology, concept: str, attribute: str, at_ms: int
) -> dict[str, tuple[int, Value]]:
    """The last value of each thing before a time: key to time and value."""
    most = _MOST_SCANNED // 5
    scan = ReadingScan(f"{concept}.{attribute}", None, since=-(2**62), until=at_ms, most=most)
    await scan.read(channels.channel(EVENTS))
    newest = {key: (time, value) for time, _position, _id, value, key in sorted(scan.found)}
    return {key: (time, _parts(value)) for key, (time, value) in newest.items()}


def shown_points(found: Sequence[Sample], kind: AttributeType) -> Points:
    if kind == "number":
        return _stretches(found)
    times: list[int] = []
    values: list[Any] = []
    readings: list[str] = []
    before: bytes | None = None
    for time, _position, id, value, _key in found:
        if value != before:
            parts = _parts(value)
            times.append(time)
            values.append(parts if len(parts) > 1 else parts[0] if parts else None)
            readings.append(id)
            before = value
    return times[-_MOST_STEPS:], values[-_MOST_STEPS:], readings[-_MOST_STEPS:], [], []


def _stretches(found: Sequence[Sample]) -> Points:
    """Each stretch with its newest, lowest and highest number."""
    numbers = [
        (time, float(parts[0]), id)
        for time, _position, id, value, _key in found
        if (parts := _parts(value)) and isinstance(parts[0], int | float)
    ]
    size = max(1, -(-len(numbers) // _MOST_POINTS))
    times: list[int] = []
    values: list[Any] = []
    readings: list[str] = []
    low: list[float] = []
    high: list[float] = []
    for begin in range(0, len(numbers), size):
        stretch = numbers[begin : begin + size]
        times.append(stretch[-1][0])
        values.append(stretch[-1][1])
        readings.append(stretch[-1][2])
        low.append(min(number for _time, number, _id in stretch))
        high.append(max(number for _time, number, _id in stretch))
    return times, values, readings, low, high


async def _batches(channel: Channel, after: int, last: int) -> AsyncIterator[Sequence[Light]]:
    """The events of a range in portions; without headers where the channel can do that."""
    while after < last:
        limit = min(_PAGE, last - after)
        found: Sequence[Light] = ()
        if isinstance(channel, HeaderlessReader):
            found = await channel.read_bare_after(after, limit=limit)
        if not found:
            found = await channel.read_after(after, limit=limit)
        if not found:
            return
        after = found[-1].position
        if after > last:
            found = [stored for stored in found if stored.position <= last]
        if found:
            yield found


def silent_sources(
    ontology: Ontology, heard: dict[str, SourceNews], now_ms: int
) -> Iterator[tuple[str, int]]:
    """Sources that promise a reading at least so often and sent none for twice that time: name and
    when they were heard last (0: never).
    """
    for source in ontology.sources.values():
        if not source.period_ms:
            continue
        last = heard[source.name].received if source.name in heard else 0
        if now_ms - last > 2 * source.period_ms:
            yield source.name, last
