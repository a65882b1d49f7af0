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
from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.plan import Plan
from rapport.policy.runner.deployed_plans import PlanGroup
from rapport.policy.runner.families import (
    PropertyConstant,
    Slot,
    TermConstant,
    constant_of,
    is_absent,
    side_of,
    sides_of,
    slots_of,
    with_constant,
    with_sides,
)
from rapport.policy.runner.local import LocalRunner
from support.judge.trials import Trial, judged, outcome_lines, varied_trial, verdict_of
from support.varied.sites import Draws
from support.varied.worlds import ONTOLOGY, WINDOW_MS, random_policy, random_world, readings_batch

pytestmark = pytest.mark.slow

SIZES = (1, 2, 5, 20)
FACTORS = (0.0, 0.5, 1.0, 1.0, 1.5, 4.0)


class Together:
    """One runner with all policies, and beside it one runner for each policy alone."""

    def __init__(
        self, draws: Draws, trial: Trial, plans: list[Plan], texts: dict[str, Trial] | None = None
    ) -> None:
        """`texts`: what the evaluator judges, of plans that run all the time."""
        self.draws, self.trial, self.texts = draws, trial, texts or {}
        self.plans = {plan.policy: plan for plan in plans}
        first = [plan for plan in plans if draws.randint(0, 2) > 0]
        self.shared = self.runner(first)
        self.alone = {plan.policy: self.runner([plan] if plan in first else []) for plan in plans}
        self.running = {plan.policy for plan in first}
        self.steady = set(self.running)
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
            assert len(mine) == len(given) == len({item.id() for item in given})
            self.kinds["found"] += bool(mine)
            if name in self.texts and name in self.steady:
                assert outcome_lines(together) == outcome_lines(judged(self.texts[name]))
                self.kinds["judged"] += bool(mine)
        assert self.shared.failed() == {}

    def change(self) -> None:
        """Now and then a policy starts or stops, or everything is saved and restored."""
        what = self.draws.randint(0, 9)
        name = self.draws.choice(sorted(self.plans))
        if what == 0 and name in self.running:
            self.running.remove(name)
            self.steady.discard(name)
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
        self.steady.discard(name)
        self.alone[name].withdraw(name)
        self.alone[name].deploy(self.plans[name])

    def note(self) -> None:
        groups = self.shared._running._groups
        steps = self.shared.steps.values()
        computed, wanted = sum(one.computed for one in steps), sum(one.wanted for one in steps)
        self.kinds["steps shared by groups"] += len(groups) > 1 and computed < wanted
        self.kinds["memory shared by groups"] += any(map(is_read_by_several, groups))
        self.kinds["activations shared by groups"] += any(map(is_asked_by_several, groups))
        self.kinds.update(kind for group in groups for kind in kinds_in_common(group))
        self.kinds["several in a group"] += any(len(group.plans) > 1 for group in groups)
        self.kinds["begun"] += any(not group.plans for group in groups)
        for group in groups:
            if group.family is not None and len(group.plans) > 1:
                slot = group.family.slot
                where = "absent" if is_absent(group.family.sample, slot) else "positive"
                self.kinds[f"{type(slot).__name__} {where}"] += 1
                self.kinds["joined"] += group.began > 0


def is_read_by_several(group: PlanGroup) -> bool:
    steps = group.operator._window._steps.values()
    return any(len(step._common.readers) > 1 for step in steps)


def is_asked_by_several(group: PlanGroup) -> bool:
    askers = [one for one in group.operator._activations._queries.values() if one is not None]
    return any(len(one.known.queries) > 1 and one.known.searched > 0 for one in askers)


def kinds_in_common(group: PlanGroup) -> set[str]:
    """What of its positive conditions a group has in common with others."""
    window, plan = group.operator._window, group.operator.plan
    kinds = set()
    for pairs in window.correlations._pairs.values():
        if len(pairs.common.readers) > 1 and pairs.common.correlator.size():
            kinds.add(f"pairs used up once, {plan.consumption}")
    for finder in group.operator._pending._finders:
        parts = finder._combination.parts()
        joined = [step.key for path in finder._paths.values() for step in path.steps[1:]]
        if any(key is not None for key in joined):
            kinds.add("joined once")
            kinds.add("joined once, unsure clocks" if window.uncertainty_ms else "")
        if finder._key is not None:
            kinds |= {f"found once, {type(part).__name__}" for part in parts}
            kinds.add("found once, NOT clauses" if finder._shape.absent else "")
    return kinds - {""}


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


