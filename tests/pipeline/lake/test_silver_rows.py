"""Events become rows of silver by columns or one by one, with the same result. [LK-4, PI-3]"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest

from rapport.core.event import Event, make_event
from rapport.lake.bronze import TIME
from rapport.pipeline.lake.silver_rows import (
    check_events,
    decode_events,
    detection_rows,
    quarantine_rows,
)
from rapport.policy.engine.stream_steps import late_event
from support.silver_lake import BEGIN, make_ontology, reading

RECEIVED = datetime(2026, 3, 2, 10, tzinfo=UTC)


def batch_of(*events: Event) -> pa.RecordBatch:
    """What a task gets of events in a channel."""
    count = len(events)
    columns = {
        "position": pa.array(range(1, count + 1), pa.int64()),
        "received": pa.array([RECEIVED] * count, TIME),
        "time_ms": pa.array([event.time for event in events], pa.int64()),
        "source": pa.array([event.source for event in events], pa.string()),
        "id": pa.array([event.id for event in events], pa.string()),
        "type": pa.array([event.type for event in events], pa.string()),
        "rawchannel": pa.array([event.headers.get("rawchannel") for event in events], pa.string()),
        "corrects": pa.array([event.headers.get("corrects") for event in events], pa.string()),
        "data": pa.array([event.data for event in events], pa.binary()),
        "secondlook": pa.nulls(count, pa.string()),
        "status": pa.array([None, *["late"] * (count - 1)], pa.string()),
        "reason": pa.array([None, *["policy.late"] * (count - 1)], pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("source", ["person_position", "elsewhere"])
def test_columns_and_single_events_give_the_same_rows(source: str) -> None:
    ontology = make_ontology()
    given = [
        reading(str(n), BEGIN + n, [n, 0.5], source=source, rawchannel="raw.badges")
        for n in range(5)
    ]
    spaced = [msgspec.structs.replace(one, data=one.data.replace(b",", b", ")) for one in given]
    by_columns = decode_events(batch_of(*given), "person.position", ontology)
    one_by_one = decode_events(batch_of(*spaced), "person.position", ontology)
    assert by_columns.readings.to_pylist() == one_by_one.readings.to_pylist()
    rows = by_columns.readings.to_pylist()
    assert [row["status"] for row in rows] == ["counted", "late", "late", "late", "late"]
    assert {row["source"] for row in rows} == {
        "person_position" if source == "person_position" else "badges"
    }
    assert by_columns.rejected.num_rows == one_by_one.rejected.num_rows == 0


def test_suspects_are_checked_with_the_reason() -> None:
    events = [reading("a"), reading("b", value=["?"]), reading("c", stream="robot.load")]
    rows = [
        row
        for batch in check_events(batch_of(*events), make_ontology(), {})
        for row in batch.to_pylist()
    ]
    assert {row["id"]: row["reason"] for row in rows} == {
        "a": None,
        "b": "reading.bad_value",
        "c": "reading.unknown_stream",
    }


def test_what_the_node_writes_is_read_and_nonsense_passed_over() -> None:
    late = late_event("p", (2**61, "x"))
    huge = make_event(source="p", id="h", type=late.type, time=0, data={"id": "y", "time": 2**70})
    broken = Event("p", "n", late.type, "", 0, b"\xff")
    (row,) = detection_rows(batch_of(late, huge, broken)).to_pylist()
    assert (row["kind"], row["id"], row["time"], row["time_ms"]) == ("late", "x", None, 2**61)
    (held,) = quarantine_rows(batch_of(broken)).to_pylist()
    assert (held["reason"], held["id"], held["aside"]) == ("quarantine.bad_data", "n", False)
    assert held["data"] == "\ufffd"
