"""Policies executed together find what each finds alone, whenever they are started, stopped, saved
and restored. [PO-7, PO-13]
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.detection import detection_order
from rapport.kernel.chance import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.plan import Plan
from rapport.policy.runners.local import LocalRunner
from rapport.policy.runners.sharing.groups import Group
from rapport.policy.runners.sharing.sides import sides_of, with_sides
from rapport.policy.runners.sharing.slots import (
    PropertyConstant,
    Slot,
    TermConstant,
    constant_of,
    is_absent,
    side_of,
    slots_of,
    with_constant,
)
from rapport.testing.trials import Trial, outcome_lines, varied_trial, verdict_of
from rapport.testing.varied_worlds import Draws
from rapport.testing.worlds import ONTOLOGY, random_policy, random_world, readings_batch

pytestmark = pytest.mark.slow

SIZES = (1, 2, 5, 20)
FACTORS = (0.0, 0.5, 1.0, 1.0, 1.5, 4.0)


class Together:
    """One runner with all policies, and beside it one runner for each policy alone."""

    def __init__(self, draws: Draws, trial: Trial, plans: list[Plan]) -> None:
        self.draws, self.trial = draws, trial
        self.plans = {plan.policy: plan for plan in plans}
        first = [plan for plan in plans if draws.randint(0, 2) > 0]
        self.shared = self.runner(first)
        self.alone = {plan.policy: self.runner([plan] if plan in first else []) for plan in plans}
        self.running = {plan.policy for plan in first}
        self.kinds: Counter[str] = Counter()

    def runner(self, plans: list[Plan]) -> LocalRunner:
        return LocalRunner(
            plans, self.trial.pull, lateness_ms=0, sources=self.trial.ontology.sources
        )

    def run(self) -> None:
        readings = list(self.trial.readings)
        found = []
        alone: dict[str, list] = {name: [] for name in self.plans}
        undecided, alone_undecided = [], {name: [] for name in self.plans}
        while readings:
            size = self.draws.choice(SIZES)
            batch = readings_batch(readings[:size], self.trial.ontology)
            readings = readings[size:]
            found += in_order(self.shared.feed(batch))
            undecided += self.shared.take_undecided()
            for name, runner in self.alone.items():
                alone[name] += runner.feed(batch)
                alone_undecided[name] += runner.take_undecided()
            self.note()
            self.change()
        found += in_order(self.shared.finish())
        undecided += self.shared.take_undecided()
        for name, runner in self.alone.items():
            mine = [item for item in found if item.policy == name]
            doubts = [item for item in undecided if item.policy == name]
            left_out = self.shared.suppressed().get(name, 0)
            given = alone[name] + runner.finish()
            expected = verdict_of(
                given,
                alone_undecided[name] + runner.take_undecided(),
                runner.suppressed().get(name, 0),
            )
            together = verdict_of(mine, doubts, left_out)
            assert outcome_lines(together) == outcome_lines(expected), (name, self.plans[name])
            assert len(mine) == len(given)
            self.kinds["found"] += bool(mine)
        assert self.shared.failed() == {}

    def change(self) -> None:
        """Now and then a policy starts or stops, or everything is saved and restored."""
        what = self.draws.randint(0, 9)
        name = self.draws.choice(sorted(self.plans))
        if what == 0 and name in self.running:
            self.running.remove(name)
            self.shared.withdraw(name)
            self.alone[name].withdraw(name)
        elif what in (1, 2) and name not in self.running:
            self.running.add(name)
            self.shared.deploy(self.plans[name])
            self.alone[name].deploy(self.plans[name])
        elif what == 3:
            saved = self.shared.snapshot()
            self.shared = self.runner([self.plans[name] for name in sorted(self.running)])
            self.shared.restore(saved)
        elif what == 4:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Restarts with a snapshot that does not know one of the policies."""
        if name not in self.running:
            return
        self.shared.withdraw(name)
        saved = self.shared.snapshot()
        self.shared = self.runner([self.plans[name] for name in sorted(self.running)])
        assert self.shared.restore_known(saved) == [name]
        self.alone[name].withdraw(name)
        self.alone[name].deploy(self.plans[name])

    def note(self) -> None:
        groups = self.shared._running._groups
        steps = self.shared.steps.values()
        computed, wanted = sum(one.computed for one in steps), sum(one.wanted for one in steps)
        self.kinds["steps shared by groups"] += len(groups) > 1 and computed < wanted
        self.kinds["memory shared by groups"] += any(map(is_read_by_several, groups))
        self.kinds["activations shared by groups"] += any(map(is_asked_by_several, groups))
        self.kinds["several in a group"] += any(len(group.plans) > 1 for group in groups)
        self.kinds["begun"] += any(not group.plans for group in groups)
        for group in groups:
            if group.family is not None and len(group.plans) > 1:
                slot = group.family.slot
                where = "absent" if is_absent(group.family.sample, slot) else "positive"
                self.kinds[f"{type(slot).__name__} {where}"] += 1
                self.kinds["joined"] += group.began > 0


