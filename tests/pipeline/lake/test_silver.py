"""Silver holds every reading once, typed, with what became of it, however often and whenever the
job runs. [LK-2, LK-4, LK-11, PI-3]
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from deltalake import DeltaTable

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Conflict, Corrupt, Problem
from rapport.core.event import Event, make_event
from rapport.pipeline.lake.silver import silver_due, update_silver
from rapport.policy.engine.stream_steps import late_event, quarantine_event
from rapport.policy.ontology import Ontology
from rapport.policy.readings import split_events
from support.silver_lake import BEGIN, DAY, SilverLake, make_ontology, reading, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def filled(tmp_path: Path) -> SilverLake:
    return SilverLake(tmp_path / "lake")


@pytest.fixture(scope="module")
def ontology() -> Ontology:
    return make_ontology()


def moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1_000, UTC)


def test_readings_are_typed_and_partitioned_by_day(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    filled.fill(reading("a"), reading("b", BEGIN + DAY, key="6"), warm("w"))
    assert silver_due(filled.lake).positions == {"events": 3}
    done = update_silver(spark, filled.lake, ontology)
    assert (done.readings, done.files, done.problems) == (3, 3, ())
    assert filled.rows()[0] == {
        "day": date(2026, 3, 2),
        "time": moment(BEGIN),
        "id": "a",
        "key": "5",
        "source": "person_position",
        "event_source": "person_position",
        "x": 1.0,
        "y": 2.0,
        "position": 1,
        "received": moment(filled.clock.now_ms()),
        "corrects": None,
        "status": "counted",
        "reason": "",
        "time_ms": None,
    }
    warmth = filled.lake.open("silver", "room.warmth")
    assert (filled.rows("room.warmth")[0]["value"], warmth.unit("value")) == (21.0, "degC")
    again = update_silver(spark, filled.lake, ontology)
    assert (again.readings, again.steps, silver_due(filled.lake).positions) == (0, 0, {})
    _others_read_the_same(filled)


def _others_read_the_same(filled: SilverLake) -> None:
    """DuckDB over the files that the log names, and Polars over the table."""
    table = filled.lake.open("silver", "person.position")
    files = [file.uri for file in table.files()]
    found = duckdb.sql(
        f"SELECT id, day, x FROM read_parquet({files}, hive_partitioning=true) ORDER BY id"
    ).fetchall()
    assert found == [("a", date(2026, 3, 2), 1.0), ("b", date(2026, 3, 3), 1.0)]
    polars = pytest.importorskip("polars")
    rows = polars.read_delta(table.uri).sort("position").to_dicts()
    assert [row["id"] for row in rows] == ["a", "b"]
    assert rows[0]["time"] == moment(BEGIN)


def test_the_same_event_is_kept_once_within_and_across_runs(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    filled.fill(reading("a"), reading("a", source="other"), reading("bad", value=["?"]))
    update_silver(spark, filled.lake, ontology)
    filled.fill(reading("a"), reading("a"), reading("bad", value=["?"]))
    done = update_silver(spark, filled.lake, ontology)
    assert (done.readings, done.quarantined, done.duplicates) == (0, 0, 3)
    assert [row["event_source"] for row in filled.rows()] == ["person_position", "other"]
    # Two days away it is another reading; one day away it is not, and of two new ones one stays.
    far, near = reading("a", BEGIN + 3 * DAY), reading("a", BEGIN + DAY)
    filled.fill(near, reading("new"), far, reading("new"))
    done = update_silver(spark, filled.lake, ontology)
    assert (done.readings, done.duplicates) == (1, 3)


def test_a_reading_means_what_a_policy_saw(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    odd = [
        b'{"key":"1","value":[1,2]}',
        b'{"key":"1","value":[1e3,-0.0],"more":[1]}',
        b'{"value":[1,2],"key":"1"}',
        b'{"key":"1","key":"2","value":[1,2]}',
        b'{"key":1,"value":[1,2]}',
        b'{"key":"","value":[1,2]}',
        b'{"key":"1","value":["1",2]}',
        b'{"key":"1","value":[1]}',
        b'{"key":"1","value":[1,2,3]}',
        b'{"key":"1","value":[null,2]}',
        b'{"key":"1","value":[NaN,2]}',
        b'{"key":"1"}',
        b"[]",
        b"nonsense",
        b"\xff",
        b"",
        b'{"key":"\\u00fc \xf0\x9f\x98\x80","value":[1.7976931348623157e308,5e-324]}',
    ]
    events = [
        Event("person_position", str(n), "person.position", "", BEGIN + n, data)
        for n, data in enumerate(odd)
    ]
    times = {"first": -(2**60) + 1, "old": -1, "early": -62_135_596_800_000}
    times |= {"end": 253_402_300_799_999, "after": 2**59, "far": 2**61}
    events += [reading(id, time) for id, time in times.items()]
    events.append(Event("x", "raw", "person.position", "", 1, odd[0], {"rawchannel": "raw.y"}))
    filled.fill(*events)
    update_silver(spark, filled.lake, ontology)
    readings, rejected = split_events(events, ontology)
    expected = {
        row["id"]: (
            *(row["time"], row["source"], row["key"]),
            *(row["person.position.x"], row["person.position.y"]),
        )
        for row in readings.to_pylist()
    }
    rows = filled.rows()
    assert {
        row["id"]: (_time_of(row), row["source"], row["key"], row["x"], row["y"]) for row in rows
    } == expected
    held = {row["id"]: (row["reason"], row["message"]) for row in filled.rows("quarantined")}
    assert held == {event.id: (one.code, one.message) for event, one in rejected}
    days = {row["id"]: row["day"] for row in rows}
    assert (days["first"], days["old"], days["after"]) == (None, date(1969, 12, 31), None)
    assert (days["early"], days["end"]) == (date(1, 1, 1), date(9999, 12, 31))
    assert len(expected) >= 9
    assert len(held) >= 10


def _time_of(row: dict[str, Any]) -> int:
    if row["time"] is None:
        return int(row["time_ms"])
    since = row["time"] - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * DAY + since.seconds * 1_000 + since.microseconds // 1_000


def test_verdicts_change_rows_that_silver_has_and_wait_for_those_it_has_not(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    problem = Problem(code="policy.ahead_of_clock", message="3 ms ahead", hint="set the clock")
    ahead = reading("ahead", BEGIN + 3)
    rejected = make_event(
        source="rapport.mediation",
        id="q1",
        type="rapport.mediation.rejected",
        time=BEGIN,
        data={
            "reason": "value.unknown",
            "message": "no tag",
            "hint": "add it",
            "raw": {"source": "reader", "id": "77", "type": "rfid", "data": {"tag": 1}},
        },
    )
    filled.append("quarantine", rejected)
    filled.fill(reading("a", BEGIN + 9), reading("b"), ahead)
    update_silver(spark, filled.lake, ontology)
    untouched = {file.path for file in filled.lake.open("silver", "quarantined").files()}
    filled.append("detections", late_event("p", (BEGIN, "b")), late_event("p", (BEGIN, "later")))
    filled.append("detections", late_event("p", (2**59, "beyond all calendars")))
    filled.append("quarantine", quarantine_event("p", ahead, problem))
    filled.append("quarantine", quarantine_event("p", reading("gone"), problem))
    filled.export()
    done = update_silver(spark, filled.lake, ontology)
    assert (done.late, done.set_aside, done.readings, done.rewritten) == (1, 1, 0, 1)
    assert filled.states() == {"a": "counted", "b": "late"}
    assert filled.rows()[1]["reason"] == "policy.late"
    filled.fill(reading("later"), reading("gone"), reading("ok"))
    done = update_silver(spark, filled.lake, ontology)
    assert (done.late, done.set_aside) == (1, 1)
    assert filled.states() == {"a": "counted", "b": "late", "later": "late", "ok": "counted"}
    held = filled.rows("quarantined")
    assert [(r["id"], r["source"], r["reason"], r["hint"], r["found_by"]) for r in held] == [
        ("77", "reader", "value.unknown", "add it", "mediation"),
        ("ahead", "person_position", "policy.ahead_of_clock", "set the clock", "policy"),
        ("gone", "person_position", "policy.ahead_of_clock", "set the clock", "policy"),
    ]
    assert held[0]["data"] == '{"tag":1}'
    assert untouched <= {file.path for file in filled.lake.open("silver", "quarantined").files()}


def test_of_corrected_readings_the_newest_stands(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    filled.fill(reading("1"), reading("1", source="other"))
    update_silver(spark, filled.lake, ontology)
    filled.fill(reading("1~a", BEGIN + DAY, [9, 9], corrects="1"))
    assert update_silver(spark, filled.lake, ontology).corrected == 1
    # Far from what it corrects, and together with its own correction.
    filled.fill(
        reading("1~b", BEGIN + 9 * DAY, [8, 8], corrects="1"),
        reading("1~c", BEGIN, [7, 7], corrects="1"),
        reading("1~?", BEGIN, ["unreadable"], corrects="1"),
    )
    assert update_silver(spark, filled.lake, ontology).corrected == 2
    states = [
        (row["event_source"], row["id"], row["status"], row["reason"]) for row in filled.rows()
    ]
    assert states == [
        ("person_position", "1", "corrected", "corrected by 1~a"),
        ("other", "1", "counted", ""),
        ("person_position", "1~a", "corrected", "corrected by 1~b"),
        ("person_position", "1~b", "corrected", "corrected by 1~c"),
        ("person_position", "1~c", "counted", ""),
    ]


def test_detections_are_in_gold_once(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    found = Detection(
        policy="p", time=BEGIN, bindings={"a": "5"}, causes=((BEGIN, "x"),), version="v1"
    )
    undecided = Undecided.of(found, ("s",)).to_event(source="policies")
    filled.append("detections", found.to_event(source="policies"), undecided)
    filled.append("detections", found.to_event(source="elsewhere"))
    filled.export()
    done = update_silver(spark, filled.lake, ontology)
    assert (done.detections, done.duplicates) == (2, 1)
    first, second = filled.rows("detected", "gold")
    assert (first["id"], first["kind"], first["policy"]) == (found.id(), "detected", "p")
    assert (first["bindings"], first["cause_ids"]) == ([("a", "5")], ["x"])
    assert (second["kind"], second["silent"]) == ("undecided", ["s"])


def test_what_does_not_fit_is_held_back_until_silver_is_made_anew(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    filled.fill(reading("a", stream="robot.load", value=[1]), warm("w", value=1.0))
    assert update_silver(spark, filled.lake, ontology).quarantined == 1
    text = make_ontology(room_warmth="text", robot_load="number")
    filled.fill(reading("b", stream="room.warmth", value=["hot"]))
    update_silver(spark, filled.lake, text)
    held = {row["id"]: row for row in filled.rows("quarantined")}
    assert held["b"]["reason"] == "lake.type_conflict"
    assert "double" in held["b"]["message"]
    assert [row["value"] for row in filled.rows("room.warmth")] == [1.0]
    # Another number of parts is other columns: old rows have none of the new ones.
    point = make_ontology(room_warmth="point", robot_load="number")
    filled.fill(reading("c", stream="room.warmth", value=[1, 2]))
    assert update_silver(spark, filled.lake, point).readings == 1
    rows = [(row["id"], row["value"], row["x"]) for row in filled.rows("room.warmth")]
    assert rows == [("w", 1.0, None), ("c", None, 1.0)]
    assert update_silver(spark, filled.lake, point, rebuild=True).readings == 2
    assert filled.rows("robot.load")[0]["value"] == 1.0


def test_silver_is_not_made_anew_from_less_than_it_was_made_of(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    filled.fill(reading("a"))
    update_silver(spark, filled.lake, ontology)
    bronze = filled.lake.open("bronze", "events")
    (first,) = bronze.files()
    path = Path(first.uri)
    content, before = path.read_bytes(), filled.rows()
    path.write_bytes(content[:100])
    with pytest.raises(Corrupt) as damaged:
        update_silver(spark, filled.lake, ontology, rebuild=True)
    assert damaged.value.code == "lake.bad_file"
    assert path.name in damaged.value.message
    path.write_bytes(content)
    filled.fill(reading("b"))
    bronze.refresh().commit([], removed=[first])
    with pytest.raises(Conflict) as refused:
        update_silver(spark, filled.lake, ontology, rebuild=True)
    assert refused.value.code == "lake.cannot_rebuild"
    assert filled.rows() == before


def test_a_changed_unit_converts_the_rows_that_are_there(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    filled.fill(warm("w", value=25.0))
    update_silver(spark, filled.lake, ontology)
    filled.fill(warm("x", value=77.0))
    done = update_silver(spark, filled.lake, make_ontology("degF"))
    assert [row["value"] for row in filled.rows("room.warmth")] == [77.0, 77.0]
    (problem,) = done.problems
    assert (problem.code, problem.severity) == ("lake.unit_changed", "warning")
    assert "degC" in problem.message
    assert "degF" in problem.message
    table = filled.lake.open("silver", "room.warmth")
    notes = table.schema.field("value").metadata
    assert table.unit("value") == "degF"
    assert notes[b"unit_changes"] == b"degC to degF after position 1"
    history = DeltaTable(table.uri).history()
    assert any("degC to degF" in str(commit.get("rapport.unit")) for commit in history)
    assert update_silver(spark, filled.lake, make_ontology("degF")).problems == ()
    with pytest.raises(Conflict) as refused:
        update_silver(spark, filled.lake, make_ontology("m/s"))
    assert refused.value.code == "lake.unit_conflict"
    assert "degF" in refused.value.message


def test_of_two_runs_at_once_one_is_refused_and_nothing_is_doubled(
    spark: SparkSession, filled: SilverLake, ontology: Ontology
) -> None:
    filled.fill(reading("a"), warm("w"))

    def other(_table: str) -> None:
        update_silver(spark, filled.lake, ontology)

    with pytest.raises(Conflict) as refused:
        update_silver(spark, filled.lake, ontology, at_commit=_once(other))
    assert refused.value.code == "lake.concurrent_writer"
    assert (len(filled.rows()), len(filled.rows("room.warmth"))) == (1, 1)
    assert update_silver(spark, filled.lake, ontology).steps == 0


def _once(work: Callable[[str], None]) -> Callable[[str], None]:
    waiting = [work]

    def run(table: str) -> None:
        if waiting:
            waiting.pop()(table)

    return run
