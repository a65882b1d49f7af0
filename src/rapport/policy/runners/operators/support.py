"""Which plans the operators can execute, and why not the others. [PO-6]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.core.errors import RapportError
from rapport.policy import measures, relations
from rapport.policy.plan import (
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    Measure,
    Plan,
    Sequence,
    SilentTerm,
    StateTerm,
    state_atoms,
)
from rapport.policy.runners.operators.shapes import plan_shape


def check_supported(plan: Plan) -> list[str]:
    """The reasons why the plan cannot be executed, as sentences; empty when it can."""
    reasons = [*_bad_sequences(plan), *_bad_terms(plan)]
    if any(window <= 0 for window in _windows(plan)):
        reasons.append("the window is not longer than nothing")
    if plan.once_per_ms is not None and plan.once_per_ms <= 0:
        reasons.append("'at most once per' is not longer than nothing")
    try:
        plan_shape(plan)
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


def _bad_terms(plan: Plan) -> Iterator[str]:
    for term in plan.terms:
        if isinstance(term, LastingTerm | SilentTerm) and term.duration_ms <= 0:
            yield "a duration is not longer than nothing"
        if isinstance(term, LastingTerm):
            for atom in state_atoms(term.state):
                yield from _bad_functions(atom.term)
        elif not isinstance(term, SilentTerm):
            yield from _bad_functions(term)
        for side in (term.first, term.second):
            for constraint in side.constraints:
                if side.stream is not None and constraint.attribute == side.attribute:
                    yield (
                        f"{side.alias} is constrained by {side.attribute!r}, which events bring; "
                        "only attributes of tables can be constrained"
                    )


def _bad_functions(term: StateTerm) -> Iterator[str]:
    """Relationships and measures that nobody knows."""
    try:
        if term.compared is None:
            relations.get(term.function)
            return
        for operand in (term.compared.left, term.compared.right):
            if isinstance(operand, Measure):
                measures.get(operand.function)
    except RapportError as error:
        yield error.message


def _windows(plan: Plan) -> Iterator[int]:
    yield plan.window_ms
    for clause in plan.clauses:
        sequences = [child for child in clause.children if isinstance(child, Sequence)]
        own = [clause.window_ms, *(child.window_ms for child in sequences)]
        yield from (window for window in own if window is not None)
    for term in plan.terms:
        if isinstance(term, CorrelationTerm) and term.window_ms is not None:
            yield term.window_ms
