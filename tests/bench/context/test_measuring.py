"""The benchmark of context measures what it says; timings decide nothing. [CX-12]"""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.command import NAMES, bench
from benchmarks.context import measuring as context
from benchmarks.context.grid import (
    MACHINES,
    Measured,
    grid_lines,
    grid_plots,
    grid_results,
    idle_python_kb,
    measure,
    placed,
)
from benchmarks.context.load import Beat, Crowd
from benchmarks.context.network import shape
from benchmarks.context.one_broker import one_broker
from benchmarks.context.published import MAIN_POINT, chosen, published
from benchmarks.context.subject import PAYLOAD_BYTES, answer_bytes, record_of
from benchmarks.results import limit
from rapport.core.errors import InvalidInput, UnknownName
from rapport.transport.base import MAX_DATAGRAM
from rapport_lab.topology import is_connected


def made_up(config: int, mean_us: float) -> Measured:
    return Measured(
        configuration=published()[config],
        copies=True,
        answers=100,
        mean_us=mean_us,
        median_us=mean_us,
        p99_us=mean_us,
        hops=0.0,
        elsewhere=0.0,
        refused=0,
        unanswered=0,
        resident_kb=40_000.0,
        grown_kb=10.0,
        processor=0.1,
    )


def test_the_published_table_is_whole_but_for_the_cells_that_cannot_be_read() -> None:
    table = published()
    assert sorted(table) == list(range(1, 252))
    grid = [table[config] for config in range(1, 244)]
    shapes = {(o.topology, o.providers, o.consumers, o.update_s, o.request_s) for o in grid}
    assert len(shapes) == 3 * 3 * 3 * 3 * 3
    assert [config for config, one in table.items() if one.response_us is None] == [117, 120]
    assert [one.config for one in grid if one.memory_kb is None] == [117, 194]
    assert all(199 < one.response_us < 1_300 for one in grid if one.response_us is not None)


@pytest.mark.parametrize(
    ("config", "response_us", "memory_kb"),
    [
        *((1, 465.09, 2129.35), (73, 215.27, 3070.49), (79, 221.39, 2549.70)),
        *((107, 889.89, 2210.45), (118, 275.87, 2723.82), (182, 860.1, 2152.77)),
        *((243, 851.06, 2791.13), (245, 880, None), (249, 1650.22, 2302.39)),
        (251, 7029.55, 5715.83),
    ],
)
def test_published_values_are_those_of_the_source(
    config: int, response_us: float, memory_kb: float | None
) -> None:
    assert published()[config].response_us == response_us
    assert published()[config].memory_kb == memory_kb


def test_what_is_run_has_the_figures_of_the_source_and_its_largest_load() -> None:
    usual = {one.config for one in chosen()}
    assert {MAIN_POINT, 154, 235, 5, 14, 23, 50, 77} | set(range(244, 252)) <= usual
    assert len(usual) == 3 + 3 * 5 + 8
    assert len(chosen(full=True)) == 251
    assert {one.config for one in chosen(quick=True)} < usual


def test_machines_stand_as_in_the_source() -> None:
    telling, asking = placed(published()[MAIN_POINT])
    assert len(set(telling)) == len(set(asking)) == MACHINES
    assert len(set(telling) & set(asking)) <= 2
    assert placed(published()[244]) == ([0], [2])
    assert placed(published()[247]) == ([0], [0])


@pytest.mark.parametrize(("topology", "edges"), [("ring", 10), ("mesh", 45), ("waxman", 10)])
def test_the_topologies_connect_ten_brokers(topology: str, edges: int) -> None:
    made = shape(topology, 10)
    assert is_connected(made)
    assert len(made.edges()) == edges


def test_clients_are_spread_evenly_over_their_interval() -> None:
    beat = Beat(Crowd(brokers=(), clients=4, interval_s=2.0), began_ns=1_000)
    waits, who = [], []
    for _ in range(6):
        waits.append(beat.wait_seconds(1_000))
        who.append(beat.next())
    assert waits == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert who == [0, 1, 2, 3, 0, 1]
    assert beat.wait_seconds(10**12) == 0.0


def test_a_record_has_a_kilobyte_and_its_answer_fits_a_datagram() -> None:
    values = record_of(0, 0).values
    assert PAYLOAD_BYTES == 1_024
    assert len(values) > 1
    assert PAYLOAD_BYTES < answer_bytes() <= MAX_DATAGRAM


def test_ours_stand_beside_the_published_ones_and_only_the_main_point_has_a_goal() -> None:
    rows = [made_up(MAIN_POINT, 200.0), made_up(117, 300.0), made_up(247, 400.0)]
    lines = grid_lines(rows, 9_000.0)
    assert "215" in lines[1]
    assert " - " in lines[2]
    assert "1,422" in lines[3]
    goals = {result["goal"] for result in grid_results(rows, 9_000.0)}
    assert goals == {None, 215.27}


def test_plots_show_ours_and_the_published_ones() -> None:
    rows = [made_up(config, 100.0 + config) for config in (5, 14, 23, 50, 77, 247, 249, 251)]
    plots = grid_plots(rows, 9_000.0)
    assert set(plots) == {"context-consumers", "context-providers", "context-memory"}
    for drawn in plots.values():
        shown = "".join(ElementTree.fromstring(drawn).itertext())
        assert "ring, published" in shown
        assert "centralized" in shown


@pytest.mark.long
@pytest.mark.parametrize("copies", [True, False])
def test_a_point_of_the_grid_runs_with_real_processes_and_answers_everybody(copies: bool) -> None:
    found = measure(published()[246], seconds=1.0, warm_s=0.5, copies=copies)
    assert found.answers >= 20
    assert found.refused == found.unanswered == 0
    assert found.resident_kb > idle_python_kb() > 1_000
    # Nobody provides at the broker that is asked: without copies all of it comes from elsewhere.
    assert found.elsewhere == 1.0 or copies
    assert found.hops >= 2.0 or copies


@pytest.mark.long
def test_one_broker_gives_every_metric_in_the_fixed_form_with_the_goals_of_the_issue() -> None:
    results = one_broker(quick=True)
    names = [str(result["metric"]) for result in results]
    assert len(set(names)) == len(names)
    for result in results:
        assert {"metric", "value", "unit", "better", "goal", "ok"} == set(result)
        assert (result["value"] == 0) == ("not answered" in str(result["metric"]))
    assert {result["goal"] for result in results} == {None, 20_000, 0.5, 1.5}


def test_a_part_runs_alone_and_an_unknown_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[bool] = []

    def simulated(quick: bool) -> list[dict[str, object]]:
        asked.append(quick)
        return [limit("simulated", 1.0, "s")]

    monkeypatch.setattr(context, "scale", simulated)
    results = context.run(quick=True, part="scale", plot=tmp_path / "plots")["results"]
    assert [result["metric"] for result in results] == ["simulated"]
    assert asked == [True]
    assert (tmp_path / "plots").is_dir()
    with pytest.raises(UnknownName) as error:
        context.run(quick=True, part="gird")
    assert "grid" in error.value.hint


def test_the_command_knows_the_benchmark_and_its_parts() -> None:
    assert "context" in NAMES
    with pytest.raises(InvalidInput, match="--part"):
        bench("policy", part="grid")
