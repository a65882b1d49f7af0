"""Lint of policies with `conditions` that probably mean a situation, with that situation written
out. [SI-13]

Conditions are about instants: two lines meet if their instants are less than the window apart, also
where a line lasts or is a silence, and two comparisons of one attribute may be satisfied by two
readings.
"""

from __future__ import annotations

from rapport.core.times import format_duration
from rapport.policy.compiler.normal_form import atoms_of_expression
from rapport.policy.compiler.scope import aliases_of
from rapport.policy.language import situation_tree as written
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.situation_printer import print_situation_condition
from rapport.policy.language.tree import (
    And,
    AttributeOf,
    Comparison,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    PolicyTree,
    SilenceCondition,
    SourceSpan,
    Term,
    Within,
    negate,
)
from rapport.policy.lint.satisfiability import excluding_readings
from rapport.policy.plan import (
    Clause,
    ConstraintTerm,
    LastingTerm,
    Plan,
    Positive,
    ReadingTerm,
    SilentTerm,
)

_LONGEST = 400
"""A longer situation is not written out."""


def lint_meant_situation(tree: PolicyTree, plan: Plan, faults: Diagnostics) -> None:
    """Adds a hint where states are meant by lines about instants; one per policy."""
    window = format_duration(plan.window_ms)
    lasting = _lasting_beside_others(tree, plan)
    if lasting is not None:
        faults.add(
            "policy.meant_as_situation",
            f"this line and the others must come true within {window} of each other",
            lasting,
            hint=_hint(tree, "if they only have to be true together"),
            severity="hint",
        )
        return
    twice = _read_twice(tree, plan)
    if twice is not None and not excluding_readings(plan):
        faults.add(
            "policy.meant_as_situation",
            f"two readings within {window} may satisfy these lines, one each",
            twice,
            hint=_hint(tree, "if one value has to satisfy both"),
            severity="hint",
        )


def _lasting_beside_others(tree: PolicyTree, plan: Plan) -> SourceSpan | None:
    """The first `for` or silence among several lines that must meet within the window."""
    meeting = [clause for clause in plan.clauses if _occurs(clause, plan)]
    lasting = [clause for clause in meeting if _has_duration(clause, plan)]
    if len(meeting) < 2 or not lasting:
        return None
    for line in _lines(tree):
        for atom in atoms_of_expression(line):
            if isinstance(atom, DurationCondition | SilenceCondition):
                return atom.place
    return None


def _occurs(clause: Clause, plan: Plan) -> bool:
    """Whether the clause is of occurrences alone, which must be near those of others in time."""
    return all(
        isinstance(child, Positive) and not isinstance(plan.terms[child.term], ConstraintTerm)
        for child in clause.children
    )


def _has_duration(clause: Clause, plan: Plan) -> bool:
    terms = [plan.terms[child.term] for child in clause.children if isinstance(child, Positive)]
    return any(isinstance(term, LastingTerm | SilentTerm) for term in terms)


def _read_twice(tree: PolicyTree, plan: Plan) -> SourceSpan | None:
    """The second comparison of an attribute in a line of its own."""
    seen: set[tuple[str, str]] = set()
    for clause in plan.clauses:
        terms = [plan.terms[child.term] for child in clause.children if isinstance(child, Positive)]
        if len(terms) != 1 or len(clause.children) != 1 or not isinstance(terms[0], ReadingTerm):
            continue
        side = terms[0].first
        if (side.alias, side.attribute) in seen:
            return _second_place(tree, side.alias, side.attribute)
        seen.add((side.alias, side.attribute))
    return None


def _second_place(tree: PolicyTree, alias: str, attribute: str) -> SourceSpan | None:
    places = [
        atom.place
        for line in _lines(tree)
        for atom in atoms_of_expression(line)
        if isinstance(atom, Comparison)
        and any(
            isinstance(end, AttributeOf) and (end.alias, end.attribute) == (alias, attribute)
            for end in (atom.left, atom.right)
        )
    ]
    return places[1] if len(places) > 1 else next(iter(places), None)


def _lines(tree: PolicyTree) -> tuple[Expression, ...]:
    return tree.condition.parts if isinstance(tree.condition, And) else (tree.condition,)


def _hint(tree: PolicyTree, when: str) -> str:
    meant = situation_of(tree)
    text = "" if meant is None else print_situation_condition(meant)
    if not text or len(text) > _LONGEST:
        return f"{when}, write a 'situation' instead of 'conditions'"
    return f"{when}, write instead of 'conditions': situation {text}"


def situation_of(tree: PolicyTree) -> written.Condition | None:
    """The conditions as a situation; None for what has no such form.

    Aliases that only absence mentions become those of `no`.
    """
    bound = {alias for line in _lines(tree) for alias in _bound(line)}
    parts = [_state(line, bound, tree) for line in _lines(tree)]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return known[0] if len(known) == 1 else written.AndOf(tuple(known))


def _bound(line: Expression) -> set[str]:
    """The aliases that occur without NOT."""
    return {
        alias
        for atom in atoms_of_expression(line)
        if not getattr(atom, "negated", False)
        for alias in aliases_of(atom)
    }


def _state(line: Expression, bound: set[str], tree: PolicyTree) -> written.Condition | None:
    """One line; absence of an unbound alias as `no CONCEPT B with (...)`."""
    absent = [alias for alias in aliases_of(line) if alias not in bound]
    if not absent:
        return _converted(line)
    opposite = negate(line) if len(absent) == 1 else None
    inner = None if opposite is None else _converted(opposite)
    if inner is None:
        return None
    concept = next(one for one in tree.concepts if one.alias == absent[0])
    return written.Quantified(
        "no",
        0,
        concept.concept,
        concept.alias,
        concept.properties,
        inner,
        concept.place,
        concept.alias_place,
    )


def _converted(expression: Expression) -> written.Condition | None:
    match expression:
        case Term():
            found: written.Condition = written.RelationshipAtom(
                expression.first,
                expression.function,
                expression.second,
                expression.parameter,
                expression.place,
                expression.function_place,
                expression.first_place,
                expression.second_place,
            )
            return written.Not(found) if expression.negated else found
        case Comparison(left, operator, right):
            found = written.ValueComparison(left, operator, right, expression.place)
            return written.Not(found) if expression.negated else found
        case SilenceCondition(attribute, alias, duration_ms):
            return written.Silence(
                attribute, alias, duration_ms, expression.place, expression.alias_place
            )
        case DurationCondition(inner, duration_ms):
            state = _converted(inner)
            return None if state is None else written.Lasting(state, duration_ms, expression.place)
        case And(parts) | Or(parts):
            converted = [_converted(part) for part in parts]
            known = tuple(part for part in converted if part is not None)
            if len(known) < len(converted):
                return None
            return written.AndOf(known) if isinstance(expression, And) else written.OrOf(known)
        case FollowedBy() | Within():
            return None
