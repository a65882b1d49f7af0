"""Rows of channels become readings; what cannot be used is set aside as the node's engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from rapport.channel.backends.local import open_memory
from rapport.core.event import Event, StoredEvent, make_event
from rapport.kernel.clock import ManualClock
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA
from rapport.pipeline.streaming.decoder import DecodedRows, RowDecoder
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.stream_steps import TimeMoved, time_event
from support.event_readings import readings_from_events
from support.varied.worlds import ONTOLOGY, Pull

NOW_MS = 1_000_000


def reading(number: int, time: int, **changes: Any) -> Event:
    event = make_event(
        source="badges",
        id=f"e{number}",
        type="person.position",
        subject="person/ann",
        time=time,
        data={"key": "ann", "value": [number, 2.5]},
        headers={"rawchannel": "raw.badges", "cause": f"r{number}"},
    )
    return msgspec.structs.replace(event, **changes)


EVENTS = [
    reading(1, 1_000),
    reading(2, 1_010, type="cart.place", source="carts"),
    reading(3, 1_020, source="somebody"),
    reading(4, 1_030, data=b'{"key": "", "value": [1, 2]}'),
    reading(5, 1_040, data=b"no json"),
    reading(6, NOW_MS + 60_001),
    reading(7, NOW_MS + 60_000),
    reading(8, 1_050, type="station.unknown"),
    reading(9, 2**61),
    reading(10, 900, type="cart.place"),
]


def rows_of(stored: list[StoredEvent], channel: str = "events") -> pa.RecordBatch:
    rows = [
        {
            "channel": channel,
            "position": one.position,
            "received": one.received,
            **{name: getattr(one.event, name) for name in ("time", "source", "id", "type")},
            "subject": one.event.subject,
            "headers": list(one.event.headers.items()),
            "data": one.event.data,
        }
        for one in stored
    ]
    return pa.RecordBatch.from_pylist(rows, schema=CHANNEL_SCHEMA)


def decoded(rows: list[StoredEvent], channel: str = "events") -> DecodedRows:
    """Headers are looked up where they are needed."""
    columns = rows_of(rows, channel).drop_columns(["headers", "subject"])

    def whole(positions: Sequence[int]) -> list[StoredEvent]:
        return sorted(
            (one for one in rows if one.position in positions), key=lambda one: one.position
        )

    return RowDecoder("here", ONTOLOGY, 60_000, whole).decode(columns)


def stored(events: list[Event]) -> list[StoredEvent]:
    return [StoredEvent(number, NOW_MS, event) for number, event in enumerate(events, 1)]


def engine_sets_aside(events: list[Event]) -> list[Event]:
    async def scenario() -> list[Event]:
        channels = open_memory(ManualClock(NOW_MS))
        engine = PolicyEngine(
            channels,
            ManualClock(NOW_MS),
            name="here",
            ontology=ONTOLOGY,
            pull=Pull({}),
            lateness_ms=0,
        )
        await channels.channel("events").append(events)
        while await engine.step(timeout_ms=0):
            pass
        return [one.event for one in await channels.channel("quarantine").read_after(0)]

    return asyncio.run(scenario())


def test_the_same_events_are_set_aside_as_by_the_engine() -> None:
    found = decoded(stored(EVENTS))
    expected = engine_sets_aside(EVENTS)
    assert {event.id: event for event in found.aside} == {event.id: event for event in expected}
    assert len(expected) == 4


def test_readings_keep_the_order_of_positions_and_their_sources() -> None:
    found = decoded(stored(EVENTS)[::-1])
    usable = [EVENTS[place - 1] for place in (1, 2, 3, 7, 10)]
    assert found.positions.tolist() == [1, 2, 3, 7, 10]
    assert found.readings == readings_from_events(usable, ONTOLOGY)
    assert found.readings.column("source").to_pylist()[2] == "badges"
    assert (found.first, found.last) == (1, 10)


def test_beats_are_taken_from_the_sites_own_clock_only() -> None:
    beat = TimeMoved(5_000, 3)
    told = [time_event("here", beat), time_event("elsewhere", beat), reading(1, 1)]
    found = decoded(stored(told), "detections")
    assert found.beats == [beat]
    assert (found.first, found.last, len(found.readings)) == (0, 0, 0)


def test_readings_ahead_of_the_sites_clock_come_with_their_arrival() -> None:
    assert decoded(stored([reading(1, NOW_MS), reading(2, 5)])).received is None
    found = decoded(stored(EVENTS))
    assert found.received is not None
    assert found.received.tolist() == [NOW_MS] * 5
