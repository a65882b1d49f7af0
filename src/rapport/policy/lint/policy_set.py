"""Lint across policies: similar policies, contrary actions on one target, and policies that trigger
each other. [PO-12]

Similarity follows the paper: policies are similar when they use the same concepts and attributes.
The effect of an action is unknown, so contrary actions are found by a table of words, which the
site can extend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rapport.policy.compiler.plan_text import predicate_text
from rapport.policy.compiler.scope import table_attributes
from rapport.policy.lint.satisfiability import comparisons_of, compatible
from rapport.policy.ontology import Ontology
from rapport.policy.plan import (
    Child,
    Clause,
    LastingTerm,
    Plan,
    PolicyPlan,
    Sequence,
    SilentTerm,
    StateTerm,
    TermStep,
    signed_terms,
    state_atoms,
    streams_of_term,
    terms_of_child,
)
from rapport.policy.situation_plan import SituationPlan, table_attributes_of

NEARLY_EQUAL = 0.9
"""Policies at least this similar get a hint."""
_CONCEPT, _ATTRIBUTE, _RELATION, _PROPERTY, _CONSTANT, _CLAUSE = 1, 2, 3, 2, 1, 2
"""Weights: the attribute says more than the concept, the relation still more."""
Pair = tuple[str, str]
CONTRARY: tuple[Pair, ...] = (
    ("open", "close"),
    ("open", "shut"),
    ("lock", "unlock"),
    ("on", "off"),
    ("start", "stop"),
    ("raise", "lower"),
    ("up", "down"),
    ("increase", "decrease"),
    ("enable", "disable"),
    ("activate", "deactivate"),
    ("arm", "disarm"),
    ("allow", "forbid"),
    ("allow", "deny"),
    ("admit", "refuse"),
    ("block", "unblock"),
    ("heat", "cool"),
    ("fill", "empty"),
    ("connect", "disconnect"),
    ("show", "hide"),
    ("mute", "unmute"),
    ("pause", "resume"),
)
"""Words that are contrary on the same target, in either order."""
_LEFT_OUT = frozenset(("the", "a", "an", "please", "switch", "turn", "set", "put", "of", "in"))
RAW = "raw."
Leads = Mapping[str, Iterable[str]]
"""By policy, the policies that read its effects."""


class SimilarPolicy(NamedTuple):
    """A policy and its similarity: 0 nothing in common, 1 all features in common."""

    policy: str
    score: float


def features(plan: Plan) -> dict[str, int]:
    """The weighted features of a policy: concepts 1, attributes 2, relationships and comparisons
    between concepts 3, properties with their values 2, terms with their constants 1, clauses of the
    normal form 2. Alias names do not matter.
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
    """The other policies with common features, most similar first."""
    own = features(plans[name])
    found = (
        SimilarPolicy(other, similarity(own, features(plan)))
        for other, plan in plans.items()
        if other != name
    )
    ranked = sorted(found, key=lambda one: (-one.score, one.policy))
    return [one for one in ranked if one.score > 0][:limit]


def nearly_equal(plans: Mapping[str, Plan]) -> dict[str, list[SimilarPolicy]]:
    """By policy, the alphabetically earlier ones of the same shape that are at least `NEARLY_EQUAL`
    similar.
    """
    shapes: dict[str, dict[str, Plan]] = {}
    for name, plan in plans.items():
        shapes.setdefault(shape_of(plan), {})[name] = plan
    found: dict[str, list[SimilarPolicy]] = {}
    for group in shapes.values():
        found |= _nearly_equal(group)
    return found


def shape_of(plan: Plan) -> str:
    """The clauses with relations and alias structure, without constants; equal for policies that
    differ in names, properties and numbers only.
    """
    aliases: dict[str, int] = {}
    parts = []
    for clause in plan.clauses:
        for child in clause.children:
            parts.append(f"{type(child).__name__}{_negations(child)}")
            for term in (plan.terms[number] for number in terms_of_child(child)):
                sides = (term.first, term.second)
                numbers = [aliases.setdefault(one.alias, len(aliases)) for one in sides]
                parts.append(f"{numbers} {' '.join(_relations(term))}")
        parts.append(";")
    return " ".join(parts)


def _negations(child: Child) -> str:
    return f"{child.first_negated}{child.second_negated}" if isinstance(child, Sequence) else ""


