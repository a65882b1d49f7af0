"""Policies that never can fire, by their conditions alone. [PO-12]

A clause needs one of its children; a child needs the terms that must occur in it. A term that never
occurs is *dead*; a policy with a clause that has only dead children never fires. Nothing is called
dead that some readings and tables could make occur.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, product
from typing import NamedTuple

from rapport.policy import measures
from rapport.policy.compiler.plan_text import predicate_text
from rapport.policy.linting.comparisons import (
    Value,
    operands_of,
    required_by,
    single_comparisons,
    values_of,
)
from rapport.policy.linting.requirements import Requirement, can_coincide, compatible, negation_of
from rapport.policy.plan import (
    Absent,
    Child,
    Compared,
    ConstraintTerm,
    LastingTerm,
    Measure,
    Plan,
    Positive,
    QueryTerm,
    ReadingTerm,
    SilentTerm,
    StateAll,
    StateAtom,
    StateExpression,
    StateTerm,
    TermStep,
)

Dead = Mapping[int, str]
"""Terms that never occur, by number, with the reason as a sentence."""
_MOST_WAYS = 256
"""Ways in which a state can be true that are looked at; with more it counts as possible."""


class LintReason(NamedTuple):
    """Something to say about a policy, about these aliases."""

    aliases: tuple[str, ...]
    reason: str


def never_fires(plan: Plan, dead: Dead | None = None) -> LintReason | None:
    """Why the policy never can fire, None when it might.

    `dead`: terms that are known never to occur for other reasons, such as what the tables say.
    """
    known = {**dead_terms(plan), **(dead or {})}
    for clause in plan.clauses:
        needed = [known.keys() & needs(child) for child in clause.children]
        if all(needed):
            number = min(needed[0])
            return LintReason(_aliases(plan.terms[number]), known[number])
    return _excluding_facts(plan) or _undone(plan)


def dead_terms(plan: Plan) -> dict[int, str]:
    """Terms that occur for no readings and no tables."""
    found = ((number, _why_dead(term)) for number, term in enumerate(plan.terms))
    return {number: why for number, why in found if why}


def needs(child: Child) -> frozenset[int]:
    """The terms that must occur for the child to hold."""
    match child:
        case Positive(term):
            return frozenset((term,))
        case Absent():
            return frozenset()
        case _:
            first = () if child.first_negated else (child.first,)
            return frozenset((*first, *(() if child.second_negated else (child.second,))))


def excluding_readings(plan: Plan) -> list[LintReason]:
    """Pairs of lines that hold together only of two different readings of one instance."""
    found = []
    for value, terms in single_comparisons(plan, ReadingTerm).items():
        requirements = [required for term in terms if (required := required_by(term.compared))]
        if not compatible(requirements):
            reason = (
                f"no reading satisfies all that is said of {value[1]} of {value[0]}; "
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
    """A straight distance is never below zero."""
    measured = term.compared and _measured(term.compared)
    if not measured or compatible((*measured, Requirement(">=", 0.0))):
        return ""
    return f"a distance is never negative, so '{predicate_text(term)}' never holds"


def _measured(compared: Compared) -> tuple[Requirement, ...]:
    """What is required of a distance by a constant."""
    for operand, required in operands_of(compared):
        if isinstance(operand, Measure) and measures.get(operand.function).shape == "distance":
            return (required,)
    return ()


# --- states ---


def _can_be_true(state: StateExpression) -> bool:
    """False when no last readings make it true."""
    ways = _ways(state)
    return ways is None or any(_is_possible(way) for way in ways)


def _ways(state: StateExpression) -> list[tuple[StateAtom, ...]] | None:
    """The sets of atoms one of which must all be true; None when they are too many to look at."""
    if isinstance(state, StateAtom):
        return [(state,)]
    parts = [_ways(part) for part in state.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if not isinstance(state, StateAll):
        ways = list(chain.from_iterable(known))
        return ways if len(ways) <= _MOST_WAYS else None
    count = 1
    for part in known:
        count *= len(part)
        if count > _MOST_WAYS:
            return None
    return [tuple(chain.from_iterable(choice)) for choice in product(*known)]


def _is_possible(atoms: Iterable[StateAtom]) -> bool:
    """False when the atoms ask for a value that there is not. An atom under NOT is true only when
    its value is there, and then the contrary holds of it.
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
    """What tables say of one instance cannot be two things."""
    for value, terms in single_comparisons(plan, ConstraintTerm).items():
        requirements = [required for term in terms if (required := required_by(term.compared))]
        side = terms[0].first
        own = [
            Requirement(one.operator, one.value)
            for one in side.constraints
            if one.attribute == value[1]
        ]
        if not compatible((*requirements, *own)):
            reason = f"no {side.concept} satisfies all that is said of {value[1]} of {value[0]}"
            return LintReason((value[0],), reason)
    return None


def _undone(plan: Plan) -> LintReason | None:
    """A line that says NOT of the only thing that can begin a match: its own reading refutes it."""
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