CORES = (
    "A is within 2m of B",
    "A is within 3m of C",
    "A is within 3m of B\n  A is inside R",
    "C is within 3m of A\n  C is inside Q\n  A is inside R",
    "A is inside R FOLLOWED-BY A is within 3m of B",
    "A is within 3m of B FOLLOWED-BY B is inside Q within 60 ms",
    "(A is within 3m of B OR A is inside R) within 40 ms",
    "A is inside R FOLLOWED-BY NOT B is inside R",
    "A is within 3m of B FOLLOWED-BY NOT B is inside R within 30 ms",
    "NOT B is inside R FOLLOWED-BY A is within 3m of B",
    "A is inside R FOLLOWED-BY A is inside Q FOLLOWED-BY A is within 3m of C",
)
MORE = (
    "C is inside Q",
    "B is inside Q",
    "B is not inside R",
    "A is not within 1m of C",
    "B is not inside R or A is not within 3m of B",
    "K is parked Q",
    "C is inside R FOLLOWED-BY C is inside Q",
    "C is inside R OR B is not inside Q",
    "R is leads Q",
    "at most once per 70 ms",
    "at most once per 200 ms",
    "distinct A, C",
)


def related_trial(chance: Chance, events: int) -> Trial:
    """A world of positions; in some the clocks are not sure."""
    world, ontology = random_world(chance, events=events), ONTOLOGY
    if chance.randint(0, 2) == 0:
        unsure = {
            name: msgspec.structs.replace(source, uncertainty_ms=chance.choice((1, 6)))
            for name, source in ONTOLOGY.sources.items()
        }
        ontology = msgspec.structs.replace(ONTOLOGY, sources=unsure)
    return Trial(
        text=chance.choice(CORES),
        ontology=ontology,
        pull=world.pull,
        readings=world.readings,
        window_ms=chance.choice((20, WINDOW_MS)),
    )


def related_plans(chance: Chance, trial: Trial) -> tuple[list[Plan], dict[str, Trial]]:
    """Plans with one condition in common, each with more conditions of its own; and what each of
    them is as a trial.
    """
    plans, texts = [], {}
    recent = chance.randint(0, 2) == 0
    for number in range(chance.randint(2, 6)):
        lines = [trial.text, *chance.sample(MORE, chance.randint(0, 2))]
        if chance.randint(0, 4) == 0:
            lines.append(chance.choice(CORES))
        # The language wants options behind conditions.
        lines.sort(key=lambda line: line.startswith(("at most", "distinct")))
        lines += ["consume recent"] if recent and chance.randint(0, 5) else []
        conditions = "".join(f"  {line}\n" for line in dict.fromkeys(lines))
        name = f"{'ba'[number % 2]}{number}"
        text = f"{CONCEPTS}conditions\n{conditions}actions\n  look\n"
        window_ms = chance.choice((trial.window_ms, trial.window_ms, 50))
        try:
            plan = compile_policy(
                text, name=name, ontology=trial.ontology, window_ms=window_ms
            ).plan
        except PolicyError:
            continue  # `at most once per` twice
        if chance.randint(0, 2) == 0:
            plan = with_other_names(plan)
        else:
            texts[name] = msgspec.structs.replace(trial, text=text, window_ms=window_ms)
        plans.append(plan)
    return plans, texts


def tried_related(chance: Chance, events: int) -> Counter[str]:
    trial = related_trial(chance, events)
    plans, texts = related_plans(chance, trial)
    if not plans:
        return Counter()
    together = Together(chance, trial, plans, texts)
    together.run()
    return together.kinds


@given(st.integers(0, 2**32))
def test_policies_with_a_condition_in_common_find_what_each_finds_alone(seed: int) -> None:
    tried_related(Chance(seed), 60)


def test_random_policies_with_a_condition_in_common_use_up_and_join_once() -> None:
    """Else the comparison would prove nothing."""
    kinds: Counter[str] = Counter()
    for seed in range(120):
        kinds.update((+tried_related(Chance(seed), 60)).keys())
        if min(kinds[name] for name in IN_COMMON) > 2:
            return
    raise AssertionError(kinds)


IN_COMMON = (
    "found",
    "judged",
    "pairs used up once, chronicle",
    "pairs used up once, recent",
    "joined once",
    "joined once, unsure clocks",
    "found once, Occurs",
    "found once, OrderedTerms",
    "found once, NotFollowed",
    "found once, NOT clauses",
)


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
        if min(kinds[name] for name in EVERY_KIND) > 1:
            return
    raise AssertionError(kinds)


EVERY_KIND = (
    "found",
    "several in a group",
    "begun",
    "joined",
    "IdenticalPlans positive",
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
        tried_related(chance, 60)


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
