"""The constants that a plan compares an attribute with: limits in its curve. Pure. [CN-5]"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.policy.language.tree import MIRRORED_OPERATORS
from rapport.policy.plan import Constant, Plan, SideValue, TermStep, state_terms
from rapport.policy.situation_plan import (
    ComparedValues,
    FixedValue,
    PresentValue,
    SituationPlan,
    plan_nodes,
)

Limit = tuple[str, str, str, str | float]
"""Concept, attribute, operator and constant."""


class PolicyLimit(msgspec.Struct, frozen=True, kw_only=True):
    """`policy` holds while the attribute is `operator` `value`, in canonical units."""

    policy: str
    operator: str
    value: float


def limits_of(plan: Plan | SituationPlan, concept: str, attribute: str) -> list[PolicyLimit]:
    """The limits of one attribute, each once, in the order of the plan."""
    if isinstance(plan, SituationPlan):
        limits = _of_situation(plan)
    else:
        limits = (limit for term in plan.terms for limit in _of_term(term))
    found = [
        PolicyLimit(policy=plan.policy, operator=operator, value=float(value))
        for *of, operator, value in limits
        if of == [concept, attribute] and not isinstance(value, str)
    ]
    return list(dict.fromkeys(found))


def _of_situation(plan: SituationPlan) -> Iterator[Limit]:
    for node in plan_nodes(plan):
        if isinstance(node, ComparedValues):
            left, right, operator = node.left, node.right, node.operator
            if isinstance(left, FixedValue):
                left, right, operator = right, left, MIRRORED_OPERATORS[operator]
            if isinstance(left, PresentValue) and isinstance(right, FixedValue):
                yield left.concept, left.attribute, operator, right.value


def _of_term(term: TermStep) -> Iterator[Limit]:
    for side in dict.fromkeys((term.first, term.second)):
        for one in side.constraints:
            yield side.concept, one.attribute, one.operator, one.value
    for state in state_terms(term):
        if state.compared is None:
            continue
        left, right, operator = state.compared.left, state.compared.right, state.compared.operator
        if isinstance(left, Constant):
            left, right, operator = right, left, MIRRORED_OPERATORS[operator]
        if isinstance(left, SideValue) and isinstance(right, Constant):
            side = (state.first, state.second)[left.side]
            yield side.concept, left.attribute, operator, right.value
