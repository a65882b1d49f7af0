from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.event import BareEvent, Event, StoredEvent
from rapport.core.event_columns import envelope_table
from rapport.pipeline.datasource import rows
from rapport.pipeline.datasource.rows import (
    CHANNEL_SCHEMA,
    ColumnCondition,
    EventChunk,
    row_batches,
)

NAMES = st.text("abÆ", min_size=1, max_size=3)
EVENTS = st.builds(
    Event,
    source=NAMES,
    id=NAMES,
    type=NAMES,
    subject=st.text("x/1", max_size=3),
    time=st.integers(-(2**63), 2**63 - 1),
    data=st.sampled_from([b"null", b'{"a":1}']),
    headers=st.dictionaries(NAMES, st.text(max_size=3), max_size=3),
)


def chunks_of(events: list[Event], size: int = 3) -> list[EventChunk]:
    return [
        EventChunk(
            range(start + 1, start + 1 + len(events[start : start + size])),
            [7] * len(events[start : start + size]),
            events[start : start + size],
            10,
        )
        for start in range(0, len(events), size)
    ]


@given(st.lists(EVENTS, max_size=20))
def test_rows_are_the_events(events: list[Event]) -> None:
    table = pa.Table.from_batches(row_batches(chunks_of(events), "c"), CHANNEL_SCHEMA)
    stored = [StoredEvent(n, 7, event) for n, event in enumerate(events, start=1)]
    expected = envelope_table(stored).to_pylist()
    assert [{"channel": "c", **row} for row in expected] == table.to_pylist()


@given(st.lists(EVENTS, max_size=20), NAMES, st.integers(1, 20))
def test_conditions_choose_rows(events: list[Event], kind: str, position: int) -> None:
    conditions = [ColumnCondition("type", "=", kind), ColumnCondition("position", "<", position)]
    found = row_batches(chunks_of(events), "c", conditions=conditions)
    table = pa.Table.from_batches(found, CHANNEL_SCHEMA)
    assert table["position"].to_pylist() == [
        n for n, event in enumerate(events, start=1) if event.type == kind and n < position
    ]


def test_batches_are_bounded_by_rows_and_by_bytes(monkeypatch) -> None:
    events = [Event("s", str(n), "t", "", n) for n in range(12)]
    monkeypatch.setattr(rows, "PART_ROWS", 2)
    monkeypatch.setattr(rows, "BATCH_ROWS", 5)
    assert [len(one) for one in row_batches(chunks_of(events), "c")] == [6, 6]
    monkeypatch.setattr(rows, "BATCH_BYTES", 10)
    assert [len(one) for one in row_batches(chunks_of(events), "c")] == [3, 3, 3, 3]


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    wanted = pa.schema([CHANNEL_SCHEMA.field("data"), CHANNEL_SCHEMA.field("time")])
    chunk = EventChunk([4], [9], [BareEvent("s", "i", "t", "", 5, b"1")], 1)
    (batch,) = row_batches([chunk], "c", wanted)
    assert batch.to_pylist() == [{"data": b"1", "time": 5}]


def test_no_rows_make_no_batch() -> None:
    assert list(row_batches([], "c")) == []