def is_read_by_several(group: Group) -> bool:
    steps = group.operator._window._steps.values()
    return any(len(step._common.readers) > 1 for step in steps)


def is_asked_by_several(group: Group) -> bool:
    askers = [one for one in group.operator._activations._askers.values() if one is not None]
    return any(len(one.known.askers) > 1 and one.known.searched > 0 for one in askers)


def in_order(found: list) -> list:
    assert found == sorted(found, key=detection_order)
    return found


def unlike_plans(draws: Draws, trial: Trial) -> list[Plan]:
    """Plans that differ in windows and in several constants, or in everything, and yet have steps
    in common.
    """
    texts = [trial.text, trial.text]
    if trial.ontology is ONTOLOGY:
        texts += [random_policy(Chance(draws.randint(0, 2**31))) for _ in range(2)]
    plans = []
    for number in range(draws.randint(2, 5)):
        text, window_ms = draws.choice(texts), draws.choice((5, 20, 30, trial.window_ms))
        plan = compile_policy(
            text, name=f"{'ba'[number % 2]}{number}", ontology=trial.ontology, window_ms=window_ms
        ).plan
        for slot in slots_of(plan)[1:]:
            if draws.randint(0, 2) == 0:
                plan = with_constant(plan, slot, other_constant(draws, trial, plan, slot))
        plans.append(with_other_names(plan) if draws.randint(0, 2) == 0 else plan)
    return plans


def with_other_names(plan: Plan) -> Plan:
    """The same said of other aliases, so that only what they say can tell steps to be equal."""
    turned = {alias: f"{'zyx'[place % 3]}{place}" for place, alias in enumerate(aliases_of(plan))}
    changed = with_sides(plan, lambda side: msgspec.structs.replace(side, alias=turned[side.alias]))
    distinct = tuple((turned[first], turned[second]) for first, second in plan.distinct)
    return msgspec.structs.replace(changed, distinct=distinct)


def aliases_of(plan: Plan) -> list[str]:
    sides = [side.alias for term in plan.terms for side in sides_of(term)]
    return sorted({*sides, *(alias for pair in plan.distinct for alias in pair)})


def varied_family(draws: Draws, trial: Trial, window_ms: int) -> list[Plan]:
    """Plans that differ in one constant, and perhaps one that differs in more."""
    plan = compile_policy(trial.text, name="p", ontology=trial.ontology, window_ms=window_ms).plan
    slots = slots_of(plan)
    if not slots:
        return [plan, msgspec.structs.replace(plan, policy="q")]
    rare = [slot for slot in slots if isinstance(slot, TermConstant)]
    rare += [slot for slot in slots[1:] if is_absent(plan, slot)]
    slot = draws.choice(draws.choice((slots, slots[1:] or slots, rare or slots)))
    count = draws.randint(2, 5)
    plans = [
        msgspec.structs.replace(
            with_constant(plan, slot, other_constant(draws, trial, plan, slot)),
            policy=f"{'qp'[number % 2]}{number}",
        )
        for number in range(count)
    ]
    other = draws.choice(slots)
    changed = with_constant(plan, other, other_constant(draws, trial, plan, other))
    return [*plans, msgspec.structs.replace(changed, policy="other")]


def other_constant(draws: Draws, trial: Trial, plan: Plan, slot: Slot) -> str | float:
    own = constant_of(plan, slot)
    if isinstance(slot, TermConstant):
        return float(own) * draws.choice(FACTORS) + draws.choice((0, 0, 1))
    if isinstance(slot, PropertyConstant):
        side = side_of(plan, slot.alias)
        attribute = side.constraints[slot.place].attribute
        values = trial.pull.instances(side.concept).columns[attribute].tolist()
        known = [value for value in values if value is not None and value == value]
        given = draws.choice([*known, own])
        return str(given).lower() if isinstance(given, bool) else given
    return own


