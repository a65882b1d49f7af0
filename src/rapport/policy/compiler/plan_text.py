"""Prints a plan for people, in a stable form. [PO-5]"""

from __future__ import annotations

from rapport.core.times import format_duration
from rapport.policy.compiler.situation_text import action_lines, condition_lines, situation_text
from rapport.policy.language.printer import constraints_text, print_value, within_text
from rapport.policy.plan import (
    Child,
    Clause,
    Compared,
    Constant,
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    LookedUp,
    Measure,
    Operand,
    Plan,
    PolicyPlan,
    QueryTerm,
    ReadingTerm,
    Sequence,
    Side,
    SideValue,
    SilentTerm,
    StateAll,
    StateAtom,
    StateExpression,
    StateTerm,
    TermStep,
    signed_terms,
)
from rapport.policy.situation_plan import SituationPlan


def plan_text(plan: PolicyPlan) -> str:
    """The plan as lines: options, terms and clauses, or the conditions of a situation; actions."""
    if isinstance(plan, SituationPlan):
        return situation_text(plan)
    lines = [f"policy {plan.policy}", *option_lines(plan)]
    lines += ["terms", *(f"  {number} {_term(term)}" for number, term in enumerate(plan.terms))]
    lines += ["clauses", *(f"  {clause_text(clause)}" for clause in plan.clauses)]
    if plan.guard is not None:
        lines += ["while", *condition_lines(plan.guard)]
    return "\n".join([*lines, "actions", *action_lines(plan.actions, plan.deliveries)])


def option_lines(plan: Plan) -> list[str]:
    """The options of the whole policy: window, consumption and others."""
    lines = [f"window {format_duration(plan.window_ms)}", f"consume {plan.consumption}"]
    lines += [f"distinct {first}, {second}" for first, second in plan.distinct]
    lines += [f"when unsure {plan.when_unsure}"] if plan.when_unsure != "hold" else []
    if plan.once_per_ms is not None:
        lines.append(f"at most once per {format_duration(plan.once_per_ms)}")
    return lines


def kind_of(term: TermStep) -> str:
    """The kind of a term in one word."""
    match term:
        case QueryTerm():
            return "query"
        case CorrelationTerm():
            return "correlation"
        case ConstraintTerm():
            return "constraint"
        case ReadingTerm():
            return "reading"
        case LastingTerm():
            return f"lasting {format_duration(term.duration_ms)}"
        case SilentTerm():
            return f"silent {format_duration(term.duration_ms)}"


def predicate_text(term: TermStep) -> str:
    """The predicate of a term: `inside(position of A, area of R)`, `wind of S > 30`."""
    match term:
        case LastingTerm():
            return _state(term.state)
        case SilentTerm():
            return f"{', '.join(term.streams)} of {term.first.alias}"
        case _:
            return _holds(term)


def sides_of(term: TermStep) -> tuple[Side, ...]:
    """The sides of a term; equal ones once."""
    return tuple(dict.fromkeys((term.first, term.second)))


def side_text(side: Side) -> str:
    """`A: person.position from events where status='guest'`."""
    constraints = constraints_text(side.constraints)
    shown = f"{side.alias}: {side.concept}.{side.attribute}"
    shown += " from events" if side.stream is not None else " from tables"
    return f"{shown} where {constraints}" if constraints else shown


def clause_text(clause: Clause) -> str:
    """`0 or not 1 within 10s`, with numbers of terms."""
    return " or ".join(map(_child, clause.children)) + within_text(clause.window_ms)


def _term(term: TermStep) -> str:
    sides = ", ".join(map(side_text, sides_of(term)))
    if isinstance(term, LastingTerm | SilentTerm) or term.compared is not None:
        return f"{kind_of(term)} {predicate_text(term)} [{sides}]{_window(term)}"
    parameter = "" if term.parameter is None else f", {print_value(term.parameter)}"
    return f"{kind_of(term)} {term.function}({sides}{parameter}){_window(term)}"


def _window(term: TermStep) -> str:
    return within_text(term.window_ms) if isinstance(term, CorrelationTerm) else ""


def _holds(term: StateTerm) -> str:
    if term.compared is not None:
        return _compared(term.compared, term)
    ends = [f"{side.attribute} of {side.alias}" for side in (term.first, term.second)]
    ends += [] if term.parameter is None else [print_value(term.parameter)]
    return f"{term.function}({', '.join(ends)})"


def _compared(compared: Compared, term: StateTerm) -> str:
    left, right = (_operand(each, term) for each in (compared.left, compared.right))
    return f"{left} {compared.operator} {right}"


def _operand(operand: Operand, term: StateTerm) -> str:
    match operand:
        case Constant(value):
            return print_value(value)
        case SideValue(side, attribute):
            return f"{attribute} of {(term.first, term.second)[side].alias}"
        case Measure(function, of) | LookedUp(function, of):
            return f"{function}({', '.join(_operand(each, term) for each in of)})"


def _state(state: StateExpression) -> str:
    if isinstance(state, StateAtom):
        return f"{'not ' * state.negated}{_holds(state.term)}"
    joined = " and " if isinstance(state, StateAll) else " or "
    return joined.join(_inner(part) for part in state.parts)


def _inner(state: StateExpression) -> str:
    text = _state(state)
    return text if isinstance(state, StateAtom) else f"({text})"


def _child(child: Child) -> str:
    terms = [f"{'not ' * negated}{number}" for number, negated in signed_terms(child)]
    if not isinstance(child, Sequence):
        return terms[0]
    return f"({' then '.join(terms)}{within_text(child.window_ms)})"
