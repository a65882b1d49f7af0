"""Steps with memory that policies have in common: executed once while they know the same past, by
each otherwise; and activations, asked about once for all windows.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rapport.core.detection import Detection
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.operators import absence, make_operator
from rapport.policy.operators.absence import ActivationCache
from rapport.policy.operators.steps import SharedStep
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner, read_snapshot
from support.judge.occurrences import Reading
from support.varied.feeding import fed, of
from support.varied.worlds import ONTOLOGY, Pull, random_world, readings_batch

WORLD = random_world(Chance(11), events=160)
HALF = len(WORLD.readings) // 2
STAYS = "  {a} is inside R for 30 ms\n"
QUIET = "  no position of {a} for 40 ms\n"
ALONE = "  {a} is inside R\n  {a} is not within 2m of B or B is not inside R\n"


def plan(conditions: str, name: str, *, alias: str = "A", window_ms: int = 20) -> Plan:
    text = (
        f"concepts\n  person {alias} (status='guest')\n  room R\n  person B\nconditions\n"
        f"{conditions.format(a=alias)}actions\n  look\n"
    )
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=window_ms).plan


def unlike(conditions: str, count: int = 3) -> list[Plan]:
    """Policies that say the same with other windows and other names."""
    return [
        plan(conditions, f"p{number}", alias="AXYZ"[number % 4], window_ms=10 + number)
        for number in range(count)
    ]


def started(*plans: Plan) -> LocalRunner:
    return LocalRunner(plans, WORLD.pull, lateness_ms=0)


def alone(plan: Plan, readings: list[Reading]) -> list[Detection]:
    runner = started(plan)
    return fed(runner, readings) + runner.finish()


def commons(runner: LocalRunner) -> set[SharedStep]:
    groups = runner._running._groups
    return {step._common for one in groups for step in one.operator._window._steps.values()}


def known(runner: LocalRunner) -> set[ActivationCache]:
    groups = runner._running._groups
    askers = [ask for one in groups for ask in one.operator._activations._queries.values()]
    return {ask.known for ask in askers if ask is not None}


# --- steps ---


@pytest.mark.parametrize("conditions", [STAYS, QUIET], ids=["for", "no"])
def test_policies_that_begin_together_execute_a_step_once(conditions: str) -> None:
    plans = unlike(conditions)
    runner, single = started(*plans), started(plans[0])
    found = fed(runner, WORLD.readings)
    fed(single, WORLD.readings)
    assert len(runner._running._groups) == 3
    assert len(commons(runner)) == 1
    counts, one = runner.steps, single.steps["p0"]
    assert sum(each.computed for each in counts.values()) == one.computed
    assert all(each.wanted == one.wanted for each in counts.values())
    found += runner.finish()
    assert found
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)


def test_other_durations_are_other_steps() -> None:
    longer = STAYS.replace("30", "31")
    runner = started(plan(STAYS, "p"), plan(longer, "q", window_ms=21))
    fed(runner, WORLD.readings)
    assert len(commons(runner)) == 2


@pytest.mark.parametrize("conditions", [STAYS, QUIET], ids=["for", "no"])
def test_who_begins_later_knows_less_and_executes_for_himself(conditions: str) -> None:
    first, second, third = unlike(conditions)
    runner = started(first)
    found = fed(runner, WORLD.readings[:HALF])
    runner.deploy(second)
    runner.deploy(third)  # these two have missed the same
    assert len(commons(runner)) == 2
    found += fed(runner, WORLD.readings[HALF:]) + runner.finish()
    lone = started()
    fed(lone, WORLD.readings[:HALF])
    lone.deploy(second)
    later = fed(lone, WORLD.readings[HALF:]) + lone.finish()
    assert of("p0", found) == alone(first, WORLD.readings)
    assert of("p1", found) == later


def test_a_step_lives_on_when_the_policy_that_brought_it_is_withdrawn() -> None:
    first, second, _ = unlike(STAYS)
    runner = started(first, second)
    found = fed(runner, WORLD.readings[:HALF])
    runner.withdraw("p0")
    found += fed(runner, WORLD.readings[HALF:]) + runner.finish()
    assert of("p1", found) == alone(second, WORLD.readings)


@pytest.mark.parametrize("conditions", [STAYS, QUIET], ids=["for", "no"])
def test_what_was_common_is_common_after_a_restart_too(conditions: str) -> None:
    plans = unlike(conditions)
    runner = started(*plans)
    found = fed(runner, WORLD.readings[:HALF])
    again = started(*plans)
    again.restore(runner.snapshot())
    assert len(commons(again)) == 1
    found += fed(again, WORLD.readings[HALF:]) + again.finish()
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)


def test_a_snapshot_holds_all_that_each_policy_needs_alone() -> None:
    plans = unlike(STAYS)
    runner = started(*plans)
    before = fed(runner, WORLD.readings[:HALF])
    groups = read_snapshot(runner.snapshot()).groups
    for each in plans:
        [saved] = [group for group in groups if each.policy in group.plans]
        operator = make_operator(each, WORLD.pull)
        operator.restore(saved.state)
        rest = readings_batch(WORLD.readings[HALF:])
        found = of(each.policy, before) + operator.process(rest, 2**62)
        assert found == alone(each, WORLD.readings)


def test_a_restart_with_fewer_policies_goes_on_with_those() -> None:
    plans = unlike(QUIET)
    runner = started(*plans)
    found = fed(runner, WORLD.readings[:HALF])
    fewer = started(plans[1])
    assert fewer.restore_known(runner.snapshot()) == []
    found += fed(fewer, WORLD.readings[HALF:]) + fewer.finish()
    assert of("p1", found) == alone(plans[1], WORLD.readings)


def test_a_failing_step_fails_for_all_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = started(*unlike(STAYS), plan(ALONE, "other"))
    fed(runner, WORLD.readings[:HALF])
    [common] = commons(runner)
    tried = []

    def take(readings: object, watermark: int) -> object:
        tried.append(watermark)
        raise ValueError("no")

    monkeypatch.setattr(common.step, "take", take)
    fed(runner, WORLD.readings[HALF:])
    assert sorted(runner.failed()) == ["p0", "p1", "p2"]
    assert len(tried) == 1
    assert list(runner.policies()) == ["other"]


# --- activations ---


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 10, 160])
def test_one_search_answers_for_every_window_and_name(size: int) -> None:
    plans = unlike(ALONE, 12)
    runner = started(*plans)
    found = fed(runner, WORLD.readings, size) + runner.finish()
    [answers] = known(runner)
    few = started(*unlike(ALONE, 2))
    fed(few, WORLD.readings, size)
    few.finish()
    [fewer] = known(few)
    assert len(answers.queries) == 12
    # Of what is not yet refuted longer windows must look further, some batches later.
    assert 0 < answers.searched <= (2 if size > 1 else 6) * fewer.searched
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)


def test_other_distances_are_searched_separately() -> None:
    runner = started(plan(ALONE, "p"), plan(ALONE.replace("2m", "3m"), "q", window_ms=21))
    assert len(known_after(runner)) == 2


def test_pairs_that_must_be_closer_than_the_window_are_searched_separately() -> None:
    whole = plan("  A is inside R\n  A is not within 2m of B\n", "p", window_ms=20)
    terms = tuple(
        msgspec.structs.replace(term, window_ms=5) if term.function == "within" else term
        for term in whole.terms
    )
    closer = msgspec.structs.replace(whole, policy="q", terms=terms, window_ms=21)
    runner = started(whole, closer)
    assert len(known_after(runner)) == 2


def known_after(runner: LocalRunner) -> set[ActivationCache]:
    fed(runner, WORLD.readings)
    return known(runner)


def test_matches_opened_before_a_restart_are_searched_by_each_policy() -> None:
    """Others may have seen other events before it."""
    plans = unlike(ALONE)
    runner = started(*plans)
    found = fed(runner, WORLD.readings[:HALF])
    again = started(*plans)
    again.restore(runner.snapshot())
    assert all(one.operator._activations._own_before for one in again._running._groups)
    found += fed(again, WORLD.readings[HALF:]) + again.finish()
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)


def test_different_activations_with_one_hash_are_distinguished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absence, "_hashed", lambda asked: (asked["t0"] % 3).astype(np.uint64))
    plans = unlike(ALONE)
    runner = started(*plans)
    found = fed(runner, WORLD.readings) + runner.finish()
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)


@pytest.mark.slow
def test_answers_are_forgotten_with_the_longest_window() -> None:
    world = random_world(Chance(11), events=1_500)
    runner = LocalRunner(unlike(ALONE), world.pull, lateness_ms=0)
    fed(runner, world.readings)
    [answers] = known(runner)
    assert 10 * len(answers._hashes) < answers.searched


def test_a_plan_with_a_table_changed_since_asks_for_itself() -> None:
    first, second, _ = unlike(ALONE)
    runner = started(first)
    fed(runner, WORLD.readings[:HALF])
    tables = {name: WORLD.pull.instances(name) for name in ("person", "room")}
    person = tables["person"]
    changed = type(person)("person", list(person.ids), dict(person.columns))
    runner._running._context = runner._running._context._replace(
        pull=Pull({**tables, "person": changed})
    )
    runner.deploy(second)
    fed(runner, WORLD.readings[HALF:])
    assert len(known(runner)) == 2
