"""Plans executed as one: which, for whom a match counts, coming together, and failing apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rapport.core.detection import detection_lines
from rapport.core.errors import Corrupt
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology, Relationship
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.occurrences import Predicate
from rapport.policy.operators.variants import FamilyMember, FamilyMembers, ValueChoice, VaryingTerm
from rapport.policy.plan import Plan
from rapport.policy.relations import WITHIN, relation
from rapport.policy.replay.replay import Recording, replay
from rapport.policy.runner.deployed_plans import converges, gather_families
from rapport.policy.runner.families import PropertyConstant, TermConstant, family_key, slots_of
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.varied.feeding import fed
from support.varied.worlds import ONTOLOGY, WINDOW_MS, Pull, random_world

ALONE = "  A is inside R\n  A is not within {}m of B or B is not inside R"
WORLD = random_world(Chance(11), events=120)


def plan(
    conditions: str,
    name: str = "p",
    *,
    status: str = "guest",
    ontology: Ontology = ONTOLOGY,
    window_ms: int = WINDOW_MS,
) -> Plan:
    text = (
        f"concepts\n  person A (status='{status}')\n  room R\n  person B\nconditions\n"
        f"{conditions}\nactions\n  look\n"
    )
    return compile_policy(text, name=name, ontology=ontology, window_ms=window_ms).plan


def distances(*metres: float) -> list[Plan]:
    return [plan(ALONE.format(one), f"p{number}") for number, one in enumerate(metres)]


def groups(runner: LocalRunner) -> list[list[str]]:
    """Which policies are executed together."""
    return sorted(sorted(group.plans) for group in runner._running._groups)


# --- which plans are alike ---


def test_plans_that_differ_in_a_distance_in_a_value_or_in_nothing_are_families() -> None:
    others = [plan(ALONE.format(2), "other", status="employee"), plan(ALONE.format(2), "copy")]
    [(slot, together), *rest] = gather_families([*distances(1, 2, 3), *others])
    assert isinstance(slot, TermConstant)
    assert [one.policy for one in together] == ["p0", "p1", "p2", "copy"]
    assert [[one.policy for one in own] for _, own in rest] == [["other"]]


def test_a_positive_correlation_uses_events_up_by_its_constant_and_is_no_family() -> None:
    near = plan("  A is within 2m of B")
    kinds = [slot for slot in slots_of(near) if isinstance(slot, TermConstant)]
    assert kinds == []
    assert PropertyConstant("A", 0) in slots_of(near)
    assert not converges(near)


def test_a_function_of_the_site_keeps_a_policy_on_its_own() -> None:
    text = "concepts\n  person A\n  cart K\nconditions\n  A is beside 1m of K\nactions\n  look\n"
    own = compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=WINDOW_MS).plan
    assert slots_of(own) == ()


def test_plans_that_differ_in_two_places_have_no_key_in_common() -> None:
    first, second = plan(ALONE.format(1)), plan(ALONE.format(2), status="employee")
    keys = {family_key(first, slot) for slot in slots_of(first)}
    assert keys.isdisjoint(family_key(second, slot) for slot in slots_of(second))


# --- for whom a match counts ---


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("absent", [False, True])
def test_a_match_counts_for_the_constants_on_one_side_of_its_need(
    strict: bool, absent: bool
) -> None:
    members = FamilyMembers(VaryingTerm(0, absent=absent, sign=1), strict=strict)
    constants = [3.0, 1.0, 2.0, 2.0]
    members.add(*(FamilyMember(f"p{place}", "", one) for place, one in enumerate(constants)))
    needs = np.array([0.0, 1.0, 2.0, 2.5, 9.0])
    rows, who = members.pairs({"need": needs, "end": needs})
    found = {
        (int(row), members.ordered[place].policy) for row, place in zip(rows, who, strict=True)
    }
    for row, need in enumerate(needs.tolist()):
        for place, constant in enumerate(constants):
            holds = need < constant if strict else need <= constant
            assert ((row, f"p{place}") in found) is (holds is not absent)


def test_the_need_of_a_distance_is_rounded_as_the_relationship_does() -> None:
    chance = np.random.default_rng(5)
    first, second = chance.normal(0, 5, (4_000, 2)), chance.normal(0, 5, (4_000, 2))
    term = plan("  A is inside R\n  A is not within 1m of B").terms[1]
    identities = {"person": Identities(Instances("person", [], {}))}
    none = np.zeros(0, np.int64)
    needs = Predicate(term, identities, Pull({})).measured(first, second, none, none)
    for reach in np.sqrt(needs[:300]):
        assert ((needs <= reach * reach) == WITHIN.holds_many(first, second, reach)).all()


@pytest.mark.parametrize(
    ("column", "constants", "expected"),
    [
        (np.array(["a", None, "b", "5"], object), ["b", "a", 5.0], [1, -1, 0, -1]),
        (np.array([True, None, False], object), ["TRUE", "no"], [0, -1, 1]),
        (np.array([1.0, np.nan, 2.5]), [2.5, "1"], [1, -1, 0]),
    ],
)
def test_values_are_distinguished_as_in_the_tables(
    column: np.ndarray, constants: list, expected: list[int]
) -> None:
    instances = Instances("thing", [str(place) for place in range(len(column))], {"kind": column})
    assert ValueChoice(instances, "kind", constants).of(column).tolist() == expected


# --- running ---


def test_a_family_finds_what_each_of_its_plans_finds_alone() -> None:
    plans = distances(0, 1, 1, 2, 3, 50)
    runner = LocalRunner(plans, WORLD.pull, lateness_ms=0)
    found = fed(runner, WORLD.readings) + runner.finish()
    assert groups(runner) == [["p0", "p1", "p2", "p3", "p4", "p5"]]
    assert len({item.policy for item in found}) > 2
    for one in plans:
        alone = LocalRunner([one], WORLD.pull, lateness_ms=0)
        own = fed(alone, WORLD.readings) + alone.finish()
        mine = [item for item in found if item.policy == one.policy]
        assert mine == own


def test_a_plan_that_comes_later_begins_alone_and_joins_when_it_knows_the_same() -> None:
    first, second, third = (
        plan(ALONE.format(metres), name, window_ms=5)
        for name, metres in (("a", 1), ("b", 3), ("c", 2))
    )
    runner = LocalRunner([first], WORLD.pull, lateness_ms=0)
    fed(runner, WORLD.readings[:10])
    runner.deploy(second)
    assert groups(runner) == [["a"], ["b"]]
    fed(runner, WORLD.readings[10:60])
    assert groups(runner) == [["a", "b"]]
    runner.deploy(third)
    fed(runner, WORLD.readings[60:90])
    assert groups(runner) == [["a", "b", "c"]]
    runner.withdraw("b")
    assert groups(runner) == [["a", "c"]]
    assert runner.policies().keys() == {"a", "c"}


def test_a_family_is_saved_once_and_taken_over_by_those_that_did_not_change() -> None:
    plans = distances(1, 2, 3)
    runner = LocalRunner(plans, WORLD.pull, lateness_ms=0)
    fed(runner, WORLD.readings[:60])
    saved = runner.snapshot()
    single = LocalRunner(plans[:1], WORLD.pull, lateness_ms=0)
    fed(single, WORLD.readings[:60])
    assert len(saved) < len(single.snapshot()) + 500
    changed = plan(ALONE.format(7), "p1")
    other = LocalRunner([plans[0], changed, plans[2]], WORLD.pull, lateness_ms=0)
    assert other.restore_known(saved) == ["p1"]
    assert groups(other) == [["p0", "p2"], ["p1"]]
    rest = WORLD.readings[60:]
    expected = [item for item in fed(runner, rest) + runner.finish() if item.policy != "p1"]
    found = [item for item in fed(other, rest) + other.finish() if item.policy != "p1"]
    assert detection_lines(found) == detection_lines(expected)


def test_a_runner_goes_on_with_what_another_one_knows_of_a_member() -> None:
    plans = distances(1, 2, 3)
    runner = LocalRunner(plans, WORLD.pull, lateness_ms=0)
    other = LocalRunner(plans[1:2], WORLD.pull, lateness_ms=0)
    fed(runner, WORLD.readings[:60])
    fed(other, WORLD.readings[:60])
    runner.adopt(other, ())
    assert groups(runner) == [["p0", "p2"], ["p1"]]
    stranger = LocalRunner([plan(ALONE.format(9), "p1")], WORLD.pull, lateness_ms=0)
    with pytest.raises(Corrupt):
        runner.adopt(stranger, ())


def test_what_a_family_costs_is_shared_among_its_members() -> None:
    ticks = iter(range(0, 10**9, 1_000))
    runner = LocalRunner(distances(1, 2), WORLD.pull, lateness_ms=0, steady_ns=lambda: next(ticks))
    fed(runner, WORLD.readings)
    spent = runner.spent_ns
    assert spent["p0"] == spent["p1"] > 0


# --- failing ---


@relation(first="point", second="rectangle")
def brittle(first: Sequence[float], second: Sequence[float], parameter: float | None) -> bool:
    """Cannot stand the number 6."""
    if first[0] == 6:
        raise ValueError("six")
    return True


BRITTLE = msgspec.structs.replace(
    ONTOLOGY,
    relationships=dict(ONTOLOGY.relationships)
    | {
        "touching": Relationship(
            "touching", ("person", "position"), ("room", "area"), f"{__name__}:brittle"
        )
    },
)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """A policy that fails when it sees a six, and one that does not."""
    from rapport.policy import relations

    monkeypatch.setitem(relations._loaded, f"{__name__}:brittle", brittle)
    return [plan("  A is touching R", "brittle", ontology=BRITTLE), plan("  A is inside R", "calm")]


def test_a_policy_that_fails_is_set_aside_and_the_others_go_on(failing: list[Plan]) -> None:
    runner = LocalRunner(failing, WORLD.pull, lateness_ms=0)
    alone = LocalRunner(failing[1:], WORLD.pull, lateness_ms=0)
    found = fed(runner, WORLD.readings) + runner.finish()
    expected = fed(alone, WORLD.readings) + alone.finish()
    assert [item for item in found if item.policy == "calm"] == expected
    assert runner.policies().keys() == {"calm"}
    problem = runner.failed()["brittle"]
    assert problem.code == "policy.failed"
    assert "ValueError: six" in problem.message
    assert problem.hint


def test_a_replay_goes_on_without_a_policy_that_fails_and_tells_of_it(
    failing: list[Plan], tmp_path: Path
) -> None:
    rows = [f"{100 * number},e{number},7,{number},1" for number in range(10)]
    (tmp_path / "events.csv").write_text("\n".join(["time,id,person,x,y", *rows, ""]))
    recording = Recording(BRITTLE.sources["badges"], tmp_path / "events.csv")
    result = replay(BRITTLE, WORLD.pull, failing, [recording], lateness_ms=0)
    assert [problem.code for problem in result.problems] == ["policy.failed"]
    assert result.events == 10


def test_what_failed_stays_failed_after_a_restart_until_it_is_deployed_again(
    failing: list[Plan],
) -> None:
    runner = LocalRunner(failing, WORLD.pull, lateness_ms=0)
    fed(runner, WORLD.readings)
    saved = runner.snapshot()
    again = LocalRunner(failing, WORLD.pull, lateness_ms=0)
    again.restore(saved)
    assert again.failed().keys() == {"brittle"}
    again.deploy(failing[0])
    assert again.failed() == {}
    assert again.policies().keys() == {"calm", "brittle"}
    again.withdraw("brittle")
    assert again.restore_known(saved) == []


def test_a_member_that_makes_its_family_fail_is_set_aside_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = distances(1, 2, 3)
    runner = LocalRunner(plans, WORLD.pull, lateness_ms=0)
    fed(runner, WORLD.readings[:20])
    from rapport.policy.operators.operator import PlanOperator

    process = PlanOperator.process

    def faulty(self: PlanOperator, *given: object) -> object:
        if "p1" in (self._members or [self.plan.policy]):
            raise RuntimeError("bad table")
        return process(self, *given)

    monkeypatch.setattr(PlanOperator, "process", faulty)
    fed(runner, WORLD.readings[20:40])
    assert runner.failed().keys() == {"p1"}
    assert runner.policies().keys() == {"p0", "p2"}
