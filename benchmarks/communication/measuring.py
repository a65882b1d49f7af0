"""Everything about communication in one run: the grid of the source's section 3, what a message
costs at each stage, routing rules, a large collective, and brokers doing the same. [CO-6, CO-7,
CO-8]

Handled = messages handed to the medium + answers told to the application. Everything is durable:
`send` returns after the group commit, sendings are marked, the ledger is checked after each cell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.communication.cell import BATCH, IN_FLIGHT, Cell, mean, run_cell
from benchmarks.communication.collective import in_a_process_of_its_own
from benchmarks.communication.peers import NATS, REDIS, nats_rate, redis_rate
from benchmarks.communication.places import many_places
from benchmarks.communication.plot import Grid, grid_lines, grid_plot
from benchmarks.communication.rules import FEW, engine_us
from benchmarks.communication.side_by_side import side_by_side
from benchmarks.communication.stages import stages
from benchmarks.results import Result, absent, limit, rate
from rapport.kernel.tasks import pinned_to_cpu

WORKERS, PEERS = (1, 5, 10, 20, 50, 100), (1, 10, 100, 1_000)
GOAL, LEAST_SHARE = 60_000, 0.7
_MANY_RULES = 100_000


def run(quick: bool, full: bool = False, plot: Path | None = None) -> dict[str, Any]:
    """Some three minutes, 20 s when quick; `full` sends a million messages in each run of a cell
    instead of 50,000: three quarters of an hour, and as many gigabytes of disk as there are of
    memory. `plot` is where the grid is drawn as SVG. Progress goes to stderr.
    """
    results: list[Result] = []
    grid = _measure_grid(quick, full)
    results += _grid_results(grid)
    _say("\n".join(grid_lines(grid)))
    if plot is not None:
        plot.write_text(grid_plot(grid, GOAL), encoding="utf-8")
    parts: tuple[Callable[[bool], list[Result]], ...] = (
        _other_ways,
        _nodes,
        _stages,
        _rules,
        _collective,
        lambda quick: _brokers(quick, grid),
    )
    for part in parts:
        results += part(quick)
    return {"name": "communication", "results": results}


# --- the grid ---


def _measure_grid(quick: bool, full: bool) -> Grid:
    """The mean of each cell's runs. Cells take turns, so that hours in which the machine is slow
    are not the fault of some of them.
    """
    workers, peers = ((1, 10), (1, 100)) if quick else (WORKERS, PEERS)
    messages = 2_000 if quick else 1_000_000 if full else 50_000
    cells: dict[tuple[int, int], list[Cell]] = {place: [] for place in product(workers, peers)}
    rounds = 1 if quick else 3
    _say("warming up …")
    with pinned_to_cpu(0), many_places() as places:
        uvloop.run(run_cell(1, 10, 2_000))
        for number, place in product(range(1, rounds + 1), cells):
            cell = uvloop.run(run_cell(*place, messages, places=places))
            cells[place].append(cell)
            _say(_cell_line(cell, f"round {number} of {rounds}, " if rounds > 1 else ""))
    return {place: mean(runs) for place, runs in cells.items()}


def _cell_line(cell: Cell, which: str) -> str:
    return (
        f"{which}{cell.workers} workers, {cell.peers} peers: {cell.handled_per_second:,.0f} "
        f"handled/s, {cell.processor_us:.1f} µs of processor each"
    )


def _grid_results(grid: Grid) -> list[Result]:
    how = f"sends of up to {BATCH}, {IN_FLIGHT:,} messages on their way, held on one processor"
    results = [
        rate(f"handled, {row} workers x {column} peers, {how}", value, "messages/s")
        for (row, column), value in grid.items()
    ]
    fastest, slowest = max(grid.values()), min(grid.values())
    return [
        *results,
        rate("handled in the best cell", fastest, "messages/s", GOAL),
        rate("slowest cell / fastest cell", slowest / fastest, "times", LEAST_SHARE),
    ]


def _other_ways(quick: bool) -> list[Result]:
    """One cell in other ways: what acknowledging and proving by token cost."""
    messages = 1_000 if quick else 50_000
    _say("other ways …")
    told = uvloop.run(run_cell(10, 100, messages, policy="acknowledged"))
    proven = uvloop.run(run_cell(10, 100, messages, with_tokens=True))
    where = "10 workers x 100 peers"
    return [
        rate(f"handled, {where}, senders told ACK", told.handled_per_second, "messages/s"),
        rate(
            f"handled, {where}, answers proven by token and in the ledger as answered",
            proven.handled_per_second,
            "messages/s",
        ),
    ]


# --- the other parts ---


def _nodes(quick: bool) -> list[Result]:
    """One process can use one processor: more of them are used by more nodes."""
    _say("nodes side by side …")
    messages = 1_000 if quick else 100_000
    workers, peers = 10, 100
    where = f"{workers} workers x {peers} peers each, a log each"
    results: list[Result] = []
    for held, how in ((False, ""), (True, ", each held on a processor of its own")):
        one, two = (side_by_side(nodes, workers, peers, messages, held=held) for nodes in (1, 2))
        results += [
            rate(f"handled, 1 node, {where}{how}", one, "messages/s"),
            rate(f"handled, 2 nodes side by side, {where}{how}", two, "messages/s"),
            rate(f"two nodes / one{how}", two / one, "times"),
        ]
    return results


def _stages(quick: bool) -> list[Result]:
    _say("stages …")
    found = uvloop.run(stages(5_000 if quick else 50_000))
    results = [
        limit(f"stage by itself, processor time: {name}", processor, "µs/message")
        for name, (_took, processor) in found.items()
    ]
    together = sum(processor for _took, processor in found.values())
    what = "all stages of a message and its answer, processor time"
    return [*results, limit(what, together, "µs/pair")]


def _rules(quick: bool) -> list[Result]:
    """Best of some rounds, taking turns."""
    _say("routing rules …")
    messages, rounds = (2_000, 1) if quick else (20_000, 3)
    results: list[Result] = []
    for matching in (False, True):
        best = dict.fromkeys((FEW, _MANY_RULES), float("inf"))
        for _ in range(rounds):
            for rules in best:
                took = uvloop.run(engine_us(rules, messages, matching=matching))
                best[rules] = min(best[rules], took)
        which = "one rule matches" if matching else "no rule matches"
        for rules, took in best.items():
            what = f"engine per message, {rules:,} routing rules, {which}, processor time"
            results.append(limit(what, took, "µs"))
        ratio = best[_MANY_RULES] / best[FEW]
        what = f"{_MANY_RULES:,} routing rules / {FEW}, {which}"
        results.append(limit(what, ratio, "times", 1.5))
    return results


def _collective(quick: bool) -> list[Result]:
    members = 2_000 if quick else 100_000
    _say(f"a collective of {members:,} …")
    told = in_a_process_of_its_own(members)
    who = f"one message to a collective of {members:,}, to all members"
    return [
        limit(f"{who}, until the first delivery", told.first_seconds, "s", 1),
        limit(f"{who}, until all were handed over", told.all_seconds, "s"),
        limit(f"{who}, memory above what was used before (own process)", told.grown_mb, "MB"),
    ]


def _brokers(quick: bool, grid: Grid) -> list[Result]:
    """Brokers with the same messages, and ourselves with as many in the same minute."""
    _say("brokers …")
    messages = 1_000 if quick else 20_000
    with pinned_to_cpu(0):
        ours = uvloop.run(run_cell(1, max(peers for _, peers in grid), messages)).handled_per_second
    shape = "publish, consume, reply, consume"
    results = [rate(f"ours, {shape}, {messages:,} messages", ours, "messages/s")]
    for name, found in ((NATS, nats_rate(messages)), (REDIS, redis_rate(messages))):
        if found is None:
            results.append(absent(f"peer not installed: {name}", "messages/s"))
            continue
        results.append(rate(f"{name}, {shape}, {messages:,} messages", found, "messages/s"))
        results.append(rate(f"ours / {name}", ours / found, "times"))
    return results


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
