"""The benchmark of communication measures what it says; timings decide nothing.
[CO-6, CO-7, CO-8]
"""

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.command import NAMES
from benchmarks.communication import measuring as communication
from benchmarks.communication.cell import run_cell
from benchmarks.communication.collective import tell_everybody
from benchmarks.communication.plot import grid_lines, grid_plot
from benchmarks.communication.rules import engine_us
from benchmarks.communication.stages import stages

GOALS = {60_000, 0.7, 1.5, 1}
METRICS = (
    r"handled, (1|10) workers x (1|100) peers, sends of up to 500",
    r"handled in the best cell",
    r"slowest cell / fastest cell",
    r"handled, .* senders told ACK",
    r"handled, .* in the ledger as answered",
    r"stage by itself, processor time: (send|handle|dispatch|answer)",
    r"engine per message, (10|100,000) routing rules, (no|one) rule matches",
    r"100,000 routing rules / 10, (no|one) rule matches",
    r"one message to a collective of 2,000, .*(first delivery|handed over|memory)",
    r"(ours|NATS JetStream).*, publish, consume, reply, consume",
    r"ours / NATS JetStream",
)


@pytest.mark.long
def test_a_quick_run_gives_every_metric_in_the_fixed_form_with_the_goals_of_the_issue(
    tmp_path: Path,
) -> None:
    assert "communication" in NAMES
    plot = tmp_path / "grid.svg"
    results = communication.run(quick=True, plot=plot)["results"]
    names = [result["metric"] for result in results]
    assert len(set(names)) == len(names)
    for result in results:
        assert {"metric", "value", "unit", "better", "goal", "ok"} == set(result)
        assert (
            result["value"] > 0
            or "not installed" in result["metric"]
            or "memory" in result["metric"]
        )
        assert (result["goal"] is None) == (result["ok"] is None)
    assert {result["goal"] for result in results} - {None} == GOALS
    for wanted in METRICS:
        assert any(re.match(wanted, name) for name in names), wanted
    assert len(ElementTree.parse(plot).findall(".//{*}rect")) == 4 + 2


@pytest.mark.parametrize("with_tokens", [False, True])
def test_a_cell_counts_what_the_ledger_says(with_tokens: bool) -> None:
    cell = asyncio.run(run_cell(3, 7, 400, with_tokens=with_tokens, batch=50))
    assert (cell.workers, cell.peers, cell.messages) == (3, 7, 400)
    assert cell.handled_per_second == pytest.approx(800 / cell.seconds)
    assert cell.processor_us > 0


def test_a_cell_in_which_a_message_gets_lost_is_not_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def one_less(_room: object) -> tuple[dict[str, int], dict[str, int]]:
        return {"queued": 20, "notified": 20, "handed": 19}, {}

    monkeypatch.setattr("benchmarks.communication.cell._lines", one_less)
    with pytest.raises(RuntimeError, match="the ledger says"):
        asyncio.run(run_cell(1, 1, 20))


def test_every_member_of_a_collective_is_told_once() -> None:
    told = asyncio.run(tell_everybody(50))
    assert 0 < told.first_seconds <= told.all_seconds


def test_the_stages_cover_a_message_and_its_answer() -> None:
    found = asyncio.run(stages(1))
    assert len(found) == 5
    assert all(processor > 0 for _took, processor in found.values())


@pytest.mark.parametrize("matching", [False, True])
def test_rules_are_measured_through_the_engine(matching: bool) -> None:
    assert asyncio.run(engine_us(20, 100, matching=matching)) > 0


def test_the_grid_is_a_table_and_a_plot() -> None:
    grid = {(workers, peers): workers * 1_000.0 + peers for workers in (1, 5) for peers in (1, 10)}
    assert grid_lines(grid)[2].split() == ["5", "5,001", "5,010"]
    plot = grid_plot(grid, 60_000)
    assert "5 workers, 10 peers: 5,010/s" in plot
    ElementTree.fromstring(plot)
