"""Silver holds every reading once, typed, with what became of it, however often and whenever the
job runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Conflict, Corrupt, Problem, StoreUnavailable
from rapport.core.event import Event, make_event
from rapport.pipeline.lake import silver_duplicates, silver_marks
from rapport.pipeline.lake.compaction import compact
from rapport.pipeline.lake.journal import changing
from rapport.pipeline.lake.locks import reading
from rapport.pipeline.lake.silver import silver_due, update_silver
from rapport.pipeline.lake.silver_ids import IdIndex, reading_keys
from rapport.pipeline.lake.silver_step import read_waiting
from rapport.policy.engine.stream_steps import late_event, quarantine_event
from rapport.policy.ontology import Ontology
from rapport.policy.readings import split_events

Reading = Callable[..., Event]
DAY = 86_400_000


def test_readings_are_typed_and_lie_by_stream_and_day(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    warm = given_reading("w", begin, [21], key="r1", stream="room.warmth", source="room_warmth")
    filled.fill(given_reading("a", begin), given_reading("b", begin + DAY, key="6"), warm)
    done = update_silver(None, filled.path, ontology)
    assert (done.readings, done.files, done.problems) == (3, 3, ())
    names = sorted(
        str(path.relative_to(filled.path / "silver").parent)
        for path in (filled.path / "silver").rglob("*.parquet")
    )
    assert names == [
        "stream=person.position/day=2026-03-02",
        "stream=person.position/day=2026-03-03",
        "stream=room.warmth/day=2026-03-02",
    ]
    assert filled.rows()[0] == {
        "time": begin,
        "id": "a",
        "stream": "person.position",
        "source": "person_position",
        "key": "5",
        "x": 1.0,
        "y": 2.0,
        "position": 1,
        "received": filled.clock.now_ms(),
        "event_source": "person_position",
        "corrects": None,
        "status": "counted",
        "reason": "",
    }
    assert filled.rows("stream=room.warmth")[0]["value"] == 21.0


def test_duckdb_and_pandas_read_a_stream_unaided(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    filled.fill(*(given_reading(str(n), begin + n * DAY) for n in range(3)))
    update_silver(None, filled.path, ontology)
    folder = filled.path / "silver/stream=person.position"
    found = duckdb.sql(f"SELECT count(*), min(day) FROM '{folder}/**/*.parquet'").fetchall()[0]
    assert (found[0], str(found[1])) == (3, "2026-03-02")
    assert sorted(pandas.read_parquet(folder)["id"]) == ["0", "1", "2"]


def test_a_second_run_takes_only_what_is_new(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    filled.fill(given_reading("a"))
    assert silver_due(filled.path).positions == {"events": 1}
    assert update_silver(None, filled.path, ontology).readings == 1
    again = update_silver(None, filled.path, ontology)
    assert (again.readings, again.steps) == (0, 0)
    filled.fill(given_reading("b"))
    assert update_silver(None, filled.path, ontology).readings == 1
    assert list(filled.states()) == ["a", "b"]
    assert silver_due(filled.path).positions == {}


@pytest.mark.parametrize("rows_per_step", [1, 2, 7, 1000])
def test_steps_of_any_size_give_the_same(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int, rows_per_step: int
) -> None:
    filled.append("events", *(given_reading(str(n), begin + n * DAY // 3) for n in range(20)))
    filled.export(rows_per_file=6)
    done = update_silver(None, filled.path, ontology, rows_per_step=rows_per_step)
    assert done.readings == 20
    assert [row["position"] for row in filled.rows()] == list(range(1, 21))


def test_the_same_event_is_kept_once_within_and_across_runs(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    filled.fill(given_reading("a"), given_reading("a", source="other"))
    update_silver(None, filled.path, ontology)
    double_rows(filled, "a", begin + 9 * DAY, copies=2)
    done = update_silver(None, filled.path, ontology)
    assert (done.readings, done.duplicates) == (0, 2)
    assert [(row["event_source"], row["time"]) for row in filled.rows()] == [
        ("person_position", begin),
        ("other", begin),
    ]


def test_two_identities_of_one_key_are_both_kept(
    filled: Any,
    ontology: Ontology,
    given_reading: Reading,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def colliding(_sources: pa.Array, ids: pa.Array) -> np.ndarray:
        return np.full(len(ids), 7, np.uint64)

    monkeypatch.setattr("rapport.pipeline.lake.silver_parts.reading_keys", colliding)
    for id in ("a", "b"):
        filled.fill(given_reading(id), given_reading(f"{id}{id}"))
        update_silver(None, filled.path, ontology)
    assert list(filled.states()) == ["a", "aa", "b", "bb"]


def test_keys_are_found_in_merged_parts(tmp_path: Any) -> None:
    names = pa.array([str(n) for n in range(100)])
    keys = reading_keys(pa.array(["s"] * 100), names)
    assert len(np.unique(keys)) == 100
    index = IdIndex(tmp_path)
    assert index.days_of(keys)[0].tolist() == []


def test_a_reading_means_what_a_policy_saw(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
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
        Event("person_position", str(n), "person.position", "", begin + n, data)
        for n, data in enumerate(odd)
    ]
    events.append(Event("x", "far", "person.position", "", 2**61, odd[0]))
    events.append(Event("x", "raw", "person.position", "", 1, odd[0], {"rawchannel": "raw.y"}))
    filled.fill(*events)
    update_silver(None, filled.path, ontology)
    readings, rejected = split_events(events, ontology)
    expected = {
        row["id"]: (row["source"], row["key"], row["person.position.x"], row["person.position.y"])
        for row in readings.to_pylist()
    }
    rows = filled.rows()
    assert {r["id"]: (r["source"], r["key"], r["x"], r["y"]) for r in rows} == expected
    held = {row["id"]: (row["reason"], row["message"]) for row in filled.rows("quarantined")}
    assert held == {event.id: (one.code, one.message) for event, one in rejected}
    assert len(expected) >= 5
    assert len(held) >= 10


def test_times_of_any_size_have_a_day(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    times = {"first": -(2**60) + 1, "old": -1, "end": 253_402_300_799_999, "after": 2**59}
    filled.fill(*(given_reading(id, time) for id, time in times.items()))
    filled.append("events", given_reading("no", 2**60))
    filled.export()
    update_silver(None, filled.path, ontology)
    folder = filled.path / "silver/stream=person.position"
    days = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert days == ["day=1969-12-31", "day=9999-12-31", "day=before", "day=beyond"]
    assert [row["reason"] for row in filled.rows("quarantined")] == ["reading.bad_time"]


def test_late_readings_are_marked_when_the_verdict_is_known(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    filled.fill(given_reading("a", begin + 9), given_reading("b", begin))
    update_silver(None, filled.path, ontology)
    filled.append("detections", late_event("policies", (begin, "b")))
    filled.export()
    done = update_silver(None, filled.path, ontology)
    assert (done.late, done.readings) == (1, 0)
    assert filled.states() == {"a": "counted", "b": "late"}
    assert filled.rows()[1]["reason"] == "policy.late"


def test_damage_in_a_file_that_has_to_be_marked_is_told_with_its_name(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    """In a column that is read only when the file is written again."""
    filled.fill(given_reading("a", begin + 9), given_reading("b", begin))
    update_silver(None, filled.path, ontology)
    (file,) = (filled.path / "silver/stream=person.position").rglob("*.parquet")
    names = pq.read_schema(file).names
    place = pq.read_metadata(file).row_group(0).column(names.index("x"))
    damaged = bytearray(file.read_bytes())
    start = place.data_page_offset
    damaged[start : start + 12] = b"\xff" * 12
    file.write_bytes(damaged)
    filled.append("detections", late_event("policies", (begin, "b")))
    filled.export()
    with pytest.raises(Corrupt) as told:
        update_silver(None, filled.path, ontology)
    assert told.value.code == "lake.bad_file"
    assert file.name in told.value.message


def test_a_reading_that_was_set_aside_is_looked_for_only_where_it_can_be(
    filled: Any,
    ontology: Ontology,
    given_reading: Reading,
    begin: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that silver could not read either is nowhere, however full its day is."""
    used, unreadable = given_reading("a", begin), given_reading("b", begin + 1, ["?"])
    problem = Problem(code="reading.bad_value", message="it is no number")
    filled.fill(used, given_reading("c", begin + DAY))
    update_silver(None, filled.path, ontology)
    looked_at: list[str] = []

    def read(path: Path, columns: Any = None) -> pa.Table:
        looked_at.append(path.parent.name)
        return silver_duplicates.read_columns(path, columns)

    monkeypatch.setattr(silver_marks, "read_columns", read)
    filled.append("quarantine", quarantine_event("policies", unreadable, problem))
    filled.fill(unreadable)
    assert update_silver(None, filled.path, ontology).set_aside == 0
    assert looked_at == []
    filled.append("quarantine", quarantine_event("policies", used, problem))
    filled.export()
    assert update_silver(None, filled.path, ontology).set_aside == 1
    assert set(looked_at) == {"day=2026-03-02"}
    assert filled.states() == {"c": "counted"}


