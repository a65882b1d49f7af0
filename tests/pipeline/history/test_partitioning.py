"""History is cut where it may be cut, and the parts give together what the whole gives."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_lines
from rapport.core.errors import PolicyError
from rapport.kernel.chance import Chance
from rapport.pipeline.history.partitioning import (
    BEGIN_OF_TIME,
    Layout,
    explain_partitioning,
    lay_out,
    look_ahead_ms,
    look_back_ms,
    used_up_terms,
)
from rapport.pipeline.history.tasks import Job, detections_from, run_tasks
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import PushSource
from rapport.policy.plan import (
    Clause,
    LastingTerm,
    Plan,
    Positive,
    Side,
    SilentTerm,
    StateAtom,
    encode_plan,
)
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.operators.predicate import looked_up
from rapport.site.site import Site
from rapport.testing.trials import varied_trial
from rapport.testing.worlds import (
    ONTOLOGY,
    WINDOW_MS,
    random_policy,
    random_world,
    readings_batch,
)

USES_UP = {"within", "inside-and-within", "followed-by-within"}


def plan_of(site: Site, name: str) -> Plan:
    return site.policies[name].plan


def in_tasks(readings: pa.Table, layout: Layout) -> list[pa.RecordBatch]:
    """What `detect.spread` does on Spark, done by hand: the readings of every task, in order."""
    readings = readings.sort_by([("time", "ascending"), ("id", "ascending")])
    times = readings["time"].to_numpy()
    batches: list[pa.RecordBatch] = []
    for number, task in enumerate(layout.tasks):
        first = 0
        if task.begin > BEGIN_OF_TIME:
            first = int(np.searchsorted(times, task.begin - layout.look_back_ms))
        part = readings.slice(first, int(np.searchsorted(times, task.read_until)) - first)
        column = pa.array([number] * len(part), pa.int32())
        batches += part.add_column(0, "task", column).to_batches(max_chunksize=17)
    return batches


def run(
    plans: list[Plan],
    pull: PullData,
    readings: pa.Table,
    layout: Layout,
    sources: dict[str, PushSource] | None = None,
) -> list[Detection]:
    job = Job(
        plans=[encode_plan(plan) for plan in plans],
        tasks=layout.tasks,
        schema=readings.schema.serialize().to_pybytes(),
        sources=sources or {},
    )
    instances = {name: pull.instances(name) for plan in plans for name in plan.concepts()}
    pairs = {name: pull.pairs(name) for plan in plans for name in looked_up(plan)}
    found = list(run_tasks(job, instances, in_tasks(readings, layout), pairs))
    return detections_from(pa.Table.from_batches(found)) if found else []


@pytest.fixture(scope="module")
def recorded(small_policies: Site, readings: object) -> pa.Table:
    path = small_policies.directory / "events.csv"
    return pa.Table.from_batches(readings(path))  # type: ignore[operator]


def test_plans_that_use_events_up_run_in_one_piece(small_policies: Site) -> None:
    plans = [compiled.plan for compiled in small_policies.policies.values()]
    assert {plan.policy for plan in plans if used_up_terms(plan)} == USES_UP


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("and-same-room", 1),
        ("and-not", 2),
        ("or-of-nots", 2),
        ("mixed", 2),
        ("chain", 2),
        ("not-followed-by", 2),
        ("nots-followed-by", 3),
        ("followed-by-not", 3),
        ("followed-by-nots", 4),
    ],
)
def test_a_slice_reads_as_far_back_as_the_kind_of_plan_needs(
    small_policies: Site, name: str, windows: int
) -> None:
    plan = plan_of(small_policies, name)
    assert look_back_ms(plan) == windows * plan.window_ms


def test_explain_says_how_and_why(small_policies: Site) -> None:
    assert explain_partitioning(plan_of(small_policies, "and-not")) == (
        "and-not: slices of time, each reading 10s before its begin, because nothing is used up "
        "and no event further away has a part in a detection"
    )
    assert "15s before its begin and 10s after its end" in explain_partitioning(
        plan_of(small_policies, "followed-by-not")
    )
    assert explain_partitioning(plan_of(small_policies, "within")) == (
        "within: one partition, because 'A within B' uses each event once per pair (chronicle), "
        "so what is left depends on the whole history before"
    )


def test_slices_hold_about_equally_many_readings(small_policies: Site) -> None:
    plans = [plan_of(small_policies, "or"), plan_of(small_policies, "within")]
    times = np.array([5] * 50 + list(range(100, 150)), np.int64)
    layout = lay_out(plans, times, 4)
    assert layout.bounds == (100, 125)
    assert [(t.plans, t.begin, t.until, t.read_until) for t in layout.tasks] == [
        ((0,), BEGIN_OF_TIME, 100, 100),
        ((0,), 100, 125, 125),
        ((0,), 125, END_OF_TIME, END_OF_TIME),
        ((1,), BEGIN_OF_TIME, END_OF_TIME, END_OF_TIME),
    ]


def test_no_readings_or_no_plans_need_no_cut(small_policies: Site) -> None:
    nothing = np.empty(0, np.int64)
    assert lay_out([], nothing, 7).tasks == ()
    assert len(lay_out([plan_of(small_policies, "or")], nothing, 7).tasks) == 1


@pytest.mark.slow
@settings(max_examples=6)
@given(data=st.data())
def test_any_cuts_give_the_same_detections(
    data: st.DataObject, small_policies: Site, recorded: pa.Table
) -> None:
    times = recorded["time"].to_numpy()
    cuts = data.draw(st.lists(st.integers(int(times.min()), int(times.max()) + 9_000), max_size=12))
    kept = data.draw(st.lists(st.booleans(), min_size=len(recorded), max_size=len(recorded)))
    part = recorded.filter(pa.array(kept))
    plans = [compiled.plan for compiled in small_policies.policies.values()]
    whole = run(plans, small_policies.tables, part, lay_out(plans, times, 1))
    sliced = lay_out(plans, np.array(cuts, np.int64), len(cuts) + 1)
    found = run(plans, small_policies.tables, part, sliced)
    assert detection_lines(found) == detection_lines(whole)


@pytest.mark.slow
@settings(max_examples=12)
# Here a match is known to be minimal only after its slice has ended.
@example(seed=1098, share=0.98)
# Here an absence among tables holds at once, but counts only when nothing positive came.
@example(seed=15215, share=1.0)
@given(seed=st.integers(0, 2**32), share=st.floats(0.02, 1))
def test_random_policies_may_be_cut_anywhere(seed: int, share: float) -> None:
    chance = Chance(seed)
    world = random_world(chance, events=60)
    try:
        compiled = compile_policy(
            random_policy(chance), name="p", ontology=ONTOLOGY, window_ms=WINDOW_MS
        )
    except PolicyError:
        reject()
    plans = [compiled.plan]
    readings = pa.Table.from_batches([readings_batch(world.readings)])
    times = readings["time"].to_numpy()
    whole = run(plans, world.pull, readings, lay_out(plans, times, 1))
    around = range(int(times.min()) - 1, int(times.max()) + 3 * WINDOW_MS)
    cuts = np.array(chance.sample(around, int(share * 40) + 1), np.int64)
    found = run(plans, world.pull, readings, lay_out(plans, cuts, len(cuts) + 1))
    assert detection_lines(found) == detection_lines(whole)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), share=st.floats(0.02, 1))
def test_plans_with_comparisons_own_windows_and_unsure_clocks_may_be_cut_anywhere(
    seed: int, share: float
) -> None:
    chance = Chance(seed)
    trial = varied_trial(chance)
    sources = {
        name: msgspec.structs.replace(one, period_ms=0)
        for name, one in trial.ontology.sources.items()
    }
    compiled = compile_policy(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    )
    plans = [compiled.plan]
    readings = pa.Table.from_batches([readings_batch(trial.readings, trial.ontology)])
    times = readings["time"].to_numpy()
    whole = run(plans, trial.pull, readings, lay_out(plans, times, 1, sources=sources), sources)
    around = range(int(times.min()) - 1, int(times.max()) + 400)
    cuts = np.array(chance.sample(around, int(share * 40) + 1), np.int64)
    layout = lay_out(plans, cuts, len(cuts) + 1, sources=sources)
    found = run(plans, trial.pull, readings, layout, sources)
    assert detection_lines(found) == detection_lines(whole)


@pytest.mark.slow
def test_cuts_may_lie_at_the_very_times_of_events(small_policies: Site, recorded: pa.Table) -> None:
    cuts = np.unique(recorded["time"].to_numpy())[::4]
    plans = [compiled.plan for compiled in small_policies.policies.values()]
    found = run(plans, small_policies.tables, recorded, lay_out(plans, cuts, len(cuts) + 1))
    for plan in plans:
        expected = Path(small_policies.directory, f"{plan.policy}.expected.jsonl").read_bytes()
        assert detection_lines(d for d in found if d.policy == plan.policy) == expected, plan.policy


def test_a_plan_in_doubt_by_a_silent_source_runs_in_one_piece(small_policies: Site) -> None:
    positions = small_policies.ontology.sources["positions"]
    sources = {"positions": msgspec.structs.replace(positions, period_ms=1_000)}
    plans = [plan_of(small_policies, name) for name in ("and-not", "or")]
    layout = lay_out(plans, np.arange(100), 4, sources=sources)
    assert [task.plans for task in layout.tasks] == [(1,)] * 4 + [(0,)]
    assert explain_partitioning(plans[0], sources) == (
        "and-not: one partition, because its absence is undecided while positions is silent, "
        "and that may have begun long before"
    )
    assert "slices of time" in explain_partitioning(plans[1], sources)
    assert "slices of time" in explain_partitioning(plans[0], {"positions": positions})


def test_durations_silence_and_once_per_run_in_one_piece(small_policies: Site) -> None:
    first = (Clause((Positive(0),)),)
    plan = msgspec.structs.replace(plan_of(small_policies, "or"), clauses=first)
    side = Side("A", "person", "position", (), "person.position")
    quiet = msgspec.structs.replace(plan, terms=(SilentTerm(side, ("person.position",), 9),))
    assert "because the silence of A may have begun long before" in explain_partitioning(quiet)
    state = StateAtom(plan.terms[0])  # type: ignore[arg-type]
    lasting = msgspec.structs.replace(plan, terms=(LastingTerm(side, side, state, 9),))
    assert "because the state of A may have begun long before" in explain_partitioning(lasting)
    once = msgspec.structs.replace(plan, once_per_ms=9)
    assert "because 'at most once per' depends on" in explain_partitioning(once)
    for made in (quiet, lasting, once):
        assert lay_out([made], np.arange(100), 4).slices == 0


def test_own_windows_and_unsure_clocks_widen_what_a_slice_reads(small_policies: Site) -> None:
    plan = plan_of(small_policies, "and-not")
    clauses = tuple(msgspec.structs.replace(clause, window_ms=7_000) for clause in plan.clauses)
    assert look_back_ms(msgspec.structs.replace(plan, clauses=clauses)) == 14_000
    positions = small_policies.ontology.sources["positions"]
    sources = {"positions": msgspec.structs.replace(positions, uncertainty_ms=50)}
    assert look_back_ms(plan, sources) == look_back_ms(plan) + 200
    assert look_ahead_ms(plan, sources) == 200
