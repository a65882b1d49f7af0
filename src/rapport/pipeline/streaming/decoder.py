"""Rows of channels as readings, unusable events and ticks of the clock: the node's engine
quarantines the same events for the same reasons. [PI-5, PO-7]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.errors import Problem
from rapport.core.event import BareEvent, Event, StoredEvent
from rapport.pipeline.datasource.locations import Location
from rapport.pipeline.datasource.offsets import PositionRange
from rapport.policy.engine.stream_steps import TIME_TYPE, TimeMoved, ahead_problem, quarantine_event
from rapport.policy.ontology import Ontology
from rapport.policy.readings import readings_schema, split_events

EVENTS, DETECTIONS = "events", "detections"
LIVE_ROWS = (
    "channel STRING, position BIGINT, received BIGINT, time BIGINT, source STRING, id STRING, "
    "type STRING, data BINARY"
)
"""The columns of channels that are read: what few events need besides is looked up, see Whole."""
_ENVELOPE = ("source", "id", "type", "time", "data")
Whole = Callable[[Sequence[int]], Sequence[StoredEvent]]
"""Gives the events of `events` at these positions, with their headers."""


class DecodedRows(msgspec.Struct):
    """Decoded rows, in the order of their positions."""

    first: int
    last: int
    """Positions of `events`; 0 when there are none."""
    positions: npt.NDArray[np.int64]
    """Of the readings."""
    readings: pa.RecordBatch
    aside: list[Event]
    """For `quarantine`."""
    beats: list[TimeMoved]
    received: npt.NDArray[np.int64] | None = None
    """When the site received the readings; None where no reading is ahead of that."""


class RowDecoder:
    """Decodes rows for one site. Rows of one stream are decoded at once; only those that need a
    closer look become whole events.
    """

    def __init__(self, name: str, ontology: Ontology, skew_ms: int, whole: Whole) -> None:
        """`name`: the source of what the engine appends."""
        self._name, self._ontology, self._skew_ms = name, ontology, skew_ms
        self._whole = whole
        self._streams = ontology.streams()
        self._none = pa.RecordBatch.from_pylist([], schema=readings_schema(ontology))
        self._named = pa.array(sorted(ontology.sources), pa.string())

    def decode(self, rows: pa.RecordBatch) -> DecodedRows:
        beats = self._beats(rows)
        rows = rows.filter(pc.equal(rows.column("channel"), EVENTS))
        if not len(rows):
            none = np.zeros(0, np.int64)
            return DecodedRows(0, 0, none, self._none, [], beats)
        rows = _in_order(rows)
        positions = rows.column("position").to_numpy()
        first, last = int(positions[0]), int(positions[-1])
        aside: list[Event] = []
        rows = self._without_ahead(rows, aside)
        places, readings = self._readings(rows, aside)
        return DecodedRows(first, last, places, readings, aside, beats, _received(rows, places))

    def _beats(self, rows: pa.RecordBatch) -> list[TimeMoved]:
        """Ticks of the site's own clock."""
        is_beat = pc.and_(
            pc.equal(rows.column("channel"), DETECTIONS),
            pc.and_(
                pc.equal(rows.column("type"), TIME_TYPE),
                pc.equal(rows.column("source"), self._name),
            ),
        )
        told = rows.filter(is_beat).column("data").to_pylist()
        return [msgspec.json.decode(data, type=TimeMoved) for data in told]

    def _without_ahead(self, rows: pa.RecordBatch, aside: list[Event]) -> pa.RecordBatch:
        times = rows.column("time").to_numpy()
        ahead = times > rows.column("received").to_numpy() + self._skew_ms
        if not ahead.any():
            return rows
        for stored in self._stored(rows.filter(pa.array(ahead))):
            aside.append(quarantine_event(self._name, stored.event, ahead_problem(stored)))
        return rows.filter(pa.array(~ahead))

    def _readings(
        self, rows: pa.RecordBatch, aside: list[Event]
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        """Readings with their positions; one stream at a time, since that is decoded at once."""
        types = rows.column("type")
        kinds = [kind for kind in pc.unique(types).to_pylist() if kind in self._streams]
        found = [
            self._of_stream(rows.filter(pc.equal(types, kind)), aside) for kind in sorted(kinds)
        ]
        if not found:
            return np.zeros(0, np.int64), self._none
        if len(found) == 1:
            return found[0]
        positions = np.concatenate([places for places, _ in found])
        readings = pa.concat_batches([batch for _, batch in found])
        order = np.argsort(positions, kind="stable")
        return positions[order], readings.take(pa.array(order))

    def _of_stream(
        self, rows: pa.RecordBatch, aside: list[Event]
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        positions = rows.column("position").to_numpy()
        if pc.all(pc.is_in(rows.column("source"), self._named)).as_py():
            bare = [
                BareEvent(source, id, type, "", time, data)
                for source, id, type, time, data in _columns(rows)
            ]
            readings, rejected = split_events(bare, self._ontology)
            if not rejected:
                return positions, readings
        # One of them cannot be used, or its raw channel has the name of its source.
        stored = self._stored(rows)
        positions = np.array([item.position for item in stored], np.int64)
        readings, faults = split_events([item.event for item in stored], self._ontology)
        aside += [quarantine_event(self._name, event, problem) for event, problem in faults]
        refused = _places_of(stored, faults)
        return positions[~refused], readings

    def _stored(self, rows: pa.RecordBatch) -> list[StoredEvent]:
        """Whole events; those that retention has removed meanwhile are missing."""
        return list(self._whole(rows.column("position").to_pylist()))


def _received(rows: pa.RecordBatch, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    received = rows.column("received").to_numpy()
    if not (rows.column("time").to_numpy() > received).any():
        return None
    found: npt.NDArray[np.int64] = received[
        np.searchsorted(rows.column("position").to_numpy(), places)
    ]
    return found


def _in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    positions = rows.column("position").to_numpy()
    if (positions[1:] > positions[:-1]).all():
        return rows
    return rows.take(pa.array(np.argsort(positions, kind="stable")))


def _columns(rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in _ENVELOPE), strict=True)


def _places_of(
    stored: list[StoredEvent], faults: list[tuple[Event, Problem]]
) -> npt.NDArray[np.bool_]:
    """Marks rejected events; by identity, since two may be equal."""
    refused = {id(event) for event, _ in faults}
    return np.array([id(item.event) in refused for item in stored], np.bool_)


def read_whole(place: Location, positions: Sequence[int]) -> list[StoredEvent]:
    """The events at these positions, in their order; those that are gone are left out. Costs one
    look per run of neighbours.
    """
    return [stored for piece in runs(positions) for stored in read_events(place, piece)]


def read_events(place: Location, piece: PositionRange) -> Iterator[StoredEvent]:
    """The events of a piece, whole."""
    with place.opened() as opened:
        for chunk in opened.chunks(piece, (), bare=False, passes_damage=False):
            for position, received, event in zip(
                chunk.positions, chunk.received, chunk.events, strict=True
            ):
                assert isinstance(event, Event), "headers were asked for"
                yield StoredEvent(position, received, event)


def runs(positions: Sequence[int]) -> Iterator[PositionRange]:
    """Neighbouring positions as one piece each."""
    ordered = enumerate(sorted(positions))
    for _, run in groupby(ordered, key=lambda numbered: numbered[1] - numbered[0]):
        own = [position for _, position in run]
        yield PositionRange(EVENTS, own[0] - 1, own[-1])
