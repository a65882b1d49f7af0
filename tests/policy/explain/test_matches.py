"""What explaining finds is what the runner and the judge find, on random worlds. [PO-11]"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_order
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.explain.evidence import Evidence, readings_of
from rapport.policy.explain.matches import Decisions
from rapport.policy.plan import Plan
from support.examples import examples
from support.judge.evaluator import Verdict
from support.judge.trials import Trial, judged, run_locally, varied_trial
from support.varied.worlds import (
    ONTOLOGY,
    WINDOW_MS,
    random_policy,
    random_world,
    readings_batch,
    with_periods,
)


def plan_of(trial: Trial) -> Plan:
    return compile_policy(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    ).plan


def world_of(trial: Trial) -> Evidence:
    readings = readings_of(readings_batch(trial.readings, trial.ontology), trial.ontology)
    return Evidence(plan_of(trial), trial.ontology.sources, trial.pull, readings)


def told(decisions: Decisions, **given: str) -> dict[str, list[Detection]]:
    found: dict[str, list[Detection]] = {}
    for one in decisions.all(given):
        plain = Detection(
            policy="p",
            time=one.detection.time,
            bindings=one.detection.bindings,
            causes=one.detection.causes,
        )
        found.setdefault(one.became, []).append(plain)
    return found


def check(trial: Trial, runner: Verdict) -> None:
    decisions = Decisions(world_of(trial))
    found = told(decisions)
    assert sorted(found.get("detected", []), key=detection_order) == runner.detections
    assert len(found.get("left out", [])) == runner.suppressed
    doubtful = {(one.time, *sorted(one.bindings.items())) for one in found.get("undecided", [])}
    assert doubtful == {(one.time, *sorted(one.bindings.items())) for one in runner.undecided}
    for detection in runner.detections[:3]:
        assert detection in told(decisions, **detection.bindings)["detected"]


@given(st.integers(0, 2**32))
@settings(max_examples=examples(40), deadline=None)
def test_movements_are_decided_as_the_runner_decides_them(seed: int) -> None:
    chance = Chance(seed)
    world, ontology = with_periods(chance, random_world(chance, events=25))
    if chance.randint(0, 1):
        ontology = ONTOLOGY
    window = chance.choice((20, WINDOW_MS, WINDOW_MS, 400))
    given = world.readings if ontology is not ONTOLOGY else random_world(chance, events=25).readings
    text = random_policy(chance)
    trial = Trial(
        text=text, ontology=ontology, pull=world.pull, readings=tuple(given), window_ms=window
    )
    check(trial, run_locally(trial))


@given(st.integers(0, 2**32))
def test_policies_of_every_kind_are_decided_as_the_judge_decides_them(seed: int) -> None:
    trial = varied_trial(Chance(seed), events=18)
    check(trial, judged(trial))
