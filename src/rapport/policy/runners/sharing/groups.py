"""The operators of a runner: each executes one plan, or a family of them. [PO-13]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.policy.plan import CorrelationTerm, LastingTerm, Plan, SilentTerm
from rapport.policy.runners.base import END_OF_TIME
from rapport.policy.runners.operators.operator import PlanOperator, SavedIdentities, positive_terms
from rapport.policy.runners.operators.reaches import (
    longest_window_ms,
    memory_ms,
    uncertainty_ms,
)
from rapport.policy.runners.operators.shapes import plan_shape
from rapport.policy.runners.sharing.family import OperatorContext, PlanFamily
from rapport.policy.runners.sharing.slots import Slot, family_key, slots_of

BEGIN_OF_TIME = -END_OF_TIME


class PlanGroup:
    """An operator with the plans it executes, and since when."""

    def __init__(
        self, operator: PlanOperator, plans: dict[str, Plan], family: PlanFamily | None, began: int
    ) -> None:
        self.operator, self.plans, self.family, self.began = operator, plans, family, began
        self.spent_ns = 0
        """Time it took since the last change of its plans."""
        self.wanted = self.computed = 0
        """Steps it wanted and computed since then."""
        self._keys: dict[bytes, Slot] | None = None
        plan = operator.plan
        has_steps = any(isinstance(term, LastingTerm | SilentTerm) for term in plan.terms)
        self._streams = None if has_steps else frozenset(plan.streams())

    def is_concerned(self, streams: frozenset[str]) -> bool:
        """Whether readings of these streams matter; where time itself does, any may be the
        first.
        """
        return self._streams is None or not self._streams.isdisjoint(streams)

    def keys(self) -> dict[bytes, Slot]:
        """Under which keys other groups may be joined with this one, and the slot of each."""
        if self._keys is None:
            family = self.family
            sample = family.sample if family is not None else next(iter(self.plans.values()))
            slots = (family.slot,) if family is not None else slots_of(sample)
            self._keys = {}
            if slots and converges(sample):
                self._keys = {family_key(sample, slot): slot for slot in slots}
        return self._keys

    def leave(self, policy: str) -> None:
        """Ends one plan; the others go on."""
        if self.family is not None:
            self.operator.hand_over(policy)
            self.family.leave(policy)
        del self.plans[policy]

    def move(self, home: PlanGroup) -> None:
        """Makes all its plans members of a family that knows what they know."""
        assert home.family is not None
        for policy, plan in list(self.plans.items()):
            reported = self.operator.hand_over(policy)
            home.family.admit([plan])
            home.operator.go_on(policy, reported)
            home.plans[policy] = plan
        self.plans = {}


def start_alone(
    plan: Plan,
    around: OperatorContext,
    since: int | None,
    began: int,
    saved: SavedIdentities | None = None,
) -> PlanGroup:
    """A plan on its own. `since`: from when silence counts; `began`: the watermark now; `saved`:
    of the state that its operator will take over.
    """
    operator = PlanOperator(
        plan,
        around.pull,
        around.silence,
        around.sources,
        since,
        counts=around.counts,
        shared=around.shared,
        saved=saved,
    )
    return PlanGroup(operator, {plan.policy: plan}, None, began)


def start_family(
    slot: Slot,
    plans: Sequence[Plan],
    around: OperatorContext,
    since: int | None,
    began: int,
    bounds: Sequence[str | float] = (),
    saved: SavedIdentities | None = None,
) -> PlanGroup:
    """Plans that differ in the slot at most."""
    family = PlanFamily(slot, plans, around, since, bounds, saved)
    return PlanGroup(family.operator, {plan.policy: plan for plan in plans}, family, began)


def gather_families(plans: Sequence[Plan]) -> list[tuple[Slot | None, list[Plan]]]:
    """Plans that begin together as families, the largest first; the others on their own."""
    by_key: dict[bytes, dict[str, Plan]] = {}
    slots: dict[bytes, Slot] = {}
    for plan in plans:
        for slot in slots_of(plan) if len(plans) > 1 else ():
            key = family_key(plan, slot)
            slots[key] = slot
            by_key.setdefault(key, {})[plan.policy] = plan
    left = {plan.policy: plan for plan in plans}
    found: list[tuple[Slot | None, list[Plan]]] = []
    for key, own in sorted(by_key.items(), key=lambda item: -len(item[1])):
        together = [plan for name, plan in own.items() if name in left]
        if len(together) > 1:
            found.append((slots[key], together))
            left = {name: plan for name, plan in left.items() if name not in own}
    return [*found, *((None, [plan]) for plan in left.values())]


def converges(plan: Plan) -> bool:
    """Whether what its operator knows depends on the recent past only, so that one which began
    later comes to know the same. Not where events are used up, and not for durations and silence.
    """
    positive = positive_terms(plan_shape(plan))
    return not any(
        isinstance(term, LastingTerm | SilentTerm)
        or (isinstance(term, CorrelationTerm) and number in positive)
        for number, term in enumerate(plan.terms)
    )


def settled_after_ms(plan: Plan, around: OperatorContext) -> int:
    """How long an operator must have run to know what one that began earlier knows: everything it
    remembers is younger, and so is all that this rests on.
    """
    unsure = uncertainty_ms(plan, around.sources)
    return 2 * memory_ms(plan, unsure, mixed=True) + 4 * longest_window_ms(plan)
