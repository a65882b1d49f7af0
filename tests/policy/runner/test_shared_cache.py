"""Steps that policies have in common are computed once: which, while policies come and go, after a
restart, and what is never shared.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_order
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.metrics import LoadMeter, PolicyMeter
from rapport.policy.operators.detection_output import in_output_order
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.shared_cache import SharedCache, StepCounts
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.occurrences import Reading
from support.varied.feeding import fed
from support.varied.worlds import ONTOLOGY, WINDOW_MS, Pull, random_world, readings_batch

WORLD = random_world(Chance(11), events=120)
INSIDE = "  A is inside R"
ALONE = "  A is inside R\n  A is not within {}m of B or B is not inside R"


def plan(
    conditions: str, name: str = "p", *, status: str = "guest", window_ms: int = WINDOW_MS
) -> Plan:
    text = (
        f"concepts\n  person A (status='{status}')\n  room R\n  person B\nconditions\n"
        f"{conditions}\nactions\n  look\n"
    )
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=window_ms).plan


def unlike(count: int) -> list[Plan]:
    """Policies that differ in window and distance, so that none is executed with another."""
    return [
        plan(ALONE.format(1 + number), f"p{number}", window_ms=10 + number)
        for number in range(count)
    ]


def started(plans: Sequence[Plan]) -> LocalRunner:
    return LocalRunner(plans, WORLD.pull, lateness_ms=0)


def total(runner: LocalRunner) -> StepCounts:
    """Of all policies of a runner."""
    counts = runner.steps.values()
    return StepCounts(sum(one.wanted for one in counts), sum(one.computed for one in counts))


def numberings(runner: LocalRunner, concept: str = "person") -> list[Identities]:
    return [group.operator._window.identities[concept] for group in runner._running._groups]


# --- which ---


def test_equal_steps_of_policies_that_differ_in_window_and_name_are_computed_once() -> None:
    windows = [plan(INSIDE, f"p{ms}", window_ms=ms) for ms in (10, 20, 30, 40)]
    runner, single = started(windows), started(windows[:1])
    fed(runner, WORLD.readings)
    fed(single, WORLD.readings)
    assert len(runner._running._groups) == 4
    alone = total(single)
    assert alone.wanted == alone.computed > 0
    assert total(runner) == (4 * alone.wanted, alone.computed)


def test_of_policies_that_watch_others_the_rows_and_the_look_up_are_shared() -> None:
    guests = plan(INSIDE, "guests", window_ms=10)
    staff = plan(INSIDE, "staff", status="employee", window_ms=11)
    runner, single = started([guests, staff]), started([guests])
    fed(runner, WORLD.readings)
    fed(single, WORLD.readings)
    both, one = total(runner), total(single)
    assert both.wanted == 2 * one.wanted
    # Rows, look-up, and whose of it matters: only the last is another step.
    assert both.computed == pytest.approx(one.computed * 4 / 3)


def test_distances_are_different_steps_but_everything_around_them_is_shared() -> None:
    runner, single = started(unlike(6)), started(unlike(1))
    found = fed(runner, WORLD.readings)
    fed(single, WORLD.readings)
    six, one = total(runner), total(single)
    assert six.wanted == 6 * one.wanted
    assert one.computed < six.computed < 3 * one.computed
    assert len({item.policy for item in found}) > 1


def test_policies_executed_as_one_want_each_their_steps_and_share_what_they_cost() -> None:
    plans = [plan(ALONE.format(metres), f"p{metres}") for metres in (1, 2)]
    runner, single = started(plans), started(plans[1:])
    fed(runner, WORLD.readings)
    fed(single, WORLD.readings)
    assert runner.steps["p1"] == runner.steps["p2"]
    alone = total(single)
    assert total(runner) == (2 * alone.wanted, alone.computed)


def test_functions_of_the_site_are_called_by_each_policy() -> None:
    text = "concepts\n  person A\n  cart K\nconditions\n  A is beside 1m of K\nactions\n  look\n"
    plans = [
        compile_policy(text, name=f"p{ms}", ontology=ONTOLOGY, window_ms=ms).plan for ms in (10, 20)
    ]
    shared = SharedCache()
    assert not any(_is_shared(made, shared) for made in plans)
    inside = [plan(INSIDE, f"p{ms}", window_ms=ms) for ms in (10, 20)]
    assert [_is_shared(made, shared) for made in inside] == [False, True]


def _is_shared(made: Plan, shared: SharedCache, _held: list[object] = []) -> bool:  # noqa: B006
    """Whether an operator of the plan finds all its look-ups made."""
    from rapport.policy.operators.window import Window

    before = set(shared._kept)
    window = Window(made, frozenset(), WORLD.pull, {}, shared=shared)
    _held.append(window)
    questions = list(window._queries._own.values())
    known = {id(one) for key, one in shared._kept.items() if key in before}
    return bool(questions) and all(id(one) in known for one in questions)


# --- while policies come and go ---


def test_a_policy_that_comes_later_shares_from_its_first_batch_on() -> None:
    first, second = unlike(2)
    runner, alone = started([first]), started([])
    fed(runner, WORLD.readings[:40])
    fed(alone, WORLD.readings[:40])
    runner.deploy(second)
    alone.deploy(second)
    rest = WORLD.readings[40:]
    found = [item for item in fed(runner, rest) + runner.finish() if item.policy == "p1"]
    assert found == fed(alone, rest) + alone.finish()
    assert numberings(runner)[0] is numberings(runner)[1]
    steps = runner.steps["p1"]
    assert steps.computed < steps.wanted / 2


def test_what_no_policy_uses_any_more_is_not_kept() -> None:
    runner = started(unlike(4))
    fed(runner, WORLD.readings[:40])
    assert len(runner._running._shared._kept)
    for policy in list(runner.policies()):
        runner.withdraw(policy)
    gc.collect()
    assert len(runner._running._shared._kept) == 0
    assert runner._running._shared._made == {}


def test_a_policy_that_leaves_takes_nothing_away_from_the_others() -> None:
    plans = unlike(3)
    runner, alone = started(plans), started(plans[1:2])
    found = fed(runner, WORLD.readings[:50])
    runner.withdraw("p0")
    found += fed(runner, WORLD.readings[50:]) + runner.finish()
    own = fed(alone, WORLD.readings) + alone.finish()
    assert [item for item in found if item.policy == "p1"] == own


# --- after a restart ---


def test_policies_share_again_after_they_were_restored() -> None:
    plans = unlike(3)
    runner = started(plans)
    fed(runner, WORLD.readings[:60])
    again = started(plans)
    again.restore(runner.snapshot())
    assert len(set(map(id, numberings(again)))) == 1
    rest = WORLD.readings[60:]
    assert fed(again, rest) + again.finish() == fed(runner, rest) + runner.finish()
    steps = total(again)
    assert steps.computed < steps.wanted


def test_states_of_another_runner_are_restored_with_their_own_codes() -> None:
    plans = unlike(3)
    runner, other, expected = started(plans), started(plans[1:2]), started(plans)
    later = WORLD.readings[:60]
    fed(runner, later)
    fed(expected, later)
    fed(other, later, size=7)
    runner.adopt(other, ())
    rest = WORLD.readings[60:]
    assert fed(runner, rest) + runner.finish() == fed(expected, rest) + expected.finish()


def test_identities_keep_the_codes_that_a_state_speaks_of() -> None:
    shared, rooms = SharedCache(), Instances("room", ["1", "2"], {})
    first = shared.identities("room", rooms)
    assert shared.identities("room", rooms, ["1", "2"]) is first
    second = shared.identities("room", rooms, ["9", "2"])
    assert second.ids == ["9", "2", "1"]
    assert shared.identities("room", rooms, ["9"]) is second
    assert shared.identities("room", rooms) is first


# --- what is never shared ---


class Changing(Pull):
    """Tables that are loaded again."""

    def reload(self, *instances: Instances) -> None:
        self._instances = {one.concept: one for one in instances}


def test_policies_of_different_versions_of_a_table_share_nothing_of_it() -> None:
    people = {
        status: Instances("person", ["7"], {"status": np.array([status], object)})
        for status in ("guest", "employee")
    }
    room = Instances("room", ["1"], {"area": np.array([[0.0, 0.0, 9.0, 9.0]])})
    pull = Changing({})
    pull.reload(people["guest"], room)
    before, after = plan(INSIDE, "before"), plan(INSIDE, "after", window_ms=11)
    runner = LocalRunner([before], pull, lateness_ms=0)
    readings = [
        Reading(id=f"e{time}", time=time, stream="person.position", key="7", value=(1.0, 1.0))
        for time in (10, 200)
    ]
    found = runner.feed(readings_batch(readings[:1]))
    pull.reload(people["employee"], room)
    runner.deploy(after)
    found += runner.feed(readings_batch(readings[1:])) + runner.finish()
    assert {item.policy for item in found} == {"before"}
    assert numberings(runner)[0] is not numberings(runner)[1]
    assert numberings(runner, "room")[0] is numberings(runner, "room")[1]


def test_what_a_step_gave_to_several_cannot_be_written_to() -> None:
    runner = started(unlike(2))
    runner.feed(readings_batch(WORLD.readings))
    tables = [
        table
        for group in runner._running._groups
        for table in group.operator._window.occurrences.values()
        if len(table)
    ]
    assert tables
    with pytest.raises(ValueError, match="read-only"):
        tables[0].columns["end"][0] = 0


# --- told ---


def test_the_load_tells_steps_wanted_and_computed() -> None:
    runner, meter = started(unlike(3)), PolicyMeter()
    fed(runner, WORLD.readings)
    counts = meter.counts(runner)
    report = LoadMeter().report(counts)
    steps = total(runner)
    assert report.steps_wanted == steps.wanted
    assert report.steps_computed == pytest.approx(steps.computed, abs=1)
    assert counts["p1"].steps_wanted == steps.wanted / 3


detections = st.builds(
    Detection,
    policy=st.sampled_from("ab"),
    time=st.integers(0, 3),
    bindings=st.dictionaries(st.sampled_from("AB"), st.sampled_from(["9", "10", "x"])),
    causes=st.just(()),
    version=st.just(""),
)


@given(st.lists(detections, max_size=12))
def test_the_quick_order_is_the_order_of_the_output(found: list[Detection]) -> None:
    assert in_output_order(found) == sorted(found, key=detection_order)


def test_a_policy_withdrawn_before_the_first_reading_does_not_prevent_sharing() -> None:
    """Their look-up is the same; whose events it concerned is gone with the policy."""
    ways = [
        plan(INSIDE, name, status=status, window_ms=window_ms)
        for name, status, window_ms in (("p", "guest", 10), ("q", "employee", 20))
    ]
    runner = started([])
    for one in ways:
        runner.deploy(one)
    runner.snapshot()  # builds the steps
    runner.withdraw("p")
    gc.collect()
    found = fed(runner, WORLD.readings)
    assert runner.failed() == {}
    assert found == fed(started([ways[1]]), WORLD.readings)
