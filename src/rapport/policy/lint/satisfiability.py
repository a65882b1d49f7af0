"""Policies that can never fire, unused aliases and contradicting properties, by the conditions
alone. [PO-12]

A clause needs one of its children; a child needs the terms that must occur in it. A term that never
occurs is *dead*; a policy with a clause of only dead children never fires. A term is dead only if
no readings and tables can make it occur.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, product
from typing import NamedTuple, TypeVar

from rapport.policy import measures
from rapport.policy.compiler.plan_text import predicate_text
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.tree import (
    MIRRORED_OPERATORS,
    NEGATED_OPERATORS,
    Action,
    Operator,
    PolicyTree,
    SourceSpan,
)
from rapport.policy.operators.columns import OPERATIONS
from rapport.policy.plan import (
    Absent,
    Child,
    Compared,
    Constant,
    Constraint,
    ConstraintTerm,
    LastingTerm,
    Measure,
    Operand,
    Plan,
    Positive,
    QueryTerm,
    ReadingTerm,
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

_BOOLEANS = ("true", "false")
Value = tuple[str, str]
"""An attribute of an alias."""
Dead = Mapping[int, str]
"""Terms that never occur, by number, with the reason as a sentence."""
MOST_WAYS = 256
"""Combinations of atoms examined; with more a condition counts as possible."""
Atom = TypeVar("Atom")
Constraints = Mapping[str, tuple[Constraint, ...]]


class Requirement(NamedTuple):
    """A comparison with a constant that a value must satisfy."""

    operator: Operator
    value: str | float


def negation_of(required: Requirement) -> Requirement:
    """The requirement that holds for a present value when the given one does not."""
    return Requirement(NEGATED_OPERATORS[required.operator], required.value)


def compatible(requirements: Iterable[Requirement]) -> bool:
    """False when no value satisfies all of them.

    Numbers count as reals, so no possible value is ruled out.
    """
    found = list(requirements)
    numbers = [one for one in found if not isinstance(one.value, str)]
    texts = [one for one in found if isinstance(one.value, str)]
    return _some_number(numbers) and _some_text(texts)


def can_coincide(first: Sequence[Constraint], second: Sequence[Constraint]) -> bool:
    """False when no instance can satisfy both lists."""
    together = (*first, *second)
    return all(
        compatible(Requirement(each.operator, each.value) for each in (one, other))
        for one, other in combinations(together, 2)
        if one.attribute == other.attribute
    )


def _some_number(requirements: list[Requirement]) -> bool:
    values = [(one.operator, float(one.value)) for one in requirements]
    exact = [value for operator, value in values if operator == "="]
    if exact:
        return all(OPERATIONS[operator](exact[0], value) for operator, value in values)
    least = max((value for operator, value in values if operator in (">", ">=")), default=-math.inf)
    most = min((value for operator, value in values if operator in ("<", "<=")), default=math.inf)
    if least != most:
        return least < most
    return all(OPERATIONS[operator](least, value) for operator, value in values)


def _some_text(requirements: list[Requirement]) -> bool:
    wanted = {_plain(one.value) for one in requirements if one.operator == "="}
    unwanted = {_plain(one.value) for one in requirements if one.operator == "!="}
    return len(wanted) <= 1 and not wanted & unwanted


def _plain(value: str | float) -> str:
    """Booleans may be written as texts in any case."""
    text = str(value)
    return text.lower() if text.lower() in _BOOLEANS else text


def comparisons_of(plan: Plan) -> dict[tuple[str, str], list[Requirement]]:
    """The requirements of every match on an attribute of a concept; only for concepts with
    one alias.
    """
    aliases: dict[str, set[str]] = defaultdict(set)
    for side in plan.sides():
        aliases[side.concept].add(side.alias)
    found: dict[tuple[str, str], list[Requirement]] = defaultdict(list)
    for kind in (ReadingTerm, ConstraintTerm):
        for (_alias, attribute), terms in single_comparisons(plan, kind).items():
            concept = terms[0].first.concept
            if len(aliases[concept]) == 1:
                wanted = [one for term in terms if (one := required_by(term.compared))]
                found[concept, attribute] += wanted
    return found


def single_comparisons(
    plan: Plan, kind: type[ReadingTerm | ConstraintTerm]
) -> dict[Value, list[ReadingTerm | ConstraintTerm]]:
    """The terms of one kind that every match has and that compare one value with a constant."""
    found: dict[Value, list[ReadingTerm | ConstraintTerm]] = defaultdict(list)
    for clause in plan.clauses:
        (child, *more) = clause.children
        if more or not isinstance(child, Positive):
            continue
        term = plan.terms[child.term]
        if isinstance(term, ReadingTerm | ConstraintTerm) and isinstance(term, kind):
            for value, _required in values_of(term):
                found[value].append(term)
    return dict(found)


def required_by(compared: Compared | None) -> Requirement | None:
    """The requirement of a comparison of one value with a constant."""
    if compared is None:
        return None
    return next(
        (one for operand, one in operands_of(compared) if isinstance(operand, SideValue)), None
    )


def values_of(term: StateTerm) -> Iterator[tuple[Value, Requirement]]:
    """The values that a term compares with a constant, with the requirements."""
    if term.compared is None:
        return
    sides: tuple[Side, Side] = (term.first, term.second)
    for operand, required in operands_of(term.compared):
        if isinstance(operand, SideValue):
            yield (sides[operand.side].alias, operand.attribute), required


def operands_of(compared: Compared) -> Iterator[tuple[Operand, Requirement]]:
    """The operands that are compared with a constant, with the requirements."""
    if isinstance(compared.right, Constant):
        yield compared.left, Requirement(compared.operator, compared.right.value)
    if isinstance(compared.left, Constant):
        yield (
            compared.right,
            Requirement(MIRRORED_OPERATORS[compared.operator], compared.left.value),
        )


class LintReason(NamedTuple):
    """A reason and the aliases it concerns."""

    aliases: tuple[str, ...]
    reason: str


def never_fires(plan: Plan, dead: Dead | None = None) -> LintReason | None:
    """Why the policy can never fire; None when it might.

    `dead`: terms that never occur for other reasons, such as the tables.
    """
    known = {**dead_terms(plan), **(dead or {})}
    for clause in plan.clauses:
        needed = [known.keys() & needs(child) for child in clause.children]
        if all(needed):
            number = min(needed[0])
            return LintReason(_aliases(plan.terms[number]), known[number])
    return _excluding_facts(plan) or _self_refuting(plan)


def dead_terms(plan: Plan) -> dict[int, str]:
    """Terms that no readings and tables can make occur."""
    found = ((number, _why_dead(term)) for number, term in enumerate(plan.terms))
    return {number: why for number, why in found if why}


def needs(child: Child) -> frozenset[int]:
    """The terms that must occur for the child to hold."""
    return frozenset(number for number, negated in signed_terms(child) if not negated)


def excluding_readings(plan: Plan) -> list[LintReason]:
    """Conditions that hold together only for two different readings of one instance."""
    found = []
    for value, terms in single_comparisons(plan, ReadingTerm).items():
        requirements = [required for term in terms if (required := required_by(term.compared))]
        if not compatible(requirements):
            reason = (
                f"no reading satisfies all conditions on {value[1]} of {value[0]}; "
                "only two different ones in the window can"
            )
            found.append(LintReason((value[0],), reason))
    return found


def _why_dead(term: TermStep) -> str:
    for side in (term.first, term.second):
        if not can_coincide(side.constraints, ()):
            return f"no {side.concept} can have all properties of {side.alias}"
    if isinstance(term, LastingTerm):
        return "" if _can_be_true(term.state) else "what must last never is true"
    if isinstance(term, SilentTerm):
        return ""
    return _why_never_holds(term)


def _why_never_holds(term: StateTerm) -> str:
    """A distance is never negative."""
    measured = term.compared and _measured(term.compared)
    if not measured or compatible((*measured, Requirement(">=", 0.0))):
        return ""
    return f"a distance is never negative, so '{predicate_text(term)}' never holds"


def _measured(compared: Compared) -> tuple[Requirement, ...]:
    """The requirement of a constant on a distance."""
    for operand, required in operands_of(compared):
        if isinstance(operand, Measure) and measures.get(operand.function).shape == "distance":
            return (required,)
    return ()


# --- states ---


def _can_be_true(state: StateExpression) -> bool:
    """False when no last readings make it true."""
    return any(_is_possible(way) for way in _ways(state))


def _ways(state: StateExpression) -> list[tuple[StateAtom, ...]]:
    """The sets of atoms, one of which must be all true; one empty set for too many."""
    if isinstance(state, StateAtom):
        return [(state,)]
    parts = [_ways(part) for part in state.parts]
    if isinstance(state, StateAll):
        return joined_ways(parts)
    ways = list(chain.from_iterable(parts))
    return ways if len(ways) <= MOST_WAYS else [()]


def joined_ways(parts: Sequence[Sequence[tuple[Atom, ...]]]) -> list[tuple[Atom, ...]]:
    """Every choice of one way per part, as one set; one empty set for too many."""
    if math.prod(map(len, parts)) > MOST_WAYS:
        return [()]
    return [tuple(chain.from_iterable(choice)) for choice in product(*parts)]


def _is_possible(atoms: Iterable[StateAtom]) -> bool:
    """False when the atoms require an impossible value. An atom under NOT is true only when its
    value is present, and then the negated requirement holds.
    """
    values: dict[Value, list[Requirement]] = defaultdict(list)
    for atom in atoms:
        for value, required in values_of(atom.term):
            values[value].append(negation_of(required) if atom.negated else required)
        if not atom.negated and _why_never_holds(atom.term):
            return False
    return all(compatible(requirements) for requirements in values.values())


# --- clauses together ---


def _excluding_facts(plan: Plan) -> LintReason | None:
    """Contradicting requirements on a table value."""
    for value, terms in single_comparisons(plan, ConstraintTerm).items():
        requirements = [required for term in terms if (required := required_by(term.compared))]
        side = terms[0].first
        own = [
            Requirement(one.operator, one.value)
            for one in side.constraints
            if one.attribute == value[1]
        ]
        if not compatible((*requirements, *own)):
            reason = f"no {side.concept} satisfies all conditions on {value[1]} of {value[0]}"
            return LintReason((value[0],), reason)
    return None


def _self_refuting(plan: Plan) -> LintReason | None:
    """A NOT of the only term that can begin a match: the same reading refutes it."""
    needed = {
        child.term if isinstance(child, Positive) and len(clause.children) == 1 else -1
        for clause in plan.clauses
        for child in clause.children
        if not isinstance(child, Absent)
    }
    absent = {
        child.term
        for clause in plan.clauses
        for child in clause.children
        if len(clause.children) == 1 and isinstance(child, Absent)
    }
    (only,) = needed if len(needed) == 1 else (-1,)
    if only in absent and isinstance(plan.terms[only], ReadingTerm | QueryTerm):
        term = plan.terms[only]
        reason = f"'{predicate_text(term)}' must hold and must not, by one and the same reading"
        return LintReason(_aliases(term), reason)
    return None


def _aliases(term: TermStep) -> tuple[str, ...]:
    return tuple(dict.fromkeys((term.first.alias, term.second.alias)))


def lint_satisfiable(tree: PolicyTree, plan: Plan, faults: Diagnostics) -> None:
    """Warns about a policy that no readings and tables can make fire, and about lines that exclude
    each other in one reading.
    """
    why = never_fires(plan)
    if why is not None and not _is_reported(plan, why):
        faults.warn(
            "policy.never_fires",
            f"the policy never fires: {why.reason}",
            place_of_alias(tree, why.aliases[0]),
            hint="two lines are joined by AND; write OR between them if either is enough",
        )
    for meant in excluding_readings(plan):
        faults.warn(
            "policy.excluding_readings",
            meant.reason,
            place_of_alias(tree, meant.aliases[0]),
            hint="write OR between them if either is enough",
        )


def place_of_alias(tree: PolicyTree, alias: str) -> SourceSpan | None:
    return next((one.place for one in tree.concepts if one.alias == alias), None)


def _is_reported(plan: Plan, why: LintReason) -> bool:
    """Whether the reason is contradicting properties, which have a warning already."""
    return any(
        side.alias in why.aliases and not can_coincide(side.constraints, ())
        for side in plan.sides()
    )


def lint_aliases(
    tree: PolicyTree, constraints: Constraints, used: frozenset[str], faults: Diagnostics
) -> None:
    """Reports unused aliases, aliases that can coincide, contradicting properties, and repeated
    actions.

    `used`: the aliases that conditions name.
    """
    _unused(tree, used, faults)
    _contradictions(tree, constraints, faults)
    _coincidences(tree, constraints, used, faults)
    _pointless_distinct(tree, faults)
    lint_repeated_actions(tree.actions, faults)


def _unused(tree: PolicyTree, used: frozenset[str], faults: Diagnostics) -> None:
    for concept in tree.concepts:
        if concept.alias not in used:
            faults.warn(
                "policy.unused_alias",
                f"no condition speaks of {concept.alias!r}",
                concept.alias_place,
                hint="leave it out",
            )


def _contradictions(tree: PolicyTree, constraints: Constraints, faults: Diagnostics) -> None:
    for concept in tree.concepts:
        if not can_coincide(constraints.get(concept.alias, ()), ()):
            faults.warn(
                "policy.never_satisfied",
                f"no {concept.concept} can have all properties of {concept.alias!r}",
                concept.place,
                hint="properties of one alias must all hold; use OR of two aliases instead",
            )


def _coincidences(
    tree: PolicyTree, constraints: Constraints, used: frozenset[str], faults: Diagnostics
) -> None:
    named = [concept for concept in tree.concepts if concept.alias in used]
    apart = {frozenset(pair) for pair in tree.distinct}
    for one, other in combinations(named, 2):
        if one.concept != other.concept or frozenset((one.alias, other.alias)) in apart:
            continue
        if can_coincide(constraints.get(one.alias, ()), constraints.get(other.alias, ())):
            faults.add(
                "policy.can_coincide",
                f"{one.alias!r} and {other.alias!r} can be the same {one.concept}",
                other.alias_place,
                hint=f"add the line 'distinct {one.alias}, {other.alias}' if that is not meant",
                severity="hint",
            )


def _pointless_distinct(tree: PolicyTree, faults: Diagnostics) -> None:
    concepts = {concept.alias: concept for concept in tree.concepts}
    for first, second in tree.distinct:
        if concepts[first].concept != concepts[second].concept:
            faults.add(
                "policy.pointless_distinct",
                f"{first!r} and {second!r} are of different concepts and never the same",
                concepts[second].alias_place,
                hint=f"leave 'distinct {first}, {second}' out",
                severity="hint",
            )


def lint_repeated_actions(actions: Iterable[Action], faults: Diagnostics) -> None:
    """Warns about actions that stand twice."""
    seen: set[str] = set()
    for action in actions:
        if action.phrase in seen:
            faults.warn(
                "policy.repeated_action",
                f"the action {action.phrase!r} stands twice",
                action.place,
                hint="leave one out",
            )
        seen.add(action.phrase)
