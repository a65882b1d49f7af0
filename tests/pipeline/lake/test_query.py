"""Questions are answered from every table, nothing can be written, and errors name the nearest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event
from rapport.pipeline.lake.catalogue import describe, lake_tables, table_named
from rapport.pipeline.lake.files import write_gold
from rapport.pipeline.lake.query import ask_duckdb
from rapport.pipeline.lake.silver import update_silver
from rapport.policy.ontology import Ontology

Reading = Callable[..., Event]


@pytest.fixture
def lake(filled: Any, given_reading: Reading, ontology: Ontology, begin: int) -> Any:
    """A lake with something in every layer."""
    warm = given_reading("w", begin, [21], stream="room.warmth", source="room_warmth")
    bad = given_reading("bad", begin, ["x"])
    filled.append("raw.a-b", given_reading("r"))
    filled.fill(given_reading("a", begin + 5), given_reading("far", 2**59), warm, bad)
    update_silver(None, filled.path, ontology)
    write_gold(filled.path, "totals", pa.table({"n": [1, 2]}))
    return filled.path


def ask(lake: Any, sql: str) -> list[dict[str, Any]]:
    answer = ask_duckdb(lake, sql)
    assert answer.problems == ()
    return answer.table.to_pylist()


def test_every_table_has_a_name_in_sql(lake: Any) -> None:
    names = {table.name: table.view for table in lake_tables(lake)}
    assert names == {
        "bronze/events": "events",
        "bronze/raw.a-b": "bronze_raw_a_b",
        "silver/person.position": "person_position",
        "silver/room.warmth": "room_warmth",
        "silver/quarantined": "quarantined",
        "gold/totals": "totals",
    }
    for view in names.values():
        assert ask(lake, f"SELECT count(*) AS n FROM {view}")[0]["n"] >= 1


def test_damaged_notes_of_one_table_are_named_and_stop_no_other(lake: Any) -> None:
    path = lake / "silver/stream=room.warmth/_table.json"
    path.write_bytes(b"{half")
    described = {table.name: describe(table) for table in lake_tables(lake)}
    warmth = described["silver/room.warmth"]
    assert [(one.code, one.file) for one in warmth.problems] == [("lake.bad_sidecar", str(path))]
    assert (warmth.rows, warmth.columns[0].name) == (1, "time")
    assert not described["silver/person.position"].problems


def test_questions_join_tables_and_show_times(lake: Any, begin: int) -> None:
    found = ask(
        lake,
        "SELECT p.id, p.moment, e.data FROM person_position p JOIN events e USING (position) "
        "ORDER BY p.id",
    )
    assert [row["id"] for row in found] == ["a", "far"]
    assert (str(found[0]["moment"]), found[1]["moment"]) == ("2026-03-02 00:00:00.005000", None)
    assert found[0]["data"] == '{"key":"5","value":[1.0,2.0]}'
    assert ask(lake, "SELECT reason FROM quarantined")[0]["reason"] == "reading.bad_value"


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t AS SELECT 1",
        "COPY events TO 'x.csv'",
        "INSTALL httpfs",
        "ATTACH 'x.db'",
        "DROP VIEW events",
        "SET memory_limit = '1GB'",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "",
        "INSERT INTO totals VALUES (1)",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT content FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
    ],
)
def test_nothing_but_a_question_about_the_lake_is_answered(lake: Any, sql: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ask_duckdb(lake, sql)
    assert caught.value.code in ("lake.not_a_question", "lake.bad_sql", "lake.unknown_table")


def test_errors_name_the_nearest(lake: Any) -> None:
    with pytest.raises(UnknownName, match="person_postion") as caught:
        ask_duckdb(lake, "SELECT * FROM person_postion")
    assert caught.value.hint == "did you mean 'person_position'?"
    with pytest.raises(UnknownName, match="recieved") as caught:
        ask_duckdb(lake, "SELECT recieved FROM person_position")
    assert caught.value.hint == "did you mean 'received'?"
    with pytest.raises(UnknownName) as caught:
        ask_duckdb(lake, "SELECT p.recieved FROM person_position p")
    assert caught.value.hint == "did you mean 'received'?"
    with pytest.raises(InvalidInput) as wrong:
        ask_duckdb(lake, "SELEC 1")
    assert wrong.value.code == "lake.bad_sql"


def test_files_that_cannot_be_read_are_named_and_the_rest_is_answered(lake: Any) -> None:
    folder = lake / "silver/stream=room.warmth/day=2026-03-02"
    (folder / f"{90:020d}-{90:020d}.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"hello": [1]}), folder / f"{91:020d}-{91:020d}.parquet")
    (whole,) = folder.glob("*3.parquet")
    (folder / "copy.parquet").write_bytes(whole.read_bytes())
    answer = ask_duckdb(lake, "SELECT id FROM room_warmth")
    assert answer.table.to_pylist() == [{"id": "w"}]
    assert sorted(problem.code for problem in answer.problems) == [
        "lake.bad_file",
        "lake.foreign_file",
        "lake.foreign_file",
    ]


def test_the_catalogue_tells_columns_days_and_units(lake: Any) -> None:
    warmth = describe(table_named(lake, "room_warmth"))
    assert (warmth.rows, warmth.files, warmth.first_day) == (1, 1, "2026-03-02")
    assert warmth.meaning == "readings of room.warmth"
    value = next(column for column in warmth.columns if column.name == "value")
    assert (value.type, value.unit, bool(value.since)) == ("double", "°C", True)
    position = describe(table_named(lake, "silver/person.position"))
    assert (position.first_day, position.last_day) == ("2026-03-02", "beyond")
    events = describe(table_named(lake, "events"))
    assert {"time", "headers", "data"} <= {column.name for column in events.columns}
    with pytest.raises(UnknownName) as caught:
        table_named(lake, "room_warmt")
    assert caught.value.hint == "did you mean 'room_warmth'?"


def test_older_and_newer_forms_of_a_table_are_read_together(
    filled: Any, given_reading: Reading, ontology_with: Any
) -> None:
    for number, (kind, value) in enumerate([("number", [1]), ("point", [2, 3])]):
        filled.fill(given_reading(str(number), stream="room.warmth", value=value))
        update_silver(None, filled.path, ontology_with(room_warmth=kind))
    found = ask(filled.path, "SELECT value, x FROM room_warmth ORDER BY id")
    assert found == [{"value": 1.0, "x": None}, {"value": None, "x": 2.0}]
    columns = {one.name: one for one in describe(table_named(filled.path, "room_warmth")).columns}
    assert columns["value"].until
    assert not columns["x"].until


def test_a_wider_type_is_read_over_a_narrower_one(filled: Any, given_reading: Reading) -> None:
    filled.fill(given_reading("a", stream="room.warmth", value=[1.5]))
    folder = filled.path / "silver/stream=room.warmth/day=2026-03-02"
    folder.mkdir(parents=True)
    for number, value in ((1, pa.array([1], pa.int64())), (2, pa.array([1.5]))):
        columns = {"time": [0], "id": ["a"], "position": [number], "status": ["counted"]}
        table = pa.table({**columns, "value": value})
        pq.write_table(table, folder / f"{number:020d}-{number:020d}.parquet")
    found = ask(filled.path, "SELECT value FROM room_warmth ORDER BY position")
    assert [row["value"] for row in found] == [1.0, 1.5]
