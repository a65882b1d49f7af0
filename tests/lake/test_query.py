"""Questions are answered from every table, nothing can be written, and errors name the nearest.
[PI-3, PI-12]
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rapport.core.errors import InvalidInput, UnknownName
from rapport.lake.catalogue import describe, lake_tables, table_named
from rapport.lake.query import ask_duckdb
from rapport.lake.table import Table, field, replace_rows

DAY = 86_400_000


@pytest.fixture
def lake(filled: Any) -> Any:
    """A lake with something in every layer."""
    filled.append("raw.a-b", "r")
    filled.append("events", "a", "b", time=7)
    filled.append("events", "far", time=2**59)
    filled.export()
    filled.clock.set_ms(filled.clock.now_ms() + DAY)
    filled.append("events", "next day")
    filled.export()
    warmth = pa.table({"id": ["w"], "value": [21.5]})
    schema = pa.schema([field("id", pa.string()), field("value", pa.float64(), unit="degC")])
    Table.ensure(
        filled.lake.table_uri("silver", "room.warmth"),
        schema,
        description="readings of room.warmth",
    ).append(warmth.cast(schema))
    replace_rows(filled.lake.table_uri("gold", "totals"), pa.table({"n": [9]}))
    replace_rows(filled.lake.table_uri("gold", "totals"), pa.table({"n": [1, 2]}))
    return filled.path


def ask(lake: Any, sql: str) -> list[dict[str, Any]]:
    return ask_duckdb(lake, sql).to_pylist()


def test_every_table_has_a_name_in_sql(lake: Any) -> None:
    names = {table.name: table.view for table in lake_tables(lake)}
    assert names == {
        "bronze/events": "events",
        "bronze/raw.a-b": "bronze_raw_a_b",
        "silver/room.warmth": "room_warmth",
        "gold/totals": "totals",
    }
    for view in names.values():
        assert ask(lake, f"SELECT count(*) AS n FROM {view}")[0]["n"] >= 1
    assert lake_tables(lake / "missing") == []


def test_a_question_sees_times_days_and_payloads(lake: Any) -> None:
    sql = "SELECT id, time, time_ms, day, data FROM events ORDER BY position"
    found = ask(lake, sql)
    assert [row["id"] for row in found] == ["a", "b", "far", "next day"]
    assert found[0]["time"].isoformat() == "1970-01-01T00:00:00.007000+00:00"
    assert (found[2]["time"], found[2]["time_ms"]) == (None, 2**59)
    assert [str(row["day"]) for row in found] == ["2026-03-02"] * 3 + ["2026-03-03"]
    assert found[0]["data"] == '{"n":1}'
    assert ask(lake, "SELECT n FROM totals ORDER BY n") == [{"n": 1}, {"n": 2}]


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
    with pytest.raises(UnknownName, match="evnts") as caught:
        ask_duckdb(lake, "SELECT * FROM evnts")
    assert caught.value.hint == "did you mean 'events'?"
    with pytest.raises(UnknownName, match="recieved") as caught:
        ask_duckdb(lake, "SELECT recieved FROM events")
    assert caught.value.hint == "did you mean 'received'?"
    with pytest.raises(UnknownName) as caught:
        ask_duckdb(lake, "SELECT e.recieved FROM events e")
    assert caught.value.hint == "did you mean 'received'?"
    with pytest.raises(InvalidInput) as wrong:
        ask_duckdb(lake, "SELEC 1")
    assert wrong.value.code == "lake.bad_sql"


def test_the_catalogue_tells_rows_days_columns_and_units(lake: Any) -> None:
    warmth = describe(lake, table_named(lake, "room_warmth"))
    assert (warmth.rows, warmth.files, warmth.meaning) == (1, 1, "readings of room.warmth")
    value = next(column for column in warmth.columns if column.name == "value")
    assert (value.type, value.unit) == ("double", "degC")
    events = describe(lake, table_named(lake, "bronze/events"))
    assert (events.rows, events.first_day, events.last_day) == (4, "2026-03-02", "2026-03-03")
    assert {"time", "headers", "data"} <= {column.name for column in events.columns}
    with pytest.raises(UnknownName) as caught:
        table_named(lake, "room_warmt")
    assert caught.value.hint == "did you mean 'room_warmth'?"


def test_a_table_with_a_damaged_log_is_named_and_stops_no_other(lake: Any) -> None:
    (log,) = (lake / "silver/room.warmth/_delta_log").glob("*1.json")
    log.write_bytes(b"{half")
    described = {table.name: describe(lake, table) for table in lake_tables(lake)}
    (problem,) = described["silver/room.warmth"].problems
    assert (problem.code, "room.warmth" in problem.message) == ("lake.bad_table", True)
    assert described["bronze/events"].rows == 4


def test_a_column_that_came_later_is_null_before(lake: Any, filled: Any) -> None:
    uri = filled.lake.table_uri("silver", "room.warmth")
    wider = pa.schema([("id", pa.string()), ("value", pa.float64()), ("x", pa.float64())])
    Table.ensure(uri, wider).append(pa.table({"id": ["v"], "value": [None], "x": [2.0]}, wider))
    found = ask(lake, "SELECT value, x FROM room_warmth ORDER BY id")
    assert found == [{"value": None, "x": 2.0}, {"value": 21.5, "x": None}]
    assert Table(uri).unit("value") == "degC"
