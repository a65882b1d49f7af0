"""Tables made from a log: with the position they rest on, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.store.derived_rows import IN_MEMORY, DerivedRows, RowCondition, TableShape

SHAPES = {
    "things": TableShape(("name", "colour", "size"), ("name",), (("colour", "size"), ("size",))),
    "places": TableShape(("name", "place"), ("name", "place")),
}


@pytest.fixture(params=["memory", "file"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> DerivedRows:
    return DerivedRows(IN_MEMORY if request.param == "memory" else tmp_path / "rows", SHAPES)


def test_rows_are_found_by_key_by_column_and_in_order(rows: DerivedRows) -> None:
    things = [(f"t{n}", "red" if n % 2 else "blue", n) for n in range(6)]
    assert rows.ingest("log", 0, 6, {"things": things, "places": [("t1", "a"), ("t1", "b")]})
    assert rows.by_key("things", [["t3"], ["missing"]]) == [("t3", "red", 3)]
    assert sorted(rows.by_key("places", [["t1"]])) == [("t1", "a"), ("t1", "b")]
    assert rows.by_key("places", [["t1", "b"]]) == [("t1", "b")]
    assert rows.by_key("places", []) == []
    red = [RowCondition(("colour",), "=", ("red",))]
    assert [row[0] for row in rows.find("things", red, newest_by=("size",), limit=2)] == [
        "t5",
        "t3",
    ]
    later = [*red, RowCondition(("size", "name"), "<", (3, "t3"))]
    assert [row[0] for row in rows.find("things", later, newest_by=("size",), limit=9)] == ["t1"]
    assert rows.counts("things", [], "colour") == {"blue": 3, "red": 3}


def test_who_was_overtaken_writes_nothing(rows: DerivedRows) -> None:
    assert rows.ingest("log", 0, 3, {"things": [("a", "red", 1)]})
    assert not rows.ingest("log", 0, 5, {"things": [("a", "blue", 1), ("b", "blue", 2)]})
    assert rows.fed("log") == 3
    assert rows.find("things", newest_by=("size",), limit=9) == [("a", "red", 1)]
    assert rows.ingest("log", 3, 5, {}, {"things": [("a",)]})
    assert rows.find("things", newest_by=("size",), limit=9) == []


def test_pruning_takes_what_stands_beside_with_it(rows: DerivedRows) -> None:
    rows.ingest(
        "log",
        0,
        2,
        {"things": [("a", "red", 1), ("b", "red", 7)], "places": [("a", "x"), ("b", "y")]},
    )
    rows.prune("things", "size", 5, beside=("places",))
    assert rows.find("things", newest_by=("size",), limit=9) == [("b", "red", 7)]
    assert rows.by_key("places", [["a"]]) == []
    rows.reset("log")
    assert (rows.fed("log"), rows.counts("things", [], "colour")) == (0, {})


def test_two_processes_share_a_file_and_another_shape_begins_anew(tmp_path: Path) -> None:
    one, other = DerivedRows(tmp_path / "rows", SHAPES), DerivedRows(tmp_path / "rows", SHAPES)
    assert one.ingest("log", 0, 1, {"things": [("a", "red", 1)]})
    assert other.fed("log") == 1
    assert not other.ingest("log", 0, 1, {"things": [("a", "blue", 1)]})
    one.close()
    other.close()
    changed = {"things": TableShape(("name", "size"), ("name",)), "places": SHAPES["places"]}
    anew = DerivedRows(tmp_path / "rows", changed)
    assert (anew.fed("log"), anew.find("things", newest_by=("size",), limit=9)) == (0, [])
    anew.close()


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"this is no database" * 100)
    rows = DerivedRows(tmp_path / "rows", SHAPES)
    assert rows.fed("log") == 0
    assert (tmp_path / "rows.damaged").exists()
    rows.close()


def test_a_question_along_an_index_sorts_nothing(rows: DerivedRows) -> None:
    red = [RowCondition(("colour",), "=", ("red",))]
    (plan,) = rows.plan("things", red, newest_by=("size",))
    assert "things_order_0" in plan
    (plan,) = rows.plan("things", [], newest_by=("size",))
    assert "things_order_1" in plan
