import msgspec
import pyarrow as pa
import pytest

from rapport.context.simulation.point import SearchPoint, run_point
from rapport.core.errors import Corrupt
from rapport.pipeline.grids import part_of, run_grid


class Cell(msgspec.Struct, frozen=True):
    base: int
    power: int


CELLS = [Cell(base, power) for base in (2, 3) for power in (1, 2, 3)]
made = []


def power(cell):
    made.append(cell)
    return pa.table({"base": [cell.base], "power": [cell.power], "is": [cell.base**cell.power]})


def test_the_rows_come_in_the_order_of_the_points(tmp_path):
    rows = run_grid(None, CELLS, power, folder=tmp_path, name="powers")
    assert rows["is"].to_pylist() == [2, 4, 8, 3, 9, 27]


def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path):
    run_grid(None, CELLS[:4], power, folder=tmp_path, name="powers")
    made.clear()
    rows = run_grid(None, CELLS, power, folder=tmp_path, name="powers")
    assert made == CELLS[4:]
    assert rows["is"].to_pylist() == [2, 4, 8, 3, 9, 27]


def test_another_name_makes_everything_anew(tmp_path):
    run_grid(None, CELLS, power, folder=tmp_path, name="powers")
    made.clear()
    run_grid(None, CELLS, power, folder=tmp_path, name="powers-2")
    assert made == CELLS


def test_a_point_that_stands_twice_is_made_once_and_told_twice(tmp_path):
    made.clear()
    rows = run_grid(None, [CELLS[0]] * 2, power, folder=tmp_path, name="powers")
    assert (len(made), rows.num_rows) == (1, 2)


def test_a_damaged_part_is_named(tmp_path):
    run_grid(None, CELLS, power, folder=tmp_path, name="powers")
    part_of(tmp_path, "powers", CELLS[2]).write_bytes(b"PAR1")
    with pytest.raises(Corrupt, match="powers-") as refused:
        run_grid(None, CELLS, power, folder=tmp_path, name="powers")
    assert refused.value.code == "lake.bad_file"


@pytest.mark.spark
def test_spark_gives_the_same_rows_as_this_process(spark, tmp_path):
    """The function has to be one that Spark's workers can import: a point of the study."""
    points = [
        SearchPoint(part="both", brokers=30, copies=copies, requests=40, seed=7)
        for copies in (1, 3, 9)
    ]
    here = run_grid(None, points, run_point, folder=tmp_path / "here", name="both")
    there = run_grid(spark, points, run_point, folder=tmp_path / "there", name="both")
    assert there.equals(here)
