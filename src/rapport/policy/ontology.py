"""The ontology of a site: concepts, attributes, relationships, and the sources that give attributes
as events. [PO-1, PO-2]
"""

from __future__ import annotations

import msgspec

from rapport.core.schema import AttributeType
from rapport.policy.language.tree import Operator


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attribute of an instance compared with a constant."""

    attribute: str
    operator: Operator
    value: str | float


class Relationship(msgspec.Struct, frozen=True):
    """`inside` between `person.position` and `room.area`, decided by `function`."""

    name: str
    first: tuple[str, str]
    second: tuple[str, str]
    function: str


class Kind(msgspec.Struct, frozen=True):
    """A name for definitions: a concept, or `employee` for a person with status='employee'."""

    name: str
    concept: str
    """The concept whose instances, attributes, streams and relationships it has."""
    constraints: tuple[Constraint, ...] = ()
    """The constraints of the kind; they come before an alias's own."""


class PairTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the site with one or two key columns and a number: `[functions.X] table = ...`."""

    table: str
    keys: tuple[str, ...]
    value: str
    symmetric: bool = False
    """True: (a, b) also stands for (b, a)."""


class SiteFunction(msgspec.Struct, frozen=True, kw_only=True):
    """`distance` of `substance.position` and `substance.position`: gives a number in `unit`."""

    name: str
    of: tuple[tuple[str, str], ...]
    """One or two (concept, attribute); the attribute `id` is the identity."""
    measure: str = ""
    """Name of a measuring function (`policy/measures.py`); empty: it is looked up."""
    lookup: PairTable | None = None
    unit: str = ""


class AnyOf(msgspec.Struct, frozen=True, tag="any-of"):
    """`yes` for an instance that satisfies all constraints of one alternative, else `no`."""

    alternatives: tuple[tuple[Constraint, ...], ...]


class Identity(msgspec.Struct, frozen=True, tag="identity"):
    """The identity as a text, for comparison in relationships."""


class EnclosingColumn(msgspec.Struct, frozen=True, tag="enclosing"):
    """`concept/id` of everything that contains the instance, one per line, nearest first."""

    container: str


class EnclosedInstance(msgspec.Struct, frozen=True, tag="enclosed"):
    """The instance as `concept/id`, which is searched in `EnclosingColumn`."""


Derivation = AnyOf | Identity | EnclosingColumn | EnclosedInstance


class Link(msgspec.Struct, frozen=True):
    """`room.floor in floor`: the attribute of the inner names the identity of the outer."""

    inner: str
    attribute: str
    outer: str


class PushSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source of events that give attributes of a concept; names their fields."""

    name: str
    concept: str
    attribute: str
    id: str = "id"
    time: str = "time"
    key: str
    value: tuple[str, ...]
    events: str = ""
    """Recorded events for replay, relative to the site."""
    interpretation: str = ""
    """Empty: the source gives canonical units."""
    period_ms: int = 0
    """The source sends an event at least this often; 0: not declared."""
    stale_after_ms: int = 0
    """Its last value is unknown this long after its time; 0: it holds until the next."""
    uncertainty_ms: int = 0
    """Largest error of its clock, either way."""
    zone: str = ""
    """Zone of local times without one, by the source or the site."""
    further: tuple[str, ...] = ()
    """More attributes that it gives; only with a typed interpretation."""
    speaks: str = ""
    """The type of its events in a typed interpretation; empty: that of the envelope."""

    @property
    def stream(self) -> str:
        """`concept.attribute`, the type of its mediated events; of the first attribute."""
        return f"{self.concept}.{self.attribute}"

    @property
    def attributes(self) -> tuple[str, ...]:
        return (self.attribute, *self.further)

    @property
    def streams(self) -> frozenset[str]:
        """One per attribute."""
        return frozenset(f"{self.concept}.{attribute}" for attribute in self.attributes)


class Ontology(msgspec.Struct, frozen=True, kw_only=True):
    """Concepts with typed attributes, relationships, and push sources; checked when loaded."""

    concepts: dict[str, dict[str, AttributeType]]
    relationships: dict[str, Relationship]
    """By name. Further pairs of concepts have keys of their own, so use `relationships_named` or
    `relationship_between`.
    """
    sources: dict[str, PushSource]
    units: dict[str, dict[str, str]] = {}
    """Canonical units of number attributes, by concept, where the site declares them."""
    functions: dict[str, SiteFunction] = {}
    """Functions for comparisons."""
    kinds: dict[str, Kind] = {}
    """Specialised concepts and groups, which are not concepts themselves; see `resolve_kind`."""
    groups: dict[str, tuple[str, ...]] = {}
    """The declared members of each group; a group of several concepts is no kind, but can be in a
    relationship.
    """
    parents: dict[str, str] = {}
    """By specialised concept, its `is`."""
    containers: dict[str, tuple[Link, ...]] = {}
    derived: dict[str, dict[str, Derivation]] = {}
    """By concept and attribute: columns derived from those of the tables (`derived_columns.py`).
    Their names contain a space or are `id`, so no policy and no file can name them by accident.
    """
    zone: str = ""
    """The time zone of the site; empty: UTC."""
    day_tables: tuple[str, ...] = ()
    """The tables without a concept and with one key: `time is on holidays`."""

    def streams(self) -> dict[str, AttributeType]:
        """Every `concept.attribute` that some push source gives, with its type."""
        return {
            f"{source.concept}.{attribute}": self.concepts[source.concept][attribute]
            for source in self.sources.values()
            for attribute in source.attributes
        }


def resolve_kind(ontology: Ontology, name: str) -> Kind | None:
    """The kind of a name before an alias: a concept, a specialised one, or a group; None for an
    unknown name. `known_kinds` has all names, for hints.
    """
    if name in ontology.concepts:
        return Kind(name, name)
    return ontology.kinds.get(name)


def known_kinds(ontology: Ontology) -> list[str]:
    """Every name that may stand before an alias, concepts first."""
    return [*ontology.concepts, *ontology.kinds]


def why_no_kind(ontology: Ontology, name: str) -> str:
    """A hint for a known name that may not stand before an alias."""
    if name not in ontology.groups or name in ontology.kinds:
        return ""
    members = " or ".join(ontology.groups[name])
    return f"{name!r} is a group of several concepts; write {members}"


def relationships_named(ontology: Ontology, name: str) -> list[Relationship]:
    """All relationships of that name, as written or else by `common_name`; one per pair of
    concepts. The concepts of a term's aliases select one.
    """
    declared = list(ontology.relationships.values())
    exact = [relationship for relationship in declared if relationship.name == name]
    if exact:
        return exact
    wanted = common_name(name)
    found = [each for each in declared if common_name(each.name) == wanted]
    return [each for each in found if each.name == found[0].name]


def relationship_between(
    ontology: Ontology, name: str, first: str, second: str
) -> Relationship | None:
    """The relationship of that name between these concepts in this order; None without one."""
    for relationship in relationships_named(ontology, name):
        if (relationship.first[0], relationship.second[0]) == (first, second):
            return relationship
    return None


def common_name(name: str) -> str:
    """How names of relationships are compared: without case, with one space between words, without
    `of`.

    >>> common_name("Belongs_To"), common_name("part of")
    ('belongs to', 'part')
    """
    words = name.casefold().replace("_", " ").replace("-", " ").split()
    return " ".join(words[:-1] if len(words) > 1 and words[-1] == "of" else words)
