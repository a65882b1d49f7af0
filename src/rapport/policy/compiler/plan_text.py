"""A plan as people read and compare it. [PO-5]"""

from __future__ import annotations

from rapport.core.times import format_duration
from rapport.policy.language.printer import print_value
from rapport.policy.plan import (
    Absent,
    Child,
    ConstraintTerm,
    CorrelationTerm,
    Plan,
    Positive,
    QueryTerm,
    Sequence,
    Side,
    TermStep,
)


def plan_text(plan: Plan) -> str:
    """The plan as lines: window, terms with their numbers, one clause per line, actions."""
    lines = [f"policy {plan.policy}", f"window {format_duration(plan.window_ms)}"]
    lines += [f"consume {plan.consumption}"]
    lines += [f"distinct {first}, {second}" for first, second in plan.distinct]
    lines += [f"when unsure {plan.when_unsure}"] if plan.when_unsure != "hold" else []
    lines += ["terms", *(f"  {number} {_term(term)}" for number, term in enumerate(plan.terms))]
    clauses = (" or ".join(map(_child, clause.children)) for clause in plan.clauses)
    lines += ["clauses", *(f"  {clause}" for clause in clauses)]
    return "\n".join([*lines, "actions", *(f"  {action}" for action in plan.actions)])


def _term(term: TermStep) -> str:
    match term:
        case QueryTerm():
            kind = "query"
        case CorrelationTerm():
            kind = "correlation"
        case ConstraintTerm():
            kind = "constraint"
    ends = [_side(term.first), _side(term.second)]
    if term.parameter is not None:
        ends.append(print_value(term.parameter))
    return f"{kind} {term.function}({', '.join(ends)})"


def _side(side: Side) -> str:
    given = (f"{c.attribute}{c.operator}{print_value(c.value)}" for c in side.constraints)
    constraints = " ".join(given)
    shown = f"{side.alias}: {side.concept}.{side.attribute}"
    shown += " from events" if side.stream is not None else " from tables"
    return f"{shown} where {constraints}" if constraints else shown


def _child(child: Child) -> str:
    match child:
        case Positive(term):
            return str(term)
        case Absent(term):
            return f"not {term}"
        case Sequence():
            first = f"{'not ' * child.first_negated}{child.first}"
            second = f"{'not ' * child.second_negated}{child.second}"
            return f"({first} then {second})"
