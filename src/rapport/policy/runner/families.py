"""Families: plans that differ in one constant of a term or property and run as one operator.
[PO-13]

Only where the result is exact. The match must be the same for every member, so that one number (the
need) decides for which members it counts: the constant is in a term that every match has, or that
only counterexamples have. A positive correlation consumes events depending on its constant, and a
sequence or mixed clause takes the first fitting occurrence, so such plans run separately.
"""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from rapport.core.errors import Unsupported
from rapport.core.event import content_id
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.detection_output import SuppressionFilter
from rapport.policy.operators.operator import PlanOperator, SavedIdentities
from rapport.policy.operators.plan_shape import PlanShape, is_built_in, plan_shape
from rapport.policy.operators.shared_cache import Change, SharedCache, sides_of, with_changed_sides
from rapport.policy.operators.uncertainty import SourceSilence
from rapport.policy.operators.variants import (
    FamilyMember,
    FamilyMembers,
    ValueChoice,
    VaryingProperty,
    VaryingTerm,
)
from rapport.policy.plan import (
    Absent,
    Clause,
    Compared,
    Constant,
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    Plan,
    Positive,
    QueryTerm,
    ReadingTerm,
    Sequence,
    Side,
    SilentTerm,
    StateTerm,
    TermStep,
    state_terms,
)
from rapport.policy.situation_plan import NamedAtTurns

_ORDERED = ("<", "<=", ">", ">=")
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WITHIN = "within"
_LARGER = (">", ">=")


def with_sides(plan: Plan, change: Change) -> Plan:
    return replace(plan, terms=tuple(with_changed_sides(term, change) for term in plan.terms))


def unnamed(plan: Plan) -> Plan:
    """The plan without name and actions, which operators do not use."""
    return replace(plan, policy="", actions=(), deliveries=())


class IdenticalPlans(msgspec.Struct, frozen=True, tag="alike"):
    """The plans differ only in names and actions."""


class TermConstant(msgspec.Struct, frozen=True, tag="term"):
    """They differ in the parameter or compared constant of one term."""

    term: int


class PropertyConstant(msgspec.Struct, frozen=True, tag="property"):
    """They differ in the value of one constraint of an alias."""

    alias: str
    place: int


Slot = IdenticalPlans | TermConstant | PropertyConstant
ANYWHERE = IdenticalPlans()


def slots_of(plan: Plan) -> tuple[Slot, ...]:
    """The slots in which plans may differ from this one and share its operator.

    Empty for plans with Python functions of the site: their errors concern one policy; and for
    those with a guard, which is evaluated for one plan.
    """
    if plan.guard is not None:
        return ()
    if not all(is_built_in(one) for term in plan.terms for one in state_terms(term)):
        return ()
    shape = plan_shape(plan)
    terms = [TermConstant(number) for number in range(len(plan.terms))]
    return (
        ANYWHERE,
        *(slot for slot in terms if not shape.mixed and _fits_term(plan, slot.term)),
        *_properties(plan, shape),
    )


def family_key(plan: Plan, slot: Slot) -> bytes:
    """Equal for plans that differ in the slot at most."""
    blank = unnamed(with_constant(plan, slot, 0.0))
    return msgspec.json.encode((slot, blank))


def constant_of(plan: Plan, slot: Slot) -> str | float:
    """The constant in the slot."""
    if isinstance(slot, TermConstant):
        return _number(plan.terms[slot.term])
    if isinstance(slot, PropertyConstant):
        return side_of(plan, slot.alias).constraints[slot.place].value
    return 0.0


def with_constant(plan: Plan, slot: Slot, value: str | float) -> Plan:
    """The plan with another constant in the slot."""
    if isinstance(slot, TermConstant):
        terms = list(plan.terms)
        terms[slot.term] = _with_number(terms[slot.term], float(value))
        return replace(plan, terms=tuple(terms))
    if isinstance(slot, PropertyConstant):
        return with_sides(plan, lambda side: _with_value(side, slot, value))
    return plan


