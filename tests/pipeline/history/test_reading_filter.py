"""Readings that can be left out: without them plans find the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.pipeline.history.reading_filter import (
    Interval,
    Numbers,
    ReadingSelection,
    RowFilter,
    WantedReadings,
    counts_silence,
    interest_of,
    simplified,
)
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology, PushSource, Relationship
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.evaluator import Verdict
from support.judge.trials import Trial, varied_trial, verdict_of
from support.varied.policies import varied_policy
from support.varied.worlds import (
    ONTOLOGY,
    WINDOW_MS,
    Pull,
    random_policy,
    random_world,
    readings_batch,
    with_periods,
)


def found_in(
    plans: Sequence[Plan], pull: PullData, ontology: Ontology, readings: pa.RecordBatch
) -> Verdict:
    runner = LocalRunner(plans, pull, lateness_ms=0, sources=ontology.sources)
    found = runner.feed(readings) + runner.finish()
    assert not runner.failed()
    return verdict_of(found, runner.take_undecided(), sum(runner.suppressed().values()))


def plan_of(trial: Trial, text: str = "", name: str = "p") -> Plan:
    return compile_policy(
        text or trial.text, name=name, ontology=trial.ontology, window_ms=trial.window_ms
    ).plan


def left_out(trial: Trial, plans: Sequence[Plan]) -> int:
    """How many of the readings of the plans' streams are left out; that changes nothing."""
    readings = readings_batch(trial.readings, trial.ontology)
    began = min(reading.time for reading in trial.readings)
    sources = trial.ontology.sources
    interest = interest_of(plans, trial.pull, sources)
    matters = by_rows(interest, readings)
    if any(counts_silence(plan, sources) for plan in plans):
        matters = pc.or_(matters, pc.equal(readings["time"], began))
    kept = readings.filter(matters)
    everything = found_in(plans, trial.pull, trial.ontology, readings)
    assert found_in(plans, trial.pull, trial.ontology, kept) == everything
    streams = {stream for plan in plans for stream in plan.streams()}
    own = sum(reading.stream in streams for reading in trial.readings)
    return own - sum(stream in streams for stream in kept.column("stream").to_pylist())


def by_rows(interest: WantedReadings, readings: pa.RecordBatch) -> pa.Array:
    """Which readings matter."""
    rows, asked = RowFilter(interest), np.zeros(len(readings), np.bool_)
    encoded = readings["key"].dictionary_encode()
    known, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    streams = np.array(readings["stream"].to_pylist(), object)
    for stream in sorted(set(streams)):
        own = np.flatnonzero(streams == stream)
        some = readings.take(pa.array(own))

        def part(name: str, stream: str = stream, some: pa.RecordBatch = some) -> np.ndarray:
            return some[f"{stream}.{name}"].to_numpy(zero_copy_only=False)

        asked[own] = rows.wanted(stream, known, codes[own], part)
    asked |= np.isin(readings["source"].to_pylist(), list(interest.sources))
    return pa.array(asked)


def try_many(seeds: range) -> None:
    counts = [left_out(trial, [plan_of(trial)]) for trial in map(varied, seeds)]
    assert sum(map(bool, counts)) > len(counts) / 4


def varied(seed: int) -> Trial:
    return varied_trial(Chance(seed), events=40)


@pytest.mark.slow
def test_random_policies_find_the_same_without_what_does_not_matter() -> None:
    try_many(range(250))


@pytest.mark.long
def test_thousands_of_random_policies_find_the_same_without_what_does_not_matter() -> None:
    try_many(range(1_000, 4_000))


@pytest.mark.slow
def test_several_policies_find_the_same_without_what_matters_to_none() -> None:
    for seed in range(60):
        chance = Chance(seed)
        trial = varied_trial(chance, events=60)
        plans = [plan_of(trial)]
        while len(plans) < 3:
            try:
                text = varied_policy(chance, trial.ontology)
                plans.append(plan_of(trial, text, f"p{len(plans)}"))
            except PolicyError:
                continue
        left_out(trial, plans)


@pytest.mark.slow
def test_policies_about_people_in_rooms_find_the_same_whoever_keeps_silent() -> None:
    tried = 0
    for seed in range(150):
        chance = Chance(seed)
        world, ontology = with_periods(chance, random_world(chance, events=60))
        try:
            text = random_policy(chance)
            trial = Trial(
                text=text,
                ontology=ontology,
                pull=world.pull,
                readings=world.readings,
                window_ms=WINDOW_MS,
            )
            plan = plan_of(trial)
        except PolicyError:
            continue
        tried += left_out(trial, [plan]) > 0
    assert tried > 20


# What is wanted, by kind of term.

