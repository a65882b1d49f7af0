"""Back-tests on Spark against the same in this process and against Spark SQL by hand: how fast, how
it grows, and what a hundred policies cost. [PI-9, PI-5, UX-3]
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from benchmarks.policy.building import ONTOLOGY, alone_within, policy
from benchmarks.policy.by_hand import Alarm
from benchmarks.policy.parts import CLOCK, say
from benchmarks.results import Result
from benchmarks.spark.by_hand import alarms_by_sql, as_alarms
from benchmarks.spark.parts import Goals, Took, require, timed, told
from benchmarks.spark.workload import LATENESS_MS, Recorded, beginning, building, history_of
from rapport.pipeline.backtest.execution import (
    BackTestFound,
    BackTestWork,
    Progress,
    run_here,
    run_on_spark,
)
from rapport.policy.plan import Plan, PolicyPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COPIES = 100
_ROUNDS = {True: 2, False: 1}
_LINEAR = 1.2
"""What still counts as growing with the events: figures move by a tenth from run to run."""


class Cold(msgspec.Struct, frozen=True):
    """What the first run in a fresh session came to."""

    took: Took
    found: int
    digest: str


def work_on(folder: Path, plans: Sequence[Plan] = ()) -> BackTestWork:
    """A back-test of the secure building's policy, or of others; reads the footers."""
    return BackTestWork(
        ontology=ONTOLOGY,
        pull=building(),
        plans=list(plans) or [policy()],
        history=history_of(folder),
        lateness_ms=LATENESS_MS,
    )


def measure(way: str, spark: SparkSession, folder: Path) -> Cold:
    """One run of the back-test (`ours`) or of the query by hand (`by hand`), from files to columns
    in this process."""
    if way == "ours":
        found, took = timed(lambda: run_on_spark(spark, work_on(folder)))
        alarms = alarms_of(found)
    else:
        rows, took = timed(lambda: alarms_by_sql(spark, building(), folder))
        alarms = as_alarms(building(), rows)
    return Cold(took, len(alarms), digest_of(alarms))


def alarms_of(found: BackTestFound) -> list[Alarm]:
    """The detections as the programs by hand tell them."""
    rows = found.columns.table.to_pylist()
    return [
        (row["time"], bound["A"], bound["R"], row["cause_ids"][0])
        for row in rows
        for bound in [dict(row["bindings"])]
    ]


def digest_of(alarms: Sequence[Alarm]) -> str:
    """A name for exactly this set of alarms, however they are ordered."""
    return hashlib.blake2b(repr(sorted(alarms)).encode(), digest_size=8).hexdigest()


def against_by_hand(
    spark: SparkSession, recorded: Recorded, goals: Goals, cold: dict[str, Cold]
) -> list[Result]:
    """Both ways warm, in turn, the better of two rounds (of one, when quick); the first runs of
    fresh sessions are given. All must find what a back-test in this process finds."""
    here = digest_of(alarms_of(run_here(work_on(recorded.folder))))
    rounds = [
        (way, measure(way, spark, recorded.folder))
        for _ in range(_ROUNDS[goals.is_judged])
        for way in cold
    ]
    warm: dict[str, Took] = {}
    for way, one in [*cold.items(), *rounds]:
        require(one.digest == here, f"{way} found {one.found:,}")
    for way in cold:
        took = [one.took for name, one in rounds if name == way]
        warm[way] = min(took, key=lambda each: each.wall)
    events, results = recorded.events, []
    names = {"ours": "back-test of secure-building", "by hand": "peer: Spark SQL by hand"}
    for way, name in names.items():
        goal = 1_000_000 if way == "ours" else None
        first = f"{name}, {events:,} events, first run of a session"
        results.append(told(first, cold[way].took, events, goals, goal))
        results.append(told(f"{name}, {events:,} events, warm", warm[way], events, goals))
    say(f"all found the same {cold['ours'].found:,} alarms")
    for label, ours, theirs in (
        ("first run of a session", cold["ours"].took, cold["by hand"].took),
        ("warm", warm["ours"], warm["by hand"]),
    ):
        ratio = f"back-test / Spark SQL by hand, {label}"
        results.append(goals.rate(ratio, theirs.wall / ours.wall, "times", 1.5))
        spent = goals.rate(f"{ratio}, processor time", _ratio(theirs.cpu, ours.cpu), "times")
        results.append(spent)
    return results


