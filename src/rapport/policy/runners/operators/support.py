"""Which plans the operators can execute, and why not the others. [PO-6]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.core.errors import RapportError
from rapport.policy import relations
from rapport.policy.plan import ConstraintTerm, Plan, Sequence
from rapport.policy.runners.operators.shapes import shape_of


def check_supported(plan: Plan) -> list[str]:
    """The reasons why the plan cannot be executed, as sentences; empty when it can."""
    reasons = [*_bad_sequences(plan), *_bad_sides(plan)]
    if plan.window_ms <= 0:
        reasons.append("the window is not longer than nothing")
    try:
        shape_of(plan)
    except RapportError as error:
        reasons.append(error.message)
    return reasons


def _bad_sequences(plan: Plan) -> Iterator[str]:
    for clause in plan.clauses:
        for child in clause.children:
            if isinstance(child, Sequence):
                for number in (child.first, child.second):
                    if isinstance(plan.terms[number], ConstraintTerm):
                        name = plan.terms[number].function
                        yield f"{name!r} has no event, so nothing can be followed by it"


def _bad_sides(plan: Plan) -> Iterator[str]:
    for term in plan.terms:
        try:
            relations.get(term.function)
        except RapportError as error:
            yield error.message
        for side in (term.first, term.second):
            for constraint in side.constraints:
                if side.stream is not None and constraint.attribute == side.attribute:
                    yield (
                        f"{side.alias} is constrained by {side.attribute!r}, which events bring; "
                        "only attributes of tables can be constrained"
                    )
