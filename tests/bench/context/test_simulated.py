import xml.etree.ElementTree as ElementTree

import pyarrow as pa
import pytest

from benchmarks.command import bench
from benchmarks.context import simulated
from benchmarks.context.simulated import scale_point, study_lines, study_plots, study_results
from rapport.core.errors import InvalidInput
from rapport.lake.query import ask_duckdb
from rapport_lab.context.study import SearchPoint, run_point, study_points
from rapport_lab.curve_plot import Axis, curves_plot


@pytest.fixture(scope="module")
def rows():
    """A few small points of each part."""
    first = {point.part: point for point in study_points(quick=True)}
    few = {"brokers": 20, "requests": 20, "copies": 1, "keys": 5}
    points = []
    for part, point in first.items():
        points.append(
            SearchPoint(part=part, strategy=point.strategy, look_ahead="probe", **few, hop_limit=9)
        )
    return pa.concat_tables([run_point(point) for point in points])


def test_every_part_of_the_study_has_its_table(rows):
    lines = study_lines(rows)
    for part in ("limits", "look-ahead", "strategies", "replication", "loss", "sizes"):
        assert part in lines


def test_a_study_that_is_kept_is_a_table_of_the_lake_and_is_not_made_again(tmp_path, monkeypatch):
    few = [SearchPoint(part="limits", brokers=20, requests=20, copies=n) for n in (1, 2)]
    monkeypatch.setattr(simulated, "study_points", lambda quick: few)
    first = simulated.run_search_study(quick=True, lake=tmp_path)

    def fails(point):
        raise AssertionError(point)

    monkeypatch.setattr(simulated, "run_point", fails)
    assert simulated.run_search_study(quick=True, lake=tmp_path).equals(first)
    answer = ask_duckdb(tmp_path, "SELECT copies FROM context_search_1 ORDER BY copies")
    assert answer["copies"].to_pylist() == [1, 2]


def test_only_the_search_has_a_lake(tmp_path):
    for asked in ({"name": "channel"}, {"name": "context", "part": "scale"}):
        with pytest.raises(InvalidInput) as refused:
            bench(**asked, lake=tmp_path)
        assert refused.value.code == "cli.bad_option"


def test_what_was_measured_comes_in_the_form_of_all_benchmarks(rows):
    results = study_results(rows)
    assert {"metric", "value", "unit", "better", "goal", "ok"} == set(results[0])
    assert any("look-ahead probe, depth 1: hops" in str(result["metric"]) for result in results)


def test_the_plots_are_svg_with_every_series_named(rows):
    for drawn in study_plots(rows).values():
        root = ElementTree.fromstring(drawn)
        assert root.tag.endswith("svg")


def test_a_curve_in_powers_of_ten_leaves_out_what_has_no_place_there():
    drawn = curves_plot(
        "Growth", Axis("x", True), Axis("y", True), {"one": [(1, 10), (10, 1_000), (100, 0)]}
    )
    assert drawn.count("<circle") == 3  # two points and the mark of the legend
    assert "one: 1,000 at 10" in drawn
    assert "nothing to show" in curves_plot("None", Axis("x"), Axis("y"), {"one": []})


def test_the_scale_is_the_one_that_was_asked_for():
    point = scale_point(quick=False)
    assert (point.brokers, point.requests) == (10_000, 100_000)