def is_absent(plan: Plan, slot: Slot) -> bool:
    """Whether only counterexamples have it."""
    if isinstance(slot, TermConstant):
        return any(child == Absent(slot.term) for one in plan.clauses for child in one.children)
    if isinstance(slot, PropertyConstant):
        return not _is_bound(plan_shape(plan), plan, slot.alias)
    return False


def comparison(plan: Plan, slot: Slot) -> str:
    """The comparison with the constant on the right; `=` for a value."""
    if isinstance(slot, PropertyConstant):
        return side_of(plan, slot.alias).constraints[slot.place].operator
    if isinstance(slot, TermConstant):
        compared = plan.terms[slot.term].compared  # type: ignore[union-attr]
        if compared is None:
            return "<="
        is_right = isinstance(compared.right, Constant)
        return compared.operator if is_right else _TURNED[compared.operator]
    return "="


def side_of(plan: Plan, alias: str) -> Side:
    """A side of the alias; all of its sides have equal constraints."""
    return next(side for term in plan.terms for side in sides_of(term) if side.alias == alias)


# --- the constant of a term ---


def _fits_term(plan: Plan, number: int) -> bool:
    term = plan.terms[number]
    if isinstance(term, LastingTerm | SilentTerm) or not _has_number(term):
        return False
    clauses = [one for one in plan.clauses if _mentions(one, number)]
    if all(one.children == (Positive(number),) for one in clauses):
        return bool(clauses) and not isinstance(term, CorrelationTerm)
    return all(_is_absence(one) and Absent(number) in one.children for one in clauses) and not any(
        number in (child.first, child.second)
        for one in clauses
        for child in one.children
        if isinstance(child, Sequence)
    )


def _mentions(clause: Clause, number: int) -> bool:
    return any(
        number in ((child.first, child.second) if isinstance(child, Sequence) else (child.term,))
        for child in clause.children
    )


def _is_absence(clause: Clause) -> bool:
    return all(
        isinstance(child, Absent)
        or (isinstance(child, Sequence) and child.first_negated and child.second_negated)
        for child in clause.children
    )


def _has_number(term: StateTerm) -> bool:
    if term.compared is not None:
        return _compared_number(term.compared) is not None
    return term.function == _WITHIN and term.parameter is not None and term.parameter >= 0


def _compared_number(compared: Compared) -> float | None:
    """The constant of an ordered comparison."""
    ends = (compared.left, compared.right)
    constants = [one.value for one in ends if isinstance(one, Constant)]
    if compared.operator not in _ORDERED or len(constants) != 1:
        return None
    [value] = constants
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else None


def _number(term: TermStep) -> float:
    assert isinstance(term, QueryTerm | CorrelationTerm | ConstraintTerm | ReadingTerm)
    if term.compared is None:
        return float(term.parameter or 0.0)
    return _compared_number(term.compared) or 0.0


def _with_number(term: TermStep, value: float) -> TermStep:
    assert isinstance(term, QueryTerm | CorrelationTerm | ConstraintTerm | ReadingTerm)
    if term.compared is None:
        return replace(term, parameter=value)
    name = "right" if isinstance(term.compared.right, Constant) else "left"
    return replace(term, compared=replace(term.compared, **{name: Constant(value)}))


# --- the constant of a property ---


def _properties(plan: Plan, shape: PlanShape) -> Iterator[PropertyConstant]:
    sides: dict[str, set[Side]] = {}
    for side in (side for term in plan.terms for side in sides_of(term)):
        sides.setdefault(side.alias, set()).add(side)
    for alias, own in sides.items():
        constraints = {side.constraints for side in own}
        is_hidden = not shape.mixed and _is_hidden(plan, alias)
        if len(constraints) > 1 or not (is_hidden or _is_bound(shape, plan, alias)):
            continue
        for place, one in enumerate(constraints.pop()):
            if one.operator == "=" or (one.operator in _ORDERED and _is_finite(one.value)):
                yield PropertyConstant(alias, place)


