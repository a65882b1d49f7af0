"""Where plans may differ and still be executed as one: the constant of a term, or of a property.
[PO-13]

Only where that is exact. The match must be the same thing for every member, so that a number (the
need) says for whom it counts: the constant stands in a term that every match has, or that only
counterexamples have. A positive correlation uses events up according to its constant, and a
sequence or a mixed clause takes the first that fits: they run on their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

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
    state_atoms,
)
from rapport.policy.runners.operators.predicate import is_built_in
from rapport.policy.runners.operators.shapes import PlanShape, plan_shape
from rapport.policy.runners.sharing.sides import replace, sides_of, unnamed, with_sides

_ORDERED = ("<", "<=", ">", ">=")
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WITHIN = "within"


class IdenticalPlans(msgspec.Struct, frozen=True, tag="alike"):
    """The plans differ in nothing but their names and actions."""


class TermConstant(msgspec.Struct, frozen=True, tag="term"):
    """They differ in the parameter, or the constant compared with, of one term."""

    term: int


class PropertyConstant(msgspec.Struct, frozen=True, tag="property"):
    """They differ in the value of one constraint of an alias."""

    alias: str
    place: int


Slot = IdenticalPlans | TermConstant | PropertyConstant
ANYWHERE = IdenticalPlans()


def slots_of(plan: Plan) -> tuple[Slot, ...]:
    """Where others may differ from this plan and still be executed with it.

    None for plans with functions of the site: whatever these do concerns one policy.
    """
    if not all(is_built_in(term) for term in _state_terms(plan)):
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
    """What stands in the slot."""
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
    """How a number is compared with the constant, the constant on the right; `=` for a value."""
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
    """A side of the alias; all of them ask the same of its instance."""
    return next(side for term in plan.terms for side in sides_of(term) if side.alias == alias)


def _state_terms(plan: Plan) -> Iterator[StateTerm]:
    for term in plan.terms:
        if isinstance(term, LastingTerm):
            yield from (atom.term for atom in state_atoms(term.state))
        elif not isinstance(term, SilentTerm):
            yield term


# --- the constant of a term ---


def _fits_term(plan: Plan, number: int) -> bool:
    term = plan.terms[number]
    if isinstance(term, LastingTerm | SilentTerm) or not _has_number(term):
        return False
    around = [one for one in plan.clauses if _mentions(one, number)]
    if all(one.children == (Positive(number),) for one in around):
        return bool(around) and not isinstance(term, CorrelationTerm)
    return all(_is_absence(one) and Absent(number) in one.children for one in around) and not any(
        number in (child.first, child.second)
        for one in around
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
    """The constant that an ordered comparison compares something else with."""
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
    """Whether every match has an identity for the alias."""
    return all(
        any(alias == side.alias for term in one.terms for side in _ends(plan.terms[term]))
        for one in shape.combinations
    )


def _is_hidden(plan: Plan, alias: str) -> bool:
    """Whether only clauses of absence mention the alias, each time as a term of its own."""
    for number, term in enumerate(plan.terms):
        if any(alias == side.alias for side in sides_of(term)):
            around = [one for one in plan.clauses if _mentions(one, number)]
            if not all(_is_absence(one) for one in around):
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
