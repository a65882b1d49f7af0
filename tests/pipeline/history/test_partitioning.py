"""History is cut where it may be cut, and the parts give together what the whole gives."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_lines
from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.pipeline.history.arrival import groups_of
from rapport.pipeline.history.detection_table import detections_from
from rapport.pipeline.history.exchange import Job
from rapport.pipeline.history.files import readings_files
from rapport.pipeline.history.partitions import (
    explain_partitioning,
    lay_out_history,
    look_ahead_ms,
    look_back_ms,
    used_up_terms,
    why_in_one_piece,
)
from rapport.pipeline.history.rows import rows_schema
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
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
from rapport.policy.runner.families import with_sides
from rapport.site.site import Site
from support.examples import examples
from support.history_here import Here
from support.judge.trials import varied_trial
from support.varied.worlds import ONTOLOGY, WINDOW_MS, random_policy, random_world, readings_batch

USES_UP = {"within", "inside-and-within", "followed-by-within"}


def plan_of(site: Site, name: str) -> Plan:
    return site.policies[name].plan


def run(
    plans: list[Plan],
    pull: PullData,
    readings: pa.Table,
    bounds: tuple[int, ...] = (),
    sources: dict[str, PushSource] | None = None,
) -> list[Detection]:
    """What tasks find whose slices meet at the bounds; readings are sorted first."""
    ordered = readings.sort_by([("time", "ascending"), ("id", "ascending")])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "readings.parquet"
        pq.write_table(ordered, path, row_group_size=17)
        history = readings_files([path])
        groups = groups_of(history)
        layout = lay_out_history(
            plans, pull, groups, partitions=1, buckets=1, sources=sources, bounds=bounds
        )
        job = Job(
            plans=[encode_plan(plan) for plan in plans],
            parts=layout.parts,
            series=history.series,
            groups=groups,
            schema=rows_schema(history.series, {name for one in plans for name in one.streams()}),
            lateness_ms=0,
            sources=sources or {},
        )
        return detections_from(Here(pull).run(job, history).detections())


def meeting_at(cuts: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({int(cut) for cut in cuts}))


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
    reason = (
        "'A within B' uses each event once per pair (chronicle), "
        "so what is left depends on the whole history before"
    )
    within = plan_of(small_policies, "within")
    assert explain_partitioning(within) == f"within: not in slices of time, because {reason}"
    told = explain_partitioning(within, None, small_policies.tables)
    assert told.startswith("within: buckets of identities of B, for every detection names one; ")
    assert told.endswith(
        f" of the identities are needed in every bucket; not in slices of time, because {reason}"
    )


def test_explain_says_why_there_is_no_key(small_policies: Site) -> None:
    plan = plan_of(small_policies, "within")
    anybody = with_sides(plan, lambda side: msgspec.structs.replace(side, constraints=()))
    told = explain_partitioning(anybody, None, small_policies.tables)
    assert told.startswith("within: one partition, because 'A within B' uses each event once")
    assert told.endswith("; and every event that may stand for A may stand for B too")


@pytest.mark.slow
@settings(max_examples=examples(6))
@given(data=st.data())
def test_any_cuts_give_the_same_detections(
    data: st.DataObject, small_policies: Site, recorded: pa.Table
) -> None:
    times = recorded["time"].to_numpy()
    cuts = data.draw(st.lists(st.integers(int(times.min()), int(times.max()) + 9_000), max_size=12))
    kept = data.draw(st.lists(st.booleans(), min_size=len(recorded), max_size=len(recorded)))
    part = recorded.filter(pa.array(kept))
    plans = [compiled.plan for compiled in small_policies.policies.values()]
    whole = run(plans, small_policies.tables, part)
    found = run(plans, small_policies.tables, part, meeting_at(cuts))
    assert detection_lines(found) == detection_lines(whole)


@pytest.mark.slow
@settings(max_examples=examples(12))
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
    whole = run(plans, world.pull, readings)
    around = range(int(times.min()) - 1, int(times.max()) + 3 * WINDOW_MS)
    cuts = chance.sample(around, int(share * 40) + 1)
    found = run(plans, world.pull, readings, meeting_at(cuts))
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
    whole = run(plans, trial.pull, readings, (), sources)
    around = range(int(times.min()) - 1, int(times.max()) + 400)
    cuts = chance.sample(around, int(share * 40) + 1)
    found = run(plans, trial.pull, readings, meeting_at(cuts), sources)
    assert detection_lines(found) == detection_lines(whole)


@pytest.mark.slow
def test_cuts_may_lie_at_the_very_times_of_events(small_policies: Site, recorded: pa.Table) -> None:
    cuts = np.unique(recorded["time"].to_numpy())[::4]
    plans = [compiled.plan for compiled in small_policies.policies.values()]
    found = run(plans, small_policies.tables, recorded, meeting_at(cuts))
    for plan in plans:
        expected = Path(small_policies.directory, f"{plan.policy}.expected.jsonl").read_bytes()
        assert detection_lines(d for d in found if d.policy == plan.policy) == expected, plan.policy


def test_a_plan_in_doubt_by_a_silent_source_is_not_sliced(small_policies: Site) -> None:
    positions = small_policies.ontology.sources["positions"]
    sources = {"positions": msgspec.structs.replace(positions, period_ms=1_000)}
    plans = [plan_of(small_policies, name) for name in ("and-not", "or")]
    reason = (
        "its absence is undecided while positions is silent, and that may have begun long before"
    )
    assert why_in_one_piece(plans[0], sources) == reason
    told = explain_partitioning(plans[0], sources, small_policies.tables)
    assert "every bucket hears when positions spoke" in told
    assert told.endswith(reason)
    assert "slices of time, each" in explain_partitioning(plans[1], sources)
    assert "slices of time, each" in explain_partitioning(plans[0], {"positions": positions})


def test_durations_silence_and_once_per_are_not_sliced(small_policies: Site) -> None:
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


def test_own_windows_and_unsure_clocks_widen_what_a_slice_reads(small_policies: Site) -> None:
    plan = plan_of(small_policies, "and-not")
    clauses = tuple(msgspec.structs.replace(clause, window_ms=7_000) for clause in plan.clauses)
    assert look_back_ms(msgspec.structs.replace(plan, clauses=clauses)) == 14_000
    positions = small_policies.ontology.sources["positions"]
    sources = {"positions": msgspec.structs.replace(positions, uncertainty_ms=50)}
    assert look_back_ms(plan, sources) == look_back_ms(plan) + 200
    assert look_ahead_ms(plan, sources) == 200
