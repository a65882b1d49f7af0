"""Making the operator of a family: the plan that lets most through, and members that say for whom
each match counts. [PO-13]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rapport.core.errors import Unsupported
from rapport.core.ids import content_id
from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators.members import FamilyMember, FamilyMembers
from rapport.policy.runners.operators.operator import PlanOperator, SavedIdentities
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.throttle import SuppressionFilter
from rapport.policy.runners.operators.varying import ValueChoice, VaryingProperty, VaryingTerm
from rapport.policy.runners.sharing.sides import replace, with_sides
from rapport.policy.runners.sharing.slots import (
    IdenticalPlans,
    PropertyConstant,
    Slot,
    TermConstant,
    comparison,
    constant_of,
    family_key,
    is_absent,
    side_of,
    with_constant,
)
from rapport.policy.runners.silence import SourceSilence

_LARGER = (">", ">=")


class OperatorContext(NamedTuple):
    """What operators of a runner are made with."""

    pull: PullData
    silence: SourceSilence | None
    sources: Mapping[str, PushSource]
    counts: SuppressionFilter | None = None
    """Which of the detections that `at most once per` leaves out are counted; None: all."""
    shared: SharedCache | None = None
    """With whom steps are shared; None: with nobody."""


class PlanFamily:
    """Plans that differ in one slot at most, executed by one operator."""

    def __init__(
        self,
        slot: Slot,
        plans: Sequence[Plan],
        around: OperatorContext,
        began: int | None,
        bounds: Sequence[str | float] = (),
        saved: SavedIdentities | None = None,
    ) -> None:
        """`bounds`: constants of others that are let through too; members may have them later.
        `saved`: of the state that the operator will take over.

        Raises Unsupported when the tables hold no numbers where the plans compare some.
        """
        self.slot, self.sample = slot, plans[0]
        self.plans: dict[str, Plan] = {}
        constants = [constant_of(plan, slot) for plan in plans]
        self.bounds = _loosest(self.sample, slot, [*constants, *bounds])
        self._choice: ValueChoice | None = None
        widest = self._widest(around.pull)
        self._members = self._empty_members()
        self.operator = PlanOperator(
            widest,
            around.pull,
            around.silence,
            around.sources,
            began,
            members=self._members,
            version=content_id(family_key(self.sample, slot).decode())[:12],
            counts=around.counts,
            shared=around.shared,
            saved=saved,
        )
        self.admit(plans)

    def covers(self, plan: Plan) -> bool:
        """Whether the operator lets through all that this plan of the same family asks for."""
        constant = constant_of(plan, self.slot)
        return _loosest(plan, self.slot, [*self.bounds, constant]) == self.bounds

    def admit(self, plans: Sequence[Plan]) -> None:
        """Makes plans members; they must have seen what the operator has, as far as it matters."""
        self.plans |= {plan.policy: plan for plan in plans}
        self._members.add(*map(self._member, plans))

    def leave(self, policy: str) -> None:
        """Makes a plan none."""
        del self.plans[policy]
        self._members.remove(policy)

    def _member(self, plan: Plan) -> FamilyMember:
        constant = constant_of(plan, self.slot)
        if self._choice is not None:
            return FamilyMember(plan.policy, plan.version(), float(self._choice.number(constant)))
        return FamilyMember(plan.policy, plan.version(), oriented(plan, self.slot, constant))

    def _empty_members(self) -> FamilyMembers:
        absent = is_absent(self.sample, self.slot)
        how = comparison(self.sample, self.slot)
        sign = -1 if how in _LARGER else 1
        if isinstance(self.slot, TermConstant):
            varying = VaryingTerm(self.slot.term, absent=absent, sign=sign)
            return FamilyMembers(varying, strict=how in ("<", ">"))
        if isinstance(self.slot, PropertyConstant):
            attribute = side_of(self.sample, self.slot.alias).constraints[self.slot.place].attribute
            own = VaryingProperty(
                self.slot.alias, attribute, absent=absent, sign=sign, choice=self._choice
            )
            return FamilyMembers(own, strict=how in ("<", ">"))
        return FamilyMembers(None)

    def _widest(self, pull: PullData) -> Plan:
        """The plan that lets through what any member asks for."""
        if isinstance(self.slot, IdenticalPlans):
            return self.sample
        if comparison(self.sample, self.slot) != "=":
            _check_numbers(self.sample, self.slot, pull)
            return with_constant(self.sample, self.slot, self.bounds[0])
        assert isinstance(self.slot, PropertyConstant)
        slot, side = self.slot, side_of(self.sample, self.slot.alias)
        attribute = side.constraints[slot.place].attribute
        choice = self._choice = ValueChoice(pull.instances(side.concept), attribute, self.bounds)
        constraints = list(side.constraints)
        constraints[slot.place] = choice.constraint(attribute)
        return with_sides(
            self.sample,
            lambda one: (
                replace(one, constraints=tuple(constraints)) if one.alias == slot.alias else one
            ),
        )


def oriented(plan: Plan, slot: Slot, constant: str | float) -> float:
    """The constant as needs are compared with it: the larger, the more it lets through."""
    if isinstance(slot, IdenticalPlans):
        return 0.0
    number = float(constant)
    if isinstance(slot, TermConstant) and plan.terms[slot.term].function:
        return number * number
    return -number if comparison(plan, slot) in _LARGER else number


def _loosest(plan: Plan, slot: Slot, constants: Sequence[str | float]) -> list[str | float]:
    """What of the constants the operator must know: the one that lets most through, or all."""
    if isinstance(slot, IdenticalPlans):
        return [0.0]
    if comparison(plan, slot) == "=":
        return sorted(set(constants), key=lambda one: (isinstance(one, str), one))
    return [max(constants, key=lambda one: oriented(plan, slot, one))]


def _check_numbers(plan: Plan, slot: Slot, pull: PullData) -> None:
    if isinstance(slot, PropertyConstant):
        side = side_of(plan, slot.alias)
        column = pull.instances(side.concept).columns.get(side.constraints[slot.place].attribute)
        if column is not None and (column.dtype == object or column.dtype.kind != "f"):
            raise Unsupported("a family of comparisons with what is no number", "the local runner")