def first_run(way: str, folder: Path) -> Cold:
    """In a process of its own, so that nothing is warm."""
    done = subprocess.run(
        (sys.executable, "-m", "benchmarks.spark.cold", way, str(folder)),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Cold)


def stages(spark: SparkSession, recorded: Recorded, goals: Goals) -> list[Result]:
    """Where the time of a warm back-test goes."""
    marks: list[int] = []
    began = CLOCK.steady_ns()
    work = work_on(recorded.folder)
    marks.append(CLOCK.steady_ns())
    progress: Progress = lambda _done: marks.append(CLOCK.steady_ns())  # noqa: E731
    run_on_spark(spark, work, progress=progress)
    ended = CLOCK.steady_ns()
    spans = {
        "footers read": (began, marks[0]),
        "plan, until the first part is done": (marks[0], marks[min(1, len(marks) - 1)]),
        "from the first to the last part": (marks[min(1, len(marks) - 1)], marks[-1]),
        "detections unpacked into columns": (marks[-1], ended),
    }
    for name, (low, high) in spans.items():
        say(f"back-test, {name}: {(high - low) / 1e9:.2f} s")
    return [
        goals.limit(f"back-test, {recorded.events:,} events, stage: {name}", (b - a) / 1e9, "s")
        for name, (a, b) in spans.items()
    ]


def growth(
    spark: SparkSession, recorded: Recorded, sizes: Sequence[int], goals: Goals, per_file: int
) -> list[Result]:
    """The same policy over beginnings of one history; what is found is checked at each size."""
    results, per_event = [], {}
    # Once unmeasured: after other queries the first of a kind pays for compiling it.
    warming = beginning(recorded, recorded.folder.with_name("warming"), min(sizes), per_file)
    run_on_spark(spark, work_on(warming.folder))
    for size in sizes:
        folder = recorded.folder.with_name(f"first-{size}")
        part = beginning(recorded, folder, size, per_file)
        found, took = timed(lambda part=part: run_on_spark(spark, work_on(part.folder)))  # type: ignore[misc]
        require(same(found, run_here(work_on(part.folder)), [policy()]), f"{size:,} events")
        per_event[size] = took
        results.append(told(f"growth: back-test of {size:,} events", took, size, goals))
    least, most = min(sizes), max(sizes)
    for name, figure in (("time", "wall"), ("processor time", "cpu")):
        ratio = _ratio(
            getattr(per_event[most], figure) / most, getattr(per_event[least], figure) / least
        )
        goal = _LINEAR if figure == "wall" else None
        metric = f"growth: {name} per event at {most:,} / at {least:,} events"
        results.append(goals.limit(metric, ratio, "times", goal))
    return results


def many_policies(spark: SparkSession, recorded: Recorded, goals: Goals) -> list[Result]:
    """One and a hundred policies in one pass; distances from 1 m to 10 m."""
    distances = np.linspace(1, 10, _COPIES).tolist()
    plans = [policy(alone_within(each), name=f"bench-{i}") for i, each in enumerate(distances)]
    found, all_took = timed(lambda: run_on_spark(spark, work_on(recorded.folder, plans)))
    require(same(found, run_here(work_on(recorded.folder, plans)), plans), "a hundred policies")
    _, one_took = timed(lambda: run_on_spark(spark, work_on(recorded.folder)))
    events = recorded.events
    label = f"{_COPIES} policies in one pass, {events:,} events, {len(found.columns):,} detections"
    against = f"{_COPIES} policies in one pass / one policy, {events:,} events"
    return [
        told(label, all_took, events, goals),
        told(f"one policy, {events:,} events, beside the hundred", one_took, events, goals),
        goals.limit(f"{against}, time", all_took.wall / one_took.wall, "times", 10),
        goals.limit(f"{against}, processor time", _ratio(all_took.cpu, one_took.cpu), "times"),
    ]


def same(one: BackTestFound, other: BackTestFound, plans: Sequence[PolicyPlan]) -> bool:
    """Whether both found the same, to the last cause, and used the same events."""
    if one.events != other.events or one.late != other.late:
        return False
    names = [plan.policy for plan in plans]
    findings = [[found.columns.of(name, None, None) for name in names] for found in (one, other)]
    tables = [[each.taken(np.arange(len(each))) for each in found] for found in findings]
    return all(a.equals(b) for a, b in zip(*tables, strict=True))


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0
