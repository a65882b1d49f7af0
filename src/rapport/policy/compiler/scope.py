"""Resolves the names of a policy: aliases, their concepts, and whether events or tables give an
attribute. [PO-2, PO-3, PO-5]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rapport.core.schema import AttributeType
from rapport.policy.compiler.normal_form import TermAtom, atoms_of_expression
from rapport.policy.language.tree import (
    AttributeOf,
    Call,
    Comparison,
    ConceptDef,
    DurationCondition,
    Expression,
    Measured,
    Quantity,
    SilenceCondition,
    SourceSpan,
    Term,
    children,
)
from rapport.policy.ontology import Ontology, Relationship, relationship_between, resolve_kind
from rapport.policy.plan import (
    Constant,
    LastingTerm,
    Operand,
    Side,
    SideValue,
    SilentTerm,
    TermStep,
    state_atoms,
)

IDENTITY = "id"
"""The attribute of every concept that identifies the instance."""
_MOST_NAMES = 4


class AttributeRef(NamedTuple):
    """An attribute of an alias that a condition reads."""

    alias: str
    concept: str
    attribute: str
    from_events: bool

    @property
    def stream(self) -> str | None:
        """`concept.attribute` if events give it."""
        return f"{self.concept}.{self.attribute}" if self.from_events else None


class Scope:
    """The aliases of one policy resolved against the ontology. All but `attributes_of` need a
    checked policy."""

    def __init__(self, definitions: Iterable[ConceptDef], ontology: Ontology) -> None:
        self.ontology = ontology
        self.streams = ontology.streams()
        self.concepts: dict[str, str] = {}
        for definition in definitions:
            kind = resolve_kind(ontology, definition.concept)
            if kind is not None:
                self.concepts[definition.alias] = kind.concept

    def attributes_of(self, alias: str) -> Mapping[str, AttributeType]:
        """The attributes of the alias's concept without `id`; empty if unknown."""
        return self.ontology.concepts.get(self.concepts.get(alias, ""), {})

    def event_attributes(self, alias: str) -> tuple[str, ...]:
        """The attributes that push sources give, sorted."""
        concept = self.concepts.get(alias, "")
        names = self.attributes_of(alias)
        return tuple(sorted(name for name in names if f"{concept}.{name}" in self.streams))

    def end(self, alias: str, attribute: str) -> AttributeRef:
        """The attribute of the alias, with its origin."""
        concept = self.concepts[alias]
        return AttributeRef(alias, concept, attribute, f"{concept}.{attribute}" in self.streams)

    def relationship(self, term: Term | TermAtom) -> Relationship:
        """The declared relationship of a checked term."""
        first, second = self.concepts[term.first], self.concepts[term.second]
        found = relationship_between(self.ontology, term.function, first, second)
        assert found is not None, "the check has found it"
        return found

    def ends_of_term(self, term: Term | TermAtom) -> tuple[AttributeRef, AttributeRef]:
        declared = self.relationship(term)
        first = self.end(term.first, declared.first[1])
        return first, self.end(term.second, declared.second[1])

    def ends_of_operand(self, operand: Measured) -> tuple[AttributeRef, ...]:
        """The attributes that an operand reads, in the order written."""
        match operand:
            case Quantity():
                return ()
            case AttributeOf(attribute, alias):
                return (self.end(alias, attribute),)
            case Call(function, aliases):
                of = self.ontology.functions[function].of
                pairs = zip(aliases, of, strict=True)
                return tuple(self.end(alias, attribute) for alias, (_, attribute) in pairs)

    def ends_of_comparison(self, comparison: Comparison) -> tuple[AttributeRef, ...]:
        """The attributes that a comparison reads, each once, in the order written."""
        left = self.ends_of_operand(comparison.left)
        return tuple(dict.fromkeys((*left, *self.ends_of_operand(comparison.right))))

    def ends(self, expression: Expression) -> tuple[AttributeRef, ...]:
        """The attributes that an expression reads, each once, in the order written."""
        match expression:
            case Term():
                return tuple(dict.fromkeys(self.ends_of_term(expression)))
            case Comparison():
                return self.ends_of_comparison(expression)
            case SilenceCondition(attribute, alias):
                names = (attribute,) if attribute else self.event_attributes(alias)
                return tuple(self.end(alias, name) for name in names)
            case _:
                found = (end for part in children(expression) for end in self.ends(part))
                return tuple(dict.fromkeys(found))


def event_names(ontology: Ontology) -> str:
    """The attributes that events give, for hints: `position of person, temperature of station`."""
    streams = (stream.partition(".") for stream in sorted(ontology.streams()))
    names = [f"{attribute} of {concept}" for concept, _dot, attribute in streams]
    return ", ".join([*names[:_MOST_NAMES], *(["..."] if names[_MOST_NAMES:] else [])]) or "nothing"


def aliases_of(expression: Expression) -> tuple[str, ...]:
    """The aliases of an expression, each once, in the order written."""
    return tuple(dict.fromkeys(_aliases(expression)))


def _aliases(expression: Expression) -> Iterable[str]:
    match expression:
        case Term(first, _, second):
            return (first, second)
        case Comparison(left, _, right):
            return (*_named_by(left), *_named_by(right))
        case SilenceCondition(_, alias):
            return (alias,)
        case _:
            return (alias for part in children(expression) for alias in _aliases(part))


def _named_by(operand: Measured) -> tuple[str, ...]:
    if isinstance(operand, Call):
        return operand.aliases
    return (operand.alias,) if isinstance(operand, AttributeOf) else ()


def table_attributes(term: TermStep) -> Iterator[tuple[Side, str]]:
    """The attributes that tables give to a term, without constraints and the identity."""
    match term:
        case SilentTerm():
            return
        case LastingTerm():
            for atom in state_atoms(term.state):
                yield from table_attributes(atom.term)
        case _ if term.compared is not None:
            operands = (term.compared.left, term.compared.right)
            for value in (value for operand in operands for value in _values_of(operand)):
                side = (term.first, term.second)[value.side]
                own = side.stream is not None and value.attribute == side.attribute
                if not own and value.attribute != IDENTITY:
                    yield side, value.attribute
        case _:
            for side in (term.first, term.second):
                if side.stream is None and side.attribute != IDENTITY:
                    yield side, side.attribute


def first_mentions(expression: Expression) -> dict[tuple[str, str], SourceSpan]:
    """The first place of each `attribute of alias`."""
    places: dict[tuple[str, str], SourceSpan] = {}
    for atomic in atoms_of_expression(expression):
        if isinstance(atomic, DurationCondition):
            places = first_mentions(atomic.inner) | places
        if isinstance(atomic, Comparison):
            for operand in (atomic.left, atomic.right):
                if isinstance(operand, AttributeOf):
                    places.setdefault((operand.alias, operand.attribute), operand.place)
    return places


def _values_of(operand: Operand) -> tuple[SideValue, ...]:
    if isinstance(operand, SideValue):
        return (operand,)
    return () if isinstance(operand, Constant) else operand.of
