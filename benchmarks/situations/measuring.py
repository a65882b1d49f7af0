"""How fast situations are decided, beside the same rules in DuckDB and Polars. [SI-11]"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from benchmarks.policy.building import ONTOLOGY as BUILDING
from benchmarks.policy.building import Building, walk
from benchmarks.results import Result, absent, limit, rate
from benchmarks.situations import peers, stations
from rapport.kernel.clock import SystemClock
from rapport.policy.compiler.compile import compile_situation
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.situation_plan import SituationPlan
from rapport.policy.situations.situation_operator import SituationOperator

_BATCH = 10_000
_SEED = 20_261_118
_STATIONS = 5_000
_CLOCK = SystemClock()
_ALONE = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  (A is inside R AND no person B (status='employee') with (B is within 5 m of A AND B is inside R))
  for 5 s
actions
  raise alarm
"""


def run(quick: bool) -> dict[str, Any]:
    """All measurements; progress goes to stderr."""
    count = 100_000 if quick else 2_000_000
    read = stations.readings(_STATIONS, count, _SEED)
    tables = stations.Stations(_STATIONS)
    results: list[Result] = []
    rules = (("lasting", stations.LASTING, 1_000_000), ("average", stations.AVERAGE, 300_000))
    for name, situation, goal in rules:
        plans = [stations.policy(situation)]
        ours, begun = _rate(plans, tables, stations.ONTOLOGY, read)
        _say(f"{name}: {ours:,.0f} readings/s, {begun:,} begun")
        results.append(rate(f"'{situation}', {_STATIONS} stations", ours, "readings/s", goal))
        results += _beside(name, read)
    results += [_alone(count // 10), *_many(read.slice(0, count // 10), tables), *_growth(quick)]
    return {"name": "situations", "results": results}


def _alone(events: int) -> Result:
    """The third example on the secure-building set."""
    building, work = Building(200, 100, _SEED), walk(200, 100, events, _SEED)
    text = _ALONE.replace("\n  for 5 s", " for 5 s")
    plan = compile_situation(text, name="alone", ontology=BUILDING).plan
    ours, begun = _rate([plan], building, BUILDING, work.readings)
    _say(f"alone: {ours:,.0f} readings/s, {begun:,} begun")
    return rate("a guest alone in a restricted room for 5 s", ours, "readings/s", 500_000)


def _many(read: pa.RecordBatch, tables: PullData) -> list[Result]:
    """Policies that are all different, and how their number counts."""
    found = []
    costs = {}
    for number in (1, 100, 1_000):
        plans = [_distinct(place) for place in range(number)]
        part = read.slice(0, max(len(read) // max(number // 100, 1), _BATCH))
        ours, begun = _rate(plans, tables, stations.ONTOLOGY, part)
        costs[number] = 1 / ours
        _say(f"{number} policies: {ours:,.0f} readings/s, {begun:,} begun")
        if number == 100:
            found.append(rate("100 distinct policies together", ours, "readings/s", 100_000))
    found.append(limit("1,000 distinct policies / one", costs[1_000] / costs[1], "times"))
    return found


def _distinct(place: int) -> SituationPlan:
    kinds = (
        f"temperature of S above {24 + place / 100} degC for {1 + place % 7} min",
        f"max of temperature of S in the last {10 + place % 50} min above {25 + place / 100} degC",
        f"change of temperature of S in the last {5 + place % 30} min above {2 + place / 100} K",
        f"no temperature of S for {2 + place} min",
    )
    group = f" (group = {place % 100})"
    return stations.policy(kinds[place % len(kinds)], f"p{place}", group)


def _growth(quick: bool) -> list[Result]:
    """From few identities to many."""
    costs = {}
    for number in (100, 100_000):
        read = stations.readings(number, 100_000 if quick else 500_000, _SEED)
        plans = [stations.policy(stations.LASTING)]
        ours, _ = _rate(plans, stations.Stations(number), stations.ONTOLOGY, read)
        _say(f"{number:,} stations: {ours:,.0f} readings/s")
        costs[number] = 1 / ours
    return [limit("100,000 stations / 100, per reading", costs[100_000] / costs[100], "times")]


def _beside(name: str, read: pa.RecordBatch) -> list[Result]:
    found = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "readings.parquet"
        peers.write_readings(read, path)
        for peer in ("duckdb", "polars"):
            what = f"peer: {name} in {peer} over a file"
            timed = peers.timed(peer, name, path)
            if timed is None:
                found.append(absent(f"{what} (not installed)", "readings/s"))
                continue
            seconds, begun = timed
            _say(f"{peer}: {len(read) / seconds:,.0f} readings/s, {begun:,} begun")
            found.append(rate(what, len(read) / seconds, "readings/s"))
    return found


def _rate(
    plans: Sequence[SituationPlan], tables: PullData, ontology: Ontology, read: pa.RecordBatch
) -> tuple[float, int]:
    """Readings per second through the operator in batches, and how many situations began."""
    operator = SituationOperator(plans, tables, ontology.sources, None)
    times = read.column("time").to_numpy()
    begun, first = 0, 0
    began = _CLOCK.steady_ns()
    while first < len(read):
        # A batch ends between two times.
        end = min(first + _BATCH, len(read))
        if end < len(read):
            end = max(int(times.searchsorted(times[end])), first + 1)
        watermark = int(times[end]) if end < len(read) else int(times[-1]) + 1
        found = operator.process(read.slice(first, end - first), watermark)
        begun += sum(one.began is None for one in found)
        first = end
    return len(read) / (_CLOCK.steady_ns() - began) * 1e9, begun


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