PULL = Pull(
    {
        "person": Instances(
            "person",
            ["ann", "bo", "cy"],
            {"status": np.array(["guest", "employee", None], object)},
        ),
        "room": Instances(
            "room",
            ["lab", "hall"],
            {
                "security": np.array(["restricted", "public"], object),
                "area": np.array([[0.0, 0.0, 2.0, 2.0], [3.0, 0.0, 9.0, 9.0]]),
                "door": np.array([[1.0, 1.0], [50.0, 50.0]]),
            },
        ),
    }
)
ALIASES = "person A (status='guest')\n  person B (status='employee')\n  person C\n"


def wanted(*conditions: str, aliases: str = ALIASES, rooms: str = "room R") -> WantedReadings:
    lines = "".join(f"  {line}\n" for line in conditions)
    text = f"concepts\n  {aliases}  {rooms}\n  room Q\nconditions\n{lines}actions\n  look\n"
    plan = compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=WINDOW_MS).plan
    return interest_of([plan], PULL, ONTOLOGY.sources)


def boxes(interest: WantedReadings) -> list[list[float]]:
    [part] = interest.wanted
    assert part.values is not None
    return part.values.array().tolist()


def test_a_query_wants_events_of_those_who_satisfy_where_an_instance_is() -> None:
    interest = wanted("A is inside R", rooms="room R (security='restricted')")
    assert interest.wanted[0].keys == {"ann"}
    assert boxes(interest) == [[0.0, 0.0, 2.0, 2.0]]


def test_a_fact_that_every_match_needs_narrows_down_whom_events_can_meet() -> None:
    # Only the door of the lab lies in a room, and in the lab only.
    assert boxes(wanted("C is inside R", "R is leads Q")) == [[0.0, 0.0, 2.0, 2.0]]
    assert len(boxes(wanted("C is inside R"))) == 2
    assert len(boxes(wanted("C is inside R", "R is leads Q OR C is inside R"))) == 2


def test_pairs_states_and_silences_want_every_event_of_those_who_take_part() -> None:
    both = ReadingSelection("person.position", frozenset(("ann", "bo")))
    assert wanted("A is within 2m of B").wanted == (both,)
    of_ann = (ReadingSelection("person.position", frozenset(("ann",))),)
    assert wanted("A is inside R for 1 s").wanted == of_ann
    assert wanted("no position of A for 1 s").wanted == of_ann
    assert wanted("A is within 2m of C").wanted == (ReadingSelection("person.position"),)


def test_a_policy_that_cannot_fire_wants_nothing() -> None:
    interest = wanted("A is inside R", rooms="room R (security='secret')")
    assert interest == WantedReadings(())
    readings = readings_batch(random_world(Chance(1)).readings)
    assert len(readings.filter(by_rows(interest, readings))) == 0


def test_thresholds_of_many_policies_become_one_condition() -> None:
    above = [
        ReadingSelection("s.t", None, Numbers((Interval(float(n), 99.0),))) for n in range(30, 90)
    ]
    assert simplified(above) == (ReadingSelection("s.t", None, Numbers((Interval(30.0, 99.0),))),)
    mine = [
        ReadingSelection("s.t", frozenset((str(n),)), Numbers((Interval(1.0, 2.0),)))
        for n in range(90)
    ]
    [one] = simplified(mine)
    assert one.keys == {str(n) for n in range(90)}
    each = [
        ReadingSelection("s.t", frozenset((str(n),)), Numbers((Interval(float(n), n + 0.5),)))
        for n in range(90)
    ]
    [together] = simplified(each)
    assert together.values == Numbers((Interval(0.0, 89.5),))
    assert simplified([*above, ReadingSelection("s.t"), ReadingSelection("a.b")]) == (
        ReadingSelection("a.b"),
        ReadingSelection("s.t"),
    )


WEATHER = Ontology(
    concepts={"station": {"temperature": "number", "limit": "number", "alarm": "boolean"}},
    relationships={
        "like": Relationship("like", ("station", "temperature"), ("station", "temperature"), "same")
    },
    sources={
        name: PushSource(name=name, concept="station", attribute=name, key="key", value=("value",))
        for name in ("temperature", "alarm")
    },
)
LIMITS = Pull(
    {"station": Instances("station", ["a", "b", "c"], {"limit": np.array([5.0, np.nan, 7.0])})}
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("temperature of S above 30", Numbers((Interval(30.0, np.inf, open_low=True),))),
        ("limit of S below temperature of S", Numbers((Interval(5.0, np.inf, open_low=True),))),
        ("temperature of S at most limit of T", Numbers((Interval(-np.inf, 7.0),))),
        ("alarm of S = true", Numbers((Interval(1.0, 1.0),))),
    ],
)
def test_a_comparison_wants_the_numbers_that_can_satisfy_it(
    condition: str, expected: Numbers
) -> None:
    text = f"concepts\n  station S\n  station T\nconditions\n  {condition}\nactions\n  look\n"
    plan = compile_policy(text, name="p", ontology=WEATHER, window_ms=100).plan
    [one] = interest_of([plan], LIMITS).wanted
    assert one.values == expected
