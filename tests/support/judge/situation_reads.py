"""What the conditions and values of a situation read and name. [SI-2, SI-3, SI-8]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rapport.policy.language.situation_tree import (
    Aggregate,
    AndOf,
    Between,
    Calculation,
    Condition,
    InUnit,
    Lasting,
    Not,
    OneOf,
    OrOf,
    Quantified,
    RelationshipAtom,
    Silence,
    Value,
    ValueComparison,
)
from rapport.policy.language.tree import AttributeOf, Call
from rapport.policy.ontology import Ontology, relationship_between, resolve_kind

Concepts = Mapping[str, str]
"""The concept of each alias in scope."""


class AttributeRead(NamedTuple):
    """An attribute of an alias."""

    alias: str
    concept: str
    attribute: str


class RelatedSides(NamedTuple):
    """The two sides of a relationship, in the order of its function."""

    function: str
    first: AttributeRead
    second: AttributeRead


def concept_named(name: str, ontology: Ontology) -> str:
    """The concept of a name before an alias."""
    kind = resolve_kind(ontology, name)
    assert kind is not None, name
    return kind.concept


def related(atom: RelationshipAtom, concepts: Concepts, ontology: Ontology) -> RelatedSides:
    """The declared relationship of an atom; also written the other way round."""
    for first, second in ((atom.first, atom.second), (atom.second, atom.first)):
        found = relationship_between(ontology, atom.function, concepts[first], concepts[second])
        if found is not None:
            return RelatedSides(
                found.function,
                AttributeRead(first, concepts[first], found.first[1]),
                AttributeRead(second, concepts[second], found.second[1]),
            )
    raise AssertionError(atom.function)


def parts_of(condition: Condition) -> tuple[Condition, ...]:
    """The conditions directly inside one."""
    match condition:
        case AndOf(parts) | OrOf(parts):
            return parts
        case Not(part) | Lasting(part):
            return (part,)
        case Quantified():
            return (condition.condition,)
        case _:
            return ()


def values_in(condition: Condition) -> Iterator[Value]:
    """The values of a comparison, inner ones too; those of a counted term are not among them."""
    match condition:
        case ValueComparison(left, _, right):
            sides: tuple[Value, ...] = (left, right)
        case Between(value, low, high):
            sides = (value, low, high)
        case OneOf(value):
            sides = (value,)
        case _:
            sides = ()
    for side in sides:
        yield from _inner_values(side)


def _inner_values(value: Value) -> Iterator[Value]:
    yield value
    match value:
        case Calculation(left, _, right):
            yield from _inner_values(left)
            yield from _inner_values(right)
        case InUnit(inner):
            yield from _inner_values(inner)


def scope_inside(condition: Quantified, concepts: Concepts, ontology: Ontology) -> Concepts:
    """The scope of a quantifier's expression."""
    return {**concepts, condition.alias: concept_named(condition.concept, ontology)}


def present_reads(
    condition: Condition, concepts: Concepts, ontology: Ontology
) -> set[AttributeRead]:
    """The attributes whose present values are read, quantifiers' expressions included."""
    if isinstance(condition, Quantified):
        concepts = scope_inside(condition, concepts, ontology)
    found: set[AttributeRead] = set()
    if isinstance(condition, RelationshipAtom):
        found |= set(related(condition, concepts, ontology)[1:])
    for value in values_in(condition):
        match value:
            case AttributeOf(attribute, alias):
                found.add(AttributeRead(alias, concepts[alias], attribute))
            case Call(function, aliases):
                of = ontology.functions[function].of
                for alias, (_concept, attribute) in zip(aliases, of, strict=True):
                    found.add(AttributeRead(alias, concepts[alias], attribute))
    for part in parts_of(condition):
        found |= present_reads(part, concepts, ontology)
    return found


def aggregates_in(condition: Condition) -> list[Aggregate]:
    """Quantifiers' expressions included, counted terms not."""
    found = [value for value in values_in(condition) if isinstance(value, Aggregate)]
    return found + [one for part in parts_of(condition) for one in aggregates_in(part)]


def attributes_read(
    condition: Condition, concepts: Concepts, ontology: Ontology
) -> set[AttributeRead]:
    """Every attribute that a term reads, those of its aggregates too."""
    found = present_reads(condition, concepts, ontology)
    if isinstance(condition, Quantified):
        concepts = scope_inside(condition, concepts, ontology)
    for value in aggregates_in(condition):
        if isinstance(value.of, AttributeOf):
            alias = value.of.alias
            found.add(AttributeRead(alias, concepts.get(alias, ""), value.of.attribute))
        else:
            found |= attributes_read(value.of, concepts, ontology)
    return found


def aliases_named(condition: Condition) -> set[str]:
    """The aliases bound outside that a condition names."""
    found: set[str] = set()
    match condition:
        case RelationshipAtom():
            found |= {condition.first, condition.second}
        case Silence():
            found.add(condition.alias)
    for value in values_in(condition):
        match value:
            case AttributeOf():
                found.add(value.alias)
            case Call():
                found |= set(value.aliases)
            case Aggregate(_, AttributeOf() as of):
                found.add(of.alias)
            case Aggregate():
                assert not isinstance(value.of, AttributeOf)
                found |= aliases_named(value.of)
    for part in parts_of(condition):
        found |= aliases_named(part)
    return found - {condition.alias} if isinstance(condition, Quantified) else found


def concepts_quantified(condition: Condition, ontology: Ontology) -> set[str]:
    """The concepts over which quantifiers range, inner ones and those of counted terms too."""
    found: set[str] = set()
    if isinstance(condition, Quantified):
        found.add(concept_named(condition.concept, ontology))
    inner = list(parts_of(condition))
    for value in values_in(condition):
        if isinstance(value, Aggregate) and not isinstance(value.of, AttributeOf):
            inner.append(value.of)
    for part in inner:
        found |= concepts_quantified(part, ontology)
    return found