def _nearly_equal(plans: Mapping[str, Plan]) -> dict[str, list[SimilarPolicy]]:
    """Features are bits, as many as their weight, so a pair costs a few integer operations; pairs
    whose weights exclude similarity are skipped.
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
    """The children as text, and the effective window."""
    window = plan.window_ms if clause.window_ms is None else clause.window_ms
    return f"{' or '.join(sorted(_child(child, plan) for child in clause.children))} {window}"


def _child(child: Child, plan: Plan) -> str:
    terms = [
        f"{'not ' * negated}{_anonymous(plan.terms[number])}"
        for number, negated in signed_terms(child)
    ]
    if not isinstance(child, Sequence):
        return terms[0]
    return f"{' then '.join(terms)} {child.window_ms or ''}"


def _anonymous(term: TermStep) -> str:
    """The text of a term with concepts instead of aliases, constants included."""
    text = predicate_text(term)
    for side in (term.first, term.second):
        text = text.replace(f" of {side.alias}", f" of {side.concept}")
    return text


class ActionStatement(NamedTuple):
    """One word (0 or 1) of a pair, and its target."""

    pair: int
    side: int
    target: str


def action_statements(phrase: str, pairs: Iterable[Pair]) -> list[ActionStatement]:
    """The contrary words in a phrase with their targets. Two phrases are contrary when one contains
    the `contrary_to` of a statement of the other.
    """
    words = _words(phrase)
    found: list[ActionStatement] = []
    for place, pair in enumerate(pairs):
        for side, word in enumerate(pair):
            target = _without(words, _words(word))
            if target is not None:
                found.append(ActionStatement(place, side, " ".join(target)))
    return found


def contrary_to(statement: ActionStatement) -> ActionStatement:
    """The other word of the pair, on the same target."""
    return statement._replace(side=1 - statement.side)


def exclude_each_other(one: Plan, other: Plan) -> str:
    """The concept of which no instance can satisfy both policies with one reading; empty when one
    may. Different instances still may.
    """
    theirs = comparisons_of(other)
    for (concept, attribute), requirements in comparisons_of(one).items():
        if not compatible((*requirements, *theirs.get((concept, attribute), ()))):
            return concept
    return ""


def _words(phrase: str) -> tuple[str, ...]:
    found = phrase.casefold().replace("-", " ").split()
    return tuple(word for word in found if word not in _LEFT_OUT)


def _without(words: tuple[str, ...], part: tuple[str, ...]) -> tuple[str, ...] | None:
    """The words without the first occurrence of `part`; None when it does not occur."""
    if not part:
        return None
    for place in range(len(words) - len(part) + 1):
        if tuple(words[place : place + len(part)]) == tuple(part):
            return (*words[:place], *words[place + len(part) :])
    return None


class Effect(NamedTuple):
    """The `concept.attribute` values that an action changes."""

    phrase: str
    gives: frozenset[str]


def effect_of(phrase: str, declared: Mapping[str, Any], ontology: Ontology) -> Effect:
    """The effect of an action's declaration (`append`, `set`): appending to `raw.NAME` gives the
    attributes of the source NAME.
    """
    gives: set[str] = set()
    channel, attribute = declared.get("append"), declared.get("set")
    if isinstance(channel, str) and channel.startswith(RAW):
        source = ontology.sources.get(channel.removeprefix(RAW))
        gives |= source.streams if source is not None else set()
    if isinstance(attribute, str):
        gives.add(attribute)
    return Effect(phrase, frozenset(gives))


def reads_of(plan: PolicyPlan) -> frozenset[str]:
    """Every `concept.attribute` that a plan reads, from events or tables."""
    found = set(plan.streams())
    if isinstance(plan, SituationPlan):
        return frozenset(found | {".".join(end) for end in plan.table_attributes()})
    if plan.guard is not None:
        found |= {".".join(end) for end in table_attributes_of([plan.guard])}
    for term in plan.terms:
        found |= {f"{side.concept}.{attribute}" for side, attribute in table_attributes(term)}
        for side in (term.first, term.second):
            found |= {f"{side.concept}.{one.attribute}" for one in side.constraints}
    return frozenset(found)


def policy_graph(
    plans: Mapping[str, PolicyPlan], effects: Mapping[str, list[Effect]]
) -> dict[str, set[str]]:
    """By policy, the policies that read its effects."""
    readers: dict[str, set[str]] = {}
    for name, plan in plans.items():
        for attribute in reads_of(plan):
            readers.setdefault(attribute, set()).add(name)
    return {
        name: {
            reader
            for effect in effects.get(name, ())
            for attribute in effect.gives
            for reader in readers.get(attribute, ())
        }
        for name in plans
    }


def shortest_cycle(start: str, leads: Leads) -> tuple[str, ...]:
    """The shortest way from a policy back to itself, both ends included; empty when there is none.

    >>> shortest_cycle("a", {"a": ["b"], "b": ["a", "b"]})
    ('a', 'b', 'a')
    """
    came: dict[str, str] = {}
    waiting = deque((start,))
    while waiting:
        here = waiting.popleft()
        for there in sorted(leads.get(here, ())):
            if there == start:
                return (*_back(start, here, came), start)
            if there not in came:
                came[there] = here
                waiting.append(there)
    return ()


def _back(start: str, here: str, came: Mapping[str, str]) -> tuple[str, ...]:
    way = [here]
    while way[-1] != start:
        way.append(came[way[-1]])
    return tuple(reversed(way))