def test_a_verdict_may_come_before_its_reading(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    filled.append("events", given_reading("b", begin))
    filled.append("detections", late_event("policies", (begin, "b")))
    filled.export("detections")
    assert update_silver(None, filled.path, ontology).late == 0
    filled.export()
    assert update_silver(None, filled.path, ontology).late == 1
    assert filled.states() == {"b": "late"}


def test_of_corrected_readings_the_newest_stands(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    filled.fill(given_reading("1", begin), given_reading("1", begin, source="other"))
    update_silver(None, filled.path, ontology)
    filled.fill(given_reading("1~a", begin + DAY, [9, 9], corrects="1"))
    assert update_silver(None, filled.path, ontology).corrected == 1
    filled.fill(given_reading("1~b", begin + 2 * DAY, [8, 8], corrects="1"))
    assert update_silver(None, filled.path, ontology).corrected == 1
    states = [(row["event_source"], row["id"], row["status"]) for row in filled.rows()]
    assert states == [
        ("person_position", "1", "corrected"),
        ("other", "1", "counted"),
        ("person_position", "1~a", "corrected"),
        ("person_position", "1~b", "counted"),
    ]
    assert filled.rows()[0]["reason"] == "corrected by 1~a"


def test_what_the_node_held_back_is_listed_with_reason_and_hint(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    ahead = given_reading("ahead", begin + 3)
    problem = Problem(code="policy.ahead_of_clock", message="3 ms ahead", hint="set the clock")
    rejected = make_event(
        source="rapport.mediation",
        id="q1",
        type="rapport.mediation.rejected",
        time=begin,
        data={
            "reason": "value.unknown",
            "message": "no tag",
            "hint": "add it",
            "raw": {"source": "reader", "id": "77", "type": "rfid", "data": {"tag": 1}},
        },
    )
    filled.append("quarantine", rejected)
    filled.fill(ahead, given_reading("ok"))
    update_silver(None, filled.path, ontology)
    assert list(filled.states()) == ["ahead", "ok"]
    filled.append("quarantine", quarantine_event("policies", ahead, problem))
    filled.export()
    assert update_silver(None, filled.path, ontology).set_aside == 1
    assert list(filled.states()) == ["ok"]
    held = filled.rows("quarantined")
    assert [(r["id"], r["source"], r["reason"], r["hint"], r["found_by"]) for r in held] == [
        ("77", "reader", "value.unknown", "add it", "mediation"),
        ("ahead", "person_position", "policy.ahead_of_clock", "set the clock", "policy"),
    ]
    assert held[0]["data"] == '{"tag":1}'


def test_what_two_channels_tell_from_one_position_stands_side_by_side(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    """What the lake and the node held back; also when one of them comes in a later run."""

    def rejected(id: str) -> Event:
        raw = {"source": "reader", "id": id, "type": "rfid", "data": {"tag": 1}}
        data = {"reason": "value.unknown", "message": "no tag", "hint": "", "raw": raw}
        return make_event(
            source="rapport.mediation", id=id, type="rapport.mediation.rejected", data=data, time=1
        )

    filled.append("quarantine", rejected("q1"))
    filled.fill(given_reading("e1", stream="robot.load", value=[1]))
    assert update_silver(None, filled.path, ontology).quarantined == 2
    assert [row["id"] for row in filled.rows("quarantined")] == ["e1", "q1"]
    filled.append("quarantine", rejected("q2"))
    filled.export()
    update_silver(None, filled.path, ontology)
    filled.fill(given_reading("e2", stream="robot.load", value=[1]))
    update_silver(None, filled.path, ontology)
    assert [row["id"] for row in filled.rows("quarantined")] == ["e1", "q1", "e2", "q2"]
    assert compact(filled.path).repeated == 0
    assert [row["id"] for row in filled.rows("quarantined")] == ["e1", "q1", "e2", "q2"]
    assert len(list((filled.path / "silver/quarantined").rglob("*.parquet"))) == 1


def test_readings_that_nobody_declares_are_held_back(
    filled: Any, ontology: Ontology, given_reading: Reading, ontology_with: Any
) -> None:
    filled.fill(given_reading("a", stream="robot.load", value=[1]))
    assert update_silver(None, filled.path, ontology).quarantined == 1
    wider = ontology_with(robot_load="number")
    assert update_silver(None, filled.path, wider, rebuild=True).readings == 1
    assert filled.rows("stream=robot.load")[0]["value"] == 1.0
    assert not (filled.path / "silver/quarantined").exists()


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_silver_is_not_made_anew_from_less_than_it_was_made_of(
    filled: Any, ontology: Ontology, given_reading: Reading, how: str
) -> None:
    filled.fill(given_reading("a"), given_reading("b"))
    filled.fill(given_reading("c"))
    update_silver(None, filled.path, ontology)
    first, _second = sorted((filled.path / "bronze/channel=events").rglob("*.parquet"))
    content = first.read_bytes()
    first.write_bytes(content[:100])
    if how == "missing":
        first.unlink()
    before = filled.rows()
    with pytest.raises(Conflict) as refused:
        update_silver(None, filled.path, ontology, rebuild=True)
    assert refused.value.code == "lake.cannot_rebuild"
    assert ("missing" if how == "missing" else first.name) in refused.value.hint
    assert filled.rows() == before
    first.write_bytes(content)
    filled.fill(given_reading("d"))
    assert update_silver(None, filled.path, ontology, rebuild=True).readings == 4


def test_a_type_that_changed_is_held_back_and_old_files_stay(
    filled: Any, ontology: Ontology, given_reading: Reading, ontology_with: Any
) -> None:
    filled.fill(given_reading("a", stream="room.warmth", value=[1]))
    update_silver(None, filled.path, ontology)
    (before,) = (filled.path / "silver/stream=room.warmth").rglob("*.parquet")
    content = before.read_bytes()
    filled.fill(given_reading("b", stream="room.warmth", value=["hot"]))
    update_silver(None, filled.path, ontology_with(room_warmth="text"))
    (held,) = filled.rows("quarantined")
    assert held["reason"] == "lake.type_conflict"
    assert "double" in held["message"]
    assert before.read_bytes() == content
    filled.fill(given_reading("c", stream="room.warmth", value=[1, 2]))
    assert update_silver(None, filled.path, ontology_with(room_warmth="point")).readings == 1
    folder = filled.path / "silver/stream=room.warmth"
    found = duckdb.sql(
        f"SELECT id, value, x FROM read_parquet('{folder}/**/*.parquet', union_by_name=true) "
        "ORDER BY id"
    ).fetchall()
    assert found == [("a", 1.0, None), ("c", None, 1.0)]


def test_detections_stand_in_gold_once(filled: Any, ontology: Ontology, begin: int) -> None:
    found = Detection(
        policy="p", time=begin, bindings={"a": "5"}, causes=((begin, "x"),), version="v1"
    )
    filled.append("detections", found.to_event(source="policies"))
    filled.append("detections", Undecided.of(found, ("s",)).to_event(source="policies"))
    filled.append("detections", found.to_event(source="elsewhere"))
    filled.export()
    done = update_silver(None, filled.path, ontology)
    assert (done.detections, done.duplicates) == (2, 1)
    first, second = filled.all_rows("gold/detected")
    assert (first["id"], first["kind"], first["policy"]) == (found.id(), "detected", "p")
    assert (first["bindings"], first["cause_ids"]) == ([("a", "5")], ["x"])
    assert (second["kind"], second["silent"]) == ("undecided", ["s"])


def test_a_damaged_file_is_named_and_taken_once_it_is_mended(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    for id in ("a", "b", "c"):
        filled.fill(given_reading(id))
    files = sorted((filled.path / "bronze/channel=events").rglob("*.parquet"))
    whole = files[1].read_bytes()
    for broken in (b"", whole[: len(whole) // 2], whole[:-9]):
        files[1].write_bytes(broken)
        done = update_silver(None, filled.path, ontology)
        assert list(filled.states()) == ["a", "c"]
        codes = [(problem.code, problem.file) for problem in done.problems]
        assert codes[0] == ("lake.bad_file", str(files[1].relative_to(filled.path)))
        assert codes[1][0] == "lake.missing_rows"
        assert done.problems[0].hint
    files[1].write_bytes(whole)
    done = update_silver(None, filled.path, ontology)
    assert (done.readings, done.problems, done.missing) == (1, (), 0)
    assert list(filled.states()) == ["a", "b", "c"]


def test_a_mended_file_of_a_corrected_reading_is_marked_at_once(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    filled.fill(given_reading("1"))
    (file,) = (filled.path / "bronze/channel=events").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(b"PAR1")
    filled.fill(given_reading("1~a", corrects="1"))
    update_silver(None, filled.path, ontology)
    file.write_bytes(whole)
    update_silver(None, filled.path, ontology)
    assert filled.states() == {"1": "corrected", "1~a": "counted"}


def test_a_mended_file_of_a_late_reading_is_marked_however_long_it_took(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int
) -> None:
    filled.fill(given_reading("b", begin))
    (file,) = (filled.path / "bronze/channel=events").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(b"PAR1")
    filled.append("detections", late_event("policies", (begin, "b")))
    filled.export()
    update_silver(None, filled.path, ontology)
    asyncio.run(filled.clock.advance(DAY))
    filled.fill(given_reading("c", begin + DAY))
    update_silver(None, filled.path, ontology)
    file.write_bytes(whole)
    assert update_silver(None, filled.path, ontology).late == 1
    assert filled.states() == {"b": "late", "c": "counted"}
    assert read_waiting(filled.path) == []


def test_silver_is_not_made_anew_while_somebody_reads(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    filled.fill(given_reading("a"))
    update_silver(None, filled.path, ontology)
    with reading(filled.path), pytest.raises(Conflict) as caught:
        update_silver(None, filled.path, ontology, rebuild=True)
    assert caught.value.code == "lake.in_use"
    assert list(filled.states()) == ["a"]
    assert update_silver(None, filled.path, ontology, rebuild=True).readings == 1


def test_damage_inside_a_file_is_found_too(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    filled.fill(*(given_reading(str(n)) for n in range(50)))
    (file,) = (filled.path / "bronze/channel=events").rglob("*.parquet")
    content = bytearray(file.read_bytes())
    content[4:400] = bytes(396)
    file.write_bytes(content)
    done = update_silver(None, filled.path, ontology)
    assert done.readings == 0
    assert done.problems[0].code == "lake.bad_file"


def test_foreign_files_are_named_and_left_alone(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    filled.fill(given_reading("a"), given_reading("b"))
    (file,) = (filled.path / "bronze/channel=events").rglob("*.parquet")
    table = pq.read_table(file, partitioning=None)
    pq.write_table(pa.table({"hello": [1]}), file.with_name(f"{1:020d}-{1:020d}.parquet"))
    wrong = table.drop(["time"]).append_column("time", pa.array(["no", "time"]))
    pq.write_table(wrong, file.with_name(f"{0:020d}-{2:020d}.parquet"))
    pq.write_table(table, file.with_name("copy of it.parquet"))
    done = update_silver(None, filled.path, ontology)
    assert list(filled.states()) == ["a", "b"]
    assert [problem.code for problem in done.problems] == ["lake.foreign_file"] * 3
    assert any("hello" not in one.message and "column" in one.message for one in done.problems)


def test_a_file_that_stands_twice_counts_once_and_a_missing_one_is_told(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    for id in ("a", "b", "c"):
        filled.fill(given_reading(id))
    files = sorted((filled.path / "bronze/channel=events").rglob("*.parquet"))
    files[0].with_name(f"{1:020d}-{2:020d}.parquet").write_bytes(files[0].read_bytes())
    gone = files[2].read_bytes()
    files[2].unlink()
    done = update_silver(None, filled.path, ontology)
    assert (list(filled.states()), done.missing) == (["a", "b"], 1)
    assert done.problems[-1].code == "lake.missing_rows"
    files[2].write_bytes(gone)
    assert update_silver(None, filled.path, ontology, rebuild=True).missing == 0
    assert list(filled.states()) == ["a", "b", "c"]


def test_one_job_at_a_time_works_on_a_lake(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    filled.fill(given_reading("a"))
    with changing(filled.path), pytest.raises(Conflict) as caught:
        update_silver(None, filled.path, ontology)
    assert caught.value.code == "lake.job_running"


@pytest.mark.parametrize("name", ["_manifest.json", "_waiting.json", "_ids/000000000001.keys"])
def test_what_silver_knows_of_itself_is_told_when_it_is_damaged(
    filled: Any, ontology: Ontology, given_reading: Reading, begin: int, name: str
) -> None:
    filled.append("detections", late_event("policies", (begin, "later")))
    filled.fill(given_reading("a"))
    update_silver(None, filled.path, ontology)
    (filled.path / "silver" / name).write_bytes(b"{")
    filled.fill(given_reading("b"))
    with pytest.raises(Corrupt) as caught:
        update_silver(None, filled.path, ontology)
    assert caught.value.code in ("lake.bad_manifest", "lake.bad_index")
    assert caught.value.hint


def test_a_disk_that_refuses_is_told_and_nothing_is_half_done(
    filled: Any, ontology: Ontology, given_reading: Reading
) -> None:
    filled.fill(given_reading("a"))

    def full(step: str) -> None:
        if step == "placed":
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreUnavailable, match="No space left"):
        update_silver(None, filled.path, ontology, at_step=full)
    update_silver(None, filled.path, ontology)
    assert list(filled.states()) == ["a"]


def double_rows(filled: Any, id: str, time: int, copies: int) -> None:
    """Lets bronze have an event again, at new positions and with another time, as a channel has
    that forgot it."""
    from rapport.channel.export.lake_export import read_manifest, write_manifest

    (file,) = (filled.path / "bronze/channel=events").rglob("*.parquet")
    row = pq.read_table(file, partitioning=None).to_pylist()[0]
    manifest = read_manifest(filled.path)
    first = manifest.progress("events").exported + 1
    rows = [{**row, "id": id, "time": time, "position": first + n} for n in range(copies)]
    table = pa.Table.from_pylist(rows, schema=pq.read_schema(file))
    last = first + copies - 1
    pq.write_table(table, file.with_name(f"{first:020d}-{last:020d}.parquet"))
    manifest.progress("events").exported = last
    write_manifest(filled.path, manifest)
