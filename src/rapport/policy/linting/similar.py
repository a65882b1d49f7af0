"""How alike two policies are, by what they speak of. [PO-12]

The paper's proposal: show a person the policies that speak of the same concepts and attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rapport.policy.compiler.plan_text import predicate_text
from rapport.policy.compiler.reads import table_attributes
from rapport.policy.plan import (
    Absent,
    Child,
    Clause,
    LastingTerm,
    Plan,
    Positive,
    Sequence,
    SilentTerm,
    StateTerm,
    TermStep,
    state_atoms,
    streams_of_term,
)

NEARLY_EQUAL = 0.9
"""From here on two policies are worth a hint."""
_CONCEPT, _ATTRIBUTE, _RELATION, _PROPERTY, _CONSTANT, _CLAUSE = 1, 2, 3, 2, 1, 2
"""Weights: what is compared says more than of whom, how it is compared still more."""


class SimilarPolicy(NamedTuple):
    """A policy and how alike it is: 0 nothing in common, 1 speaks of all the same."""

    policy: str
    score: float


def features(plan: Plan) -> dict[str, int]:
    """What a policy speaks of, with weights: concepts 1, attributes 2, relationships and
    comparisons between concepts 3, properties with their values 2, terms with their constants 1,
    clauses of the normal form 2. Names of aliases do not matter.
    """
    found: dict[str, int] = {}
    for term in plan.terms:
        for side in (term.first, term.second):
            found[f"concept {side.concept}"] = _CONCEPT
            for each in side.constraints:
                found[f"attribute {side.concept}.{each.attribute}"] = _ATTRIBUTE
                shown = f"{side.concept}.{each.attribute} {each.operator} {each.value}"
                found[f"property {shown}"] = _PROPERTY
        for side, attribute in table_attributes(term):
            found[f"attribute {side.concept}.{attribute}"] = _ATTRIBUTE
        for stream in streams_of_term(term):
            found[f"attribute {stream}"] = _ATTRIBUTE
        for text in _relations(term):
            found[f"relation {text}"] = _RELATION
        found[f"constant {_anonymous(term)}"] = _CONSTANT
    for clause in plan.clauses:
        found[f"clause {_clause(clause, plan)}"] = _CLAUSE
    return found


def similarity(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The weight of what both speak of, by the weight of what either does (Jaccard's measure).

    >>> similarity({"a": 1, "b": 2}, {"b": 2, "c": 1})
    0.5
    """
    both = sum(weight for name, weight in one.items() if name in other)
    either = sum(one.values()) + sum(other.values()) - both
    return both / either if either else 1.0


def most_similar(name: str, plans: Mapping[str, Plan], *, limit: int = 5) -> list[SimilarPolicy]:
    """The other policies that have something in common with `name`, most alike first."""
    own = features(plans[name])
    found = (
        SimilarPolicy(other, similarity(own, features(plan)))
        for other, plan in plans.items()
        if other != name
    )
    ranked = sorted(found, key=lambda one: (-one.score, one.policy))
    return [one for one in ranked if one.score > 0][:limit]


def nearly_equal(plans: Mapping[str, Plan]) -> dict[str, list[SimilarPolicy]]:
    """Of each policy those before it in the alphabet that are nearly equal to it: of one shape, and
    alike to `NEARLY_EQUAL`.
    """
    shapes: dict[str, dict[str, Plan]] = {}
    for name, plan in plans.items():
        shapes.setdefault(shape_of(plan), {})[name] = plan
    found: dict[str, list[SimilarPolicy]] = {}
    for group in shapes.values():
        found |= _nearly_equal(group)
    return found


def shape_of(plan: Plan) -> str:
    """The clauses with what they relate and which aliases are the same, without constants; equal
    for policies that are written alike with other names, properties and numbers.
    """
    aliases: dict[str, int] = {}
    parts = []
    for clause in plan.clauses:
        for child in clause.children:
            parts.append(f"{type(child).__name__}{_negations(child)}")
            for term in (plan.terms[number] for number in _terms_of(child)):
                sides = (term.first, term.second)
                numbers = [aliases.setdefault(one.alias, len(aliases)) for one in sides]
                parts.append(f"{numbers} {' '.join(_relations(term))}")
        parts.append(";")
    return " ".join(parts)


def _negations(child: Child) -> str:
    return f"{child.first_negated}{child.second_negated}" if isinstance(child, Sequence) else ""


def _terms_of(child: Child) -> tuple[int, ...]:
    return (child.first, child.second) if isinstance(child, Sequence) else (child.term,)


def _nearly_equal(plans: Mapping[str, Plan]) -> dict[str, list[SimilarPolicy]]:
    """Features are bits, as many as they weigh, so that a pair costs a few operations on integers;
    and a pair is looked at only when the weights allow it.
    """
    masks = _masks({name: features(plan) for name, plan in plans.items()})
    order = sorted(masks, key=lambda name: (masks[name].bit_count(), name))
    found: dict[str, list[SimilarPolicy]] = {}
    for place, name in enumerate(order):
        own = masks[name]
        most = own.bit_count() / NEARLY_EQUAL
        for other in order[place + 1 :]:
            theirs = masks[other]
            if theirs.bit_count() > most:
                break
            score = (own & theirs).bit_count() / max((own | theirs).bit_count(), 1)
            if score >= NEARLY_EQUAL:
                first, second = sorted((name, other))
                found.setdefault(second, []).append(SimilarPolicy(first, score))
    return found


def _masks(known: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Each policy's features as bits of one integer."""
    bits: dict[str, int] = {}
    place = 0
    for each in known.values():
        for name, weight in each.items():
            if name not in bits:
                bits[name] = ((1 << weight) - 1) << place
                place += weight
    return {name: sum(bits[one] for one in each) for name, each in known.items()}


def _relations(term: TermStep) -> Iterable[str]:
    """Relationships and comparisons between concepts, without constants."""
    match term:
        case SilentTerm():
            yield f"silence of {' '.join(term.streams)}"
        case LastingTerm():
            for atom in state_atoms(term.state):
                yield from _relations(atom.term)
            yield "for"
        case _:
            yield _relation(term)


def _relation(term: StateTerm) -> str:
    if term.compared is None:
        return f"{term.function} {term.first.concept} {term.second.concept}"
    left, right = (type(each).__name__ for each in (term.compared.left, term.compared.right))
    attributes = sorted(f"{side.concept}.{side.attribute}" for side in {term.first, term.second})
    return f"{left} {term.compared.operator} {right} {' '.join(attributes)}"


def _clause(clause: Clause, plan: Plan) -> str:
    """The children with their terms in place of numbers, and the window in force."""
    window = plan.window_ms if clause.window_ms is None else clause.window_ms
    return f"{' or '.join(sorted(_child(child, plan) for child in clause.children))} {window}"


def _child(child: Child, plan: Plan) -> str:
    match child:
        case Positive(term):
            return _anonymous(plan.terms[term])
        case Absent(term):
            return f"not {_anonymous(plan.terms[term])}"
        case Sequence():
            first = f"{'not ' * child.first_negated}{_anonymous(plan.terms[child.first])}"
            second = f"{'not ' * child.second_negated}{_anonymous(plan.terms[child.second])}"
            return f"{first} then {second} {child.window_ms or ''}"


def _anonymous(term: TermStep) -> str:
    """The text of a term with concepts in the place of aliases, constants included."""
    text = predicate_text(term)
    for side in (term.first, term.second):
        text = text.replace(f" of {side.alias}", f" of {side.concept}")
    return text
