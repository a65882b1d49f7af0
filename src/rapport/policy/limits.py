"""The constants that a plan compares an attribute with: limits in its curve. Pure. [CN-5]"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.policy.plan import (
    Compared,
    Constant,
    LastingTerm,
    Plan,
    Side,
    SideValue,
    StateAtom,
    StateExpression,
    StateTerm,
    TermStep,
)
from rapport.policy.situation_plan import (
    ComparedValues,
    FixedValue,
    PresentValue,
    SituationPlan,
    plan_nodes,
)


class PolicyLimit(msgspec.Struct, frozen=True, kw_only=True):
    """`policy` holds while the attribute is `operator` `value`, in canonical units."""

    policy: str
    operator: str
    value: float


def limits_of(plan: Plan | SituationPlan, concept: str, attribute: str) -> list[PolicyLimit]:
    """The limits of one attribute, each once, in the order of the plan."""
    if isinstance(plan, SituationPlan):
        return _of_situation(plan, concept, attribute)
    found = [
        PolicyLimit(policy=plan.policy, operator=operator, value=value)
        for term in plan.terms
        for side, name, operator, value in _of_term(term)
        if side.concept == concept and name == attribute
    ]
    return list(dict.fromkeys(found))


def _of_situation(plan: SituationPlan, concept: str, attribute: str) -> list[PolicyLimit]:
    found: list[PolicyLimit] = []
    for node in plan_nodes(plan):
        if not isinstance(node, ComparedValues):
            continue
        left, right, operator = node.left, node.right, str(node.operator)
        if isinstance(left, FixedValue):
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        if not isinstance(left, PresentValue) or not isinstance(right, FixedValue):
            continue
        if (left.concept, left.attribute) == (concept, attribute) and not isinstance(
            right.value, str
        ):
            limit = PolicyLimit(policy=plan.policy, operator=operator, value=float(right.value))
            found.append(limit)
    return list(dict.fromkeys(found))


Comparison = tuple[Side, str, str, float]
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _of_term(term: TermStep | StateTerm) -> Iterator[Comparison]:
    if isinstance(term, LastingTerm):
        for one in _terms_of(term.state):
            yield from _of_term(one)
        return
    sides = (term.first, term.second)
    for side in dict.fromkeys(sides):
        for constraint in side.constraints:
            if isinstance(constraint.value, int | float):
                yield side, constraint.attribute, constraint.operator, float(constraint.value)
    compared = getattr(term, "compared", None)
    if isinstance(compared, Compared):
        yield from _of_comparison(compared, sides)


def _of_comparison(compared: Compared, sides: tuple[Side, Side]) -> Iterator[Comparison]:
    left, right, operator = compared.left, compared.right, str(compared.operator)
    if isinstance(left, Constant):
        left, right, operator = right, left, _MIRRORED.get(operator, operator)
    if not isinstance(left, SideValue) or not isinstance(right, Constant):
        return
    if isinstance(right.value, int | float):
        yield sides[left.side], left.attribute, operator, float(right.value)


def _terms_of(state: StateExpression) -> Iterator[StateTerm]:
    if isinstance(state, StateAtom):
        yield state.term
        return
    for part in state.parts:
        yield from _terms_of(part)