FAMILIES = (
    "A is inside R\n  A is not within 2m of B or B is not inside R",
    "A is inside R\n  A is not within 1m of C",
    "A is inside Q\n  B is not inside R or A is not within 3m of B\n  C is not within 1m of A",
    "A is inside R\n  B is not inside R\n  C is inside Q",
    "A is within 2m of B\n  B is not inside R\n  at most once per 50 ms",
    "A is inside R\n  A is not within 2m of B\n  at most once per 100 ms",
    "A is inside R FOLLOWED-BY A is inside Q",
    "A is inside R\n  B is inside Q OR B is not within 1m of A",
)
CONCEPTS = random_policy(Chance(0)).partition("conditions\n")[0]


def position_trial(chance: Chance, events: int) -> Trial:
    world = random_world(chance, events=events)
    chosen = f"{CONCEPTS}conditions\n  {chance.choice(FAMILIES)}\nactions\n  look\n"
    return Trial(
        text=chance.choice((random_policy(chance), chosen, chosen)),
        ontology=ONTOLOGY,
        pull=world.pull,
        readings=world.readings,
        window_ms=20,
    )


def family_trial(draws: Draws, events: int) -> Trial:
    """A random policy on a random site, if possible one that others may differ from."""
    trial = varied_trial(draws, events=events)
    for _ in range(10):
        plan = compile_policy(
            trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
        ).plan
        if any(isinstance(slot, TermConstant) for slot in slots_of(plan)):
            break
        trial = varied_trial(draws, events=events)
    return trial


def tried(draws: Draws, trial: Trial) -> Counter[str]:
    window_ms = draws.choice((5, 20, trial.window_ms))
    together = Together(draws, trial, varied_family(draws, trial, window_ms))
    together.run()
    return together.kinds


def tried_unlike(draws: Draws, trial: Trial) -> Counter[str]:
    together = Together(draws, trial, unlike_plans(draws, trial))
    together.run()
    return together.kinds


@given(st.integers(0, 2**32))
def test_policies_that_differ_in_much_find_together_what_each_finds_alone(seed: int) -> None:
    chance = Chance(seed)
    tried_unlike(chance, position_trial(chance, 60))


@settings(suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(5, 50))
def test_policies_of_every_kind_that_differ_in_much_find_what_each_finds_alone(
    draws: Draws, events: int
) -> None:
    tried_unlike(draws, varied_trial(draws, events=events))


def test_random_policies_that_differ_in_much_do_share_steps() -> None:
    """Else the comparison would prove nothing."""
    kinds: Counter[str] = Counter()
    for seed in range(40):
        chance = Chance(seed)
        trial = position_trial(chance, 60) if seed % 2 else varied_trial(chance, events=40)
        kinds.update((+tried_unlike(chance, trial)).keys())
    assert min(kinds["found"], kinds["steps shared by groups"]) > 10, kinds
    shared = kinds["memory shared by groups"], kinds["activations shared by groups"]
    assert min(shared) > 2, kinds


@settings(suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_policies_of_every_kind_find_together_what_each_finds_alone(
    draws: Draws, events: int
) -> None:
    tried(draws, varied_trial(draws, events=events))


@given(st.integers(0, 2**32))
def test_policies_about_positions_find_together_what_each_finds_alone(seed: int) -> None:
    chance = Chance(seed)
    tried(chance, position_trial(chance, 80))


@given(st.integers(0, 2**32))
def test_families_of_every_kind_find_together_what_each_finds_alone(seed: int) -> None:
    chance = Chance(seed)
    tried(chance, family_trial(chance, 60))


def test_random_families_are_of_every_kind_and_come_together() -> None:
    """Else the comparison would prove nothing."""
    kinds: Counter[str] = Counter()
    for seed in range(120):
        chance = Chance(seed)
        trial = position_trial(chance, 80) if seed % 2 else family_trial(chance, 60)
        kinds.update((+tried(chance, trial)).keys())
    assert min(kinds[name] for name in EVERY_KIND) > 1, kinds


EVERY_KIND = (
    "found",
    "several in a group",
    "begun",
    "joined",
    "Alike positive",
    "TermConstant positive",
    "TermConstant absent",
    "PropertyConstant positive",
    "PropertyConstant absent",
)


@pytest.mark.long
def test_thousands_of_families_find_what_each_finds_alone() -> None:
    for seed in range(5_000):
        chance = Chance(seed)
        trial = position_trial(chance, 80) if seed % 2 else family_trial(chance, 60)
        tried(chance, trial)
        tried_unlike(chance, trial)


def test_every_alias_has_the_same_constraints_on_all_its_sides() -> None:
    """What families by property rest on."""
    for seed in range(100):
        trial = varied_trial(Chance(seed))
        plan = compile_policy(
            trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
        ).plan
        seen: dict[str, object] = {}
        for side in (side for term in plan.terms for side in sides_of(term)):
            assert seen.setdefault(side.alias, side.constraints) == side.constraints
