"""A plan with other sides, or without what makes it one policy's. [PO-13]"""

from __future__ import annotations

import msgspec

from rapport.policy.plan import Plan
from rapport.policy.runners.operators.term_sides import Change, sides_of, with_changed_sides

__all__ = ["replace", "sides_of", "unnamed", "with_sides"]

replace = msgspec.structs.replace


def with_sides(plan: Plan, change: Change) -> Plan:
    """The plan with every side changed."""
    return replace(plan, terms=tuple(with_changed_sides(term, change) for term in plan.terms))


def unnamed(plan: Plan) -> Plan:
    """The plan without its name and actions, which no operator looks at."""
    return replace(plan, policy="", actions=(), deliveries=())
