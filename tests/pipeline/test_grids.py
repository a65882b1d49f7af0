"""Grids of experiments are tables of the lake: made once, found by every reader, gone on with after
an end. [PI-8, PI-3]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.lake.catalogue import describe, lake_tables, table_named
from rapport.lake.maintenance import compact, expire
from rapport.lake.query import ask_duckdb
from rapport_lab.context.study import SearchPoint, run_point
from rapport_lab.grids import count_made, run_grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Cell(msgspec.Struct, frozen=True):
    base: int
    power: int


CELLS = [Cell(base, power) for base in (2, 3) for power in (1, 2, 3)]
made: list[Cell] = []


def power(cell: Cell) -> pa.Table:
    made.append(cell)
    return pa.table({"base": [cell.base], "power": [cell.power], "is": [cell.base**cell.power]})


def test_the_rows_come_in_the_order_of_the_points(tmp_path: Path) -> None:
    rows = run_grid(None, CELLS, power, lake=tmp_path, name="powers")
    assert rows["is"].to_pylist() == [2, 4, 8, 3, 9, 27]
    assert rows.column_names == ["base", "power", "is"]


def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    run_grid(None, CELLS[:4], power, lake=tmp_path, name="powers")
    made.clear()
    rows = run_grid(None, CELLS, power, lake=tmp_path, name="powers")
    assert made == CELLS[4:]
    assert rows["is"].to_pylist() == [2, 4, 8, 3, 9, 27]


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(CELLS), min_size=1, max_size=8), min_size=1, max_size=4))
def test_any_runs_make_each_point_once_and_the_table_has_them_all(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[Cell]]
) -> None:
    lake = tmp_path_factory.mktemp("lake")
    made.clear()
    for points in runs:
        rows = run_grid(None, points, power, lake=lake, name="powers")
        assert rows["is"].to_pylist() == [cell.base**cell.power for cell in points]
        assert count_made(lake, "powers", points) == len(points)
    every = {cell for points in runs for cell in points}
    assert sorted(made, key=CELLS.index) == sorted(every, key=CELLS.index)
    assert describe(lake, table_named(lake, "powers")).rows == len(every)


def test_another_name_makes_everything_anew(tmp_path: Path) -> None:
    run_grid(None, CELLS, power, lake=tmp_path, name="powers")
    made.clear()
    run_grid(None, CELLS, power, lake=tmp_path, name="powers-2")
    assert made == CELLS
    assert [table.name for table in lake_tables(tmp_path)] == ["gold/powers", "gold/powers-2"]


def test_a_point_that_stands_twice_is_made_once_and_told_twice(tmp_path: Path) -> None:
    made.clear()
    rows = run_grid(None, [CELLS[0]] * 2, power, lake=tmp_path, name="powers")
    assert (len(made), rows.num_rows) == (1, 2)


# --- a table like the others ---


def test_the_catalogue_tells_what_points_set_and_what_was_found(tmp_path: Path) -> None:
    run_grid(None, CELLS, power, lake=tmp_path, name="powers-1")
    found = describe(tmp_path, table_named(tmp_path, "powers_1"))
    assert (found.name, found.rows, found.files, found.problems) == ("gold/powers-1", 6, 6, ())
    assert found.meaning == "results of experiments, each point of the grid once"
    assert {column.name: column.meaning for column in found.columns} == {
        "base": "set by the point", "power": "set by the point", "is": "found",
        "point": "id of the point",
    }  # fmt: skip


def test_a_question_in_sql_is_answered_from_it(tmp_path: Path) -> None:
    run_grid(None, CELLS, power, lake=tmp_path, name="powers-1")
    asked = 'SELECT base, max("is") AS most FROM powers_1 GROUP BY base ORDER BY base'
    answer = ask_duckdb(tmp_path, asked)
    assert answer.to_pylist() == [{"base": 2, "most": 8}, {"base": 3, "most": 27}]


def test_care_of_the_lake_leaves_points_alone(tmp_path: Path) -> None:
    run_grid(None, CELLS, power, lake=tmp_path, name="powers")
    compact(tmp_path, fewest=2)
    expire(tmp_path, {"gold/powers": 0, "gold/*": 0}, taken={})
    made.clear()
    run_grid(None, CELLS, power, lake=tmp_path, name="powers")
    assert made == []


@pytest.mark.spark
def test_spark_gives_the_same_rows_as_this_process_and_answers_from_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The function has to be one that Spark's workers can import: a point of the study."""
    from rapport.pipeline.lake.query_spark import ask_spark

    points = [
        SearchPoint(part="both", brokers=30, copies=copies, requests=40, seed=7)
        for copies in (1, 3, 9)
    ]
    here = run_grid(None, points, run_point, lake=tmp_path / "here", name="both")
    there = run_grid(spark, points, run_point, lake=tmp_path / "there", name="both")
    assert there.equals(here)
    asked = ask_spark(spark, tmp_path / "there", "SELECT copies FROM both ORDER BY copies")
    assert asked["copies"].to_pylist() == [1, 3, 9]