def _is_finite(value: str | float) -> bool:
    return not isinstance(value, str) and math.isfinite(value)


def _is_bound(shape: PlanShape, plan: Plan, alias: str) -> bool:
    """Whether every match binds the alias."""
    return all(
        any(alias == side.alias for term in one.terms for side in _ends(plan.terms[term]))
        for one in shape.combinations
    )


def _is_hidden(plan: Plan, alias: str) -> bool:
    """Whether only NOT clauses mention the alias, always in a term of its own."""
    for number, term in enumerate(plan.terms):
        if any(alias == side.alias for side in sides_of(term)):
            clauses = [one for one in plan.clauses if _mentions(one, number)]
            if not all(_is_absence(one) for one in clauses):
                return False
    return True


def _ends(term: TermStep) -> tuple[Side, Side]:
    return term.first, term.second


def _with_value(side: Side, slot: PropertyConstant, value: str | float) -> Side:
    if side.alias != slot.alias:
        return side
    constraints = list(side.constraints)
    constraints[slot.place] = replace(constraints[slot.place], value=value)
    return replace(side, constraints=tuple(constraints))


class OperatorContext(NamedTuple):
    """Everything operators of a runner are created with."""

    pull: PullData
    silence: SourceSilence | None
    sources: Mapping[str, PushSource]
    counts: SuppressionFilter | None = None
    """Which detections suppressed by `at most once per` are counted; None: all."""
    shared: SharedCache | None = None
    """The shared cache; None: not shared."""
    named: Mapping[str, NamedAtTurns] = MappingProxyType({})
    """By policy with a situation, what its detections carry for texts; changes with the texts."""


class PlanFamily:
    """Plans that differ in one slot at most, run by one operator."""

    def __init__(
        self,
        slot: Slot,
        plans: abc.Sequence[Plan],
        context: OperatorContext,
        began: int | None,
        bounds: abc.Sequence[str | float] = (),
        saved: SavedIdentities | None = None,
    ) -> None:
        """`bounds`: further constants that future members may have; `saved`: identities of the
        state to restore.

        Raises Unsupported if a compared table column has no numbers.
        """
        self.slot, self.sample = slot, plans[0]
        constants = [constant_of(plan, slot) for plan in plans]
        self.bounds = _loosest(self.sample, slot, [*constants, *bounds])
        self._choice: ValueChoice | None = None
        widest = self._widest(context.pull)
        self._members = self._empty_members()
        self.operator = PlanOperator(
            widest,
            context.pull,
            context.silence,
            context.sources,
            began,
            members=self._members,
            version=content_id(family_key(self.sample, slot).decode())[:12],
            counts=context.counts,
            shared=context.shared,
            saved=saved,
        )
        self.admit(*plans)

    def covers(self, plan: Plan) -> bool:
        """Whether the operator finds everything that this plan of the family needs."""
        constant = constant_of(plan, self.slot)
        return _loosest(plan, self.slot, [*self.bounds, constant]) == self.bounds

    def admit(self, *plans: Plan) -> None:
        """Adds members, which must have seen what the operator has, as far as it matters."""
        self._members.add(*map(self._member, plans))

    def leave(self, policy: str) -> None:
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
        """The least restrictive plan."""
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
    """The constant as compared with needs: larger ones are less restrictive."""
    if isinstance(slot, IdenticalPlans):
        return 0.0
    number = float(constant)
    if isinstance(slot, TermConstant) and plan.terms[slot.term].function:
        return number * number
    return -number if comparison(plan, slot) in _LARGER else number


def _loosest(plan: Plan, slot: Slot, constants: abc.Sequence[str | float]) -> list[str | float]:
    """The constants that the operator must know: the least restrictive one, or all."""
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
