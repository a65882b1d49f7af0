"""A graph as the ontology's tables of a site file, to be edited, with everything that did not fit
said in words. [PO-1]
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from urllib.parse import unquote

import msgspec

from rapport.core.errors import RapportError
from rapport.core.schema import AttributeType
from rapport.policy.language.lexer import is_name
from rapport.policy.rdf import graph as words
from rapport.policy.rdf.graph import Blank, Graph, Iri, Text
from rapport.units.quantities import unit_named

_NUMBERS = (
    *("integer", "decimal", "double", "float", "int", "long", "short", "byte"),
    *("nonNegativeInteger", "positiveInteger", "nonPositiveInteger", "negativeInteger"),
    *("unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"),
)
_TEXTS = ("string", "normalizedString", "token", "anyURI", "language", "Name", "NCName")
TYPES: dict[str, AttributeType] = {
    **{words.XSD + name: "number" for name in _NUMBERS},
    **{words.XSD + name: "text" for name in _TEXTS},
    words.XSD + "boolean": "boolean",
    words.RDF + "langString": "text",
    words.RDFS + "Literal": "text",
    words.TERMS + "Point": "point",
    words.TERMS + "Rectangle": "rectangle",
}
_UNDERSTOOD = {
    *(words.TYPE, words.LABEL, words.DOMAIN, words.RANGE, words.SUBCLASS, words.UNION),
    *(words.UNIT, words.FUNCTION, words.FIRST_ATTRIBUTE, words.SECOND_ATTRIBUTE, words.LEVEL),
    Iri(words.RDFS + "comment"),
}


class Concept(msgspec.Struct):
    """What becomes `[concepts.X]`."""

    attributes: dict[str, AttributeType] = msgspec.field(default_factory=dict)
    units: dict[str, str] = msgspec.field(default_factory=dict)
    above: str = ""
    where: dict[str, str | float | bool] = msgspec.field(default_factory=dict)


class Found(msgspec.Struct):
    """What a graph says in our words."""

    concepts: dict[str, Concept] = msgspec.field(default_factory=dict)
    groups: dict[str, list[str]] = msgspec.field(default_factory=dict)
    relationships: dict[str, list[tuple[str, str, str]]] = msgspec.field(default_factory=dict)
    """Of each name (first end, second end, function)."""
    undecided: dict[str, list[tuple[str, str]]] = msgspec.field(default_factory=dict)
    """Relationships without a function: (first concept, second concept)."""
    containers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)
    """What did not fit."""


def from_graph(graph: Graph) -> Found:
    """Classes, properties and unions as concepts, attributes, relationships and groups."""
    return _Importer(graph).found


class _Importer:
    """One pass over one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self.found = graph, Found()
        self._names: dict[Iri, str] = {}
        self._attributes: dict[Iri, list[tuple[str, str]]] = {}
        for thing in dict.fromkeys(
            [*graph.of_type(words.CLASS), *graph.of_type(Iri(words.RDFS + "Class"))]
        ):
            self._class(thing)
        for thing in graph.of_type(words.DATATYPE_PROPERTY):
            self._attribute(thing)
        for thing in list(self._names):
            self._structure(thing)
        for thing in graph.of_type(words.OBJECT_PROPERTY):
            self._relationship(thing)
        self._leftovers()

    def _note(self, text: str) -> None:
        self.found.notes.append(text)

    # --- names ---

    def _named(self, thing: Iri, fits: Callable[[str], bool]) -> str:
        """Its label when a policy could write it, else the last part of its address made fit."""
        label = self._graph.text(thing, words.LABEL)
        if fits(label):
            return label
        local = unquote(re.split(r"[#/:]", thing.value.rstrip("#/:"))[-1])
        name = local if fits(local) else _made_fit(local)
        if name != local:
            self._note(f"<{thing.value}> is called {name!r}: its own name cannot stand in a policy")
        return name

    def _class(self, thing: Iri) -> None:
        name = self._named(thing, is_name)
        if name in self._names.values():
            taken, number = name, 2
            while name in self._names.values():
                name, number = f"{taken}-{number}", number + 1
            self._note(f"<{thing.value}> is called {name!r}: there is another {taken!r}")
        self._names[thing] = name
        if any(True for _ in self._graph.all(thing, words.UNION)):
            self.found.groups[name] = []
        else:
            self.found.concepts[name] = Concept()

    # --- attributes ---

    def _attribute(self, thing: Iri) -> None:
        name = self._named(thing, is_name)
        concepts = self._concepts_of(thing, words.DOMAIN)
        kind = self._type_of(thing)
        if not concepts or kind is None or name == "id":
            reason = "no class as its domain" if not concepts else "no type that we have"
            reason = "the name of the identity" if name == "id" else reason
            self._note(f"the data property {name!r} (<{thing.value}>) has {reason}")
            return
        for concept in concepts:
            known = self.found.concepts[concept].attributes.setdefault(name, kind)
            if known != kind:
                self._note(f"{concept}.{name} is a {known} and a {kind}; it is taken as a {known}")
            else:
                self._attributes.setdefault(thing, []).append((concept, name))
                self._unit(thing, concept, name, kind)

    def _type_of(self, thing: Iri) -> AttributeType | None:
        ranges = [node for node in self._graph.all(thing, words.RANGE) if isinstance(node, Iri)]
        return TYPES.get(ranges[0].value) if len(ranges) == 1 else None

    def _unit(self, thing: Iri, concept: str, name: str, kind: str) -> None:
        unit = self._graph.text(thing, words.UNIT)
        if not unit:
            return
        try:
            symbol = unit_named(unit).symbol
        except RapportError:
            symbol = ""
        if symbol and kind == "number":
            self.found.concepts[concept].units[name] = symbol
        else:
            self._note(f"the unit {unit!r} of {concept}.{name}")

    def _concepts_of(self, thing: Iri, predicate: Iri) -> list[str]:
        """The concepts that a domain or range names, alone or as a union."""
        found: dict[str, None] = {}
        for node in self._graph.all(thing, predicate):
            members = [node]
            if isinstance(node, Blank):
                members = [
                    member
                    for head in self._graph.all(node, words.UNION)
                    for member in self._graph.members(head)
                ]
            for member in members:
                name = self._names.get(member) if isinstance(member, Iri) else None
                if name is not None and name in self.found.concepts:
                    found[name] = None
        return list(found)

    # --- structure ---

    def _structure(self, thing: Iri) -> None:
        name = self._names[thing]
        if name in self.found.groups:
            for head in self._graph.all(thing, words.UNION):
                for member in self._graph.members(head):
                    known = self._names.get(member) if isinstance(member, Iri) else None
                    if known is None:
                        self._note(f"a member of {name!r} that is no class")
                    else:
                        self.found.groups[name].append(known)
            return
        concept = self.found.concepts[name]
        for above in self._graph.all(thing, words.SUBCLASS):
            if isinstance(above, Blank):
                self._restriction(name, concept, above)
            elif isinstance(above, Iri) and above in self._names and not concept.above:
                concept.above = self._names[above]
            else:
                shown = getattr(above, "value", "")
                if shown != words.OWL + "Thing":
                    self._note(f"{name!r} is also a <{shown}>; a concept has one general one")

    def _restriction(self, name: str, concept: Concept, node: Blank) -> None:
        on = next(self._graph.all(node, words.ON_PROPERTY), None)
        value = next(self._graph.all(node, words.HAS_VALUE), None)
        known = self._attributes.get(on) if isinstance(on, Iri) else None
        if known and isinstance(value, Text):
            kind = self.found.concepts[known[0][0]].attributes[known[0][1]]
            constant = _constant(value, kind)
            if constant is not None:
                concept.where[known[0][1]] = constant
                return
        self._note(f"a restriction of {name!r} other than `hasValue` of a known data property")

    # --- relationships ---

    def _relationship(self, thing: Iri) -> None:
        name = self._named(thing, _is_phrase)
        levels = [
            node.value for node in self._graph.all(thing, words.LEVEL) if isinstance(node, Text)
        ]
        if levels:
            self.found.containers[name] = levels
            return
        function = self._graph.text(thing, words.FUNCTION)
        first = self._end(thing, words.FIRST_ATTRIBUTE)
        second = self._end(thing, words.SECOND_ATTRIBUTE)
        if function and first and second:
            self.found.relationships.setdefault(name, []).append((first, second, function))
            return
        pairs = [
            (one, other)
            for one in self._concepts_of(thing, words.DOMAIN)
            for other in self._concepts_of(thing, words.RANGE)
        ]
        if pairs:
            self.found.undecided.setdefault(name, []).extend(pairs)
            self._note(f"the relationship {name!r} has no function: name attributes and a function")
        else:
            self._note(f"the object property {name!r} (<{thing.value}>) joins no two classes")

    def _end(self, thing: Iri, predicate: Iri) -> str:
        """`concept.attribute`; the identity of a concept has no property of its own."""
        node = next(self._graph.all(thing, predicate), None)
        if not isinstance(node, Iri):
            return ""
        if node in self._attributes:
            return ".".join(self._attributes[node][0])
        concept, _, last = node.value.rpartition(".")
        return (
            f"{self._names[Iri(concept)]}.id"
            if last == "id" and Iri(concept) in self._names
            else ""
        )

    def _leftovers(self) -> None:
        """What is said of the things that were taken in, in words that we do not have."""
        counted: Counter[str] = Counter()
        for subject in self._graph.subjects():
            kinds = set(self._graph.all(subject, words.TYPE))
            if isinstance(subject, Iri) and subject in self._names:
                for predicate, _node in self._graph.about(subject):
                    counted[predicate.value] += predicate not in _UNDERSTOOD
            elif kinds and not kinds & _EXPECTED:
                counted[f"a thing of type {min(getattr(kind, 'value', '') for kind in kinds)}"] += 1
        self.found.notes += [f"{name} ({count} x)" for name, count in counted.items() if count]


_EXPECTED = {
    *(words.CLASS, words.DATATYPE_PROPERTY, words.OBJECT_PROPERTY, words.RESTRICTION),
    *(Iri(words.OWL + "Ontology"), Iri(words.RDFS + "Datatype"), Iri(words.RDFS + "Class")),
}


def _is_phrase(name: str) -> bool:
    said = name.split()
    said = said[:-1] if len(said) > 1 and said[-1].casefold() == "of" else said
    return bool(said) and all(is_name(word) for word in said)


def _made_fit(name: str) -> str:
    """A name that a policy can write: others' letters as `_`, one before a digit or a keyword."""
    fit = re.sub(r"[^\w-]+", "_", name).strip("_-") or "thing"
    fit = re.sub(r"-{2,}", "-", fit)
    return fit if is_name(fit) else f"the_{fit}"


def _constant(value: Text, kind: AttributeType) -> str | float | bool | None:
    if kind == "text":
        return value.value
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(value.value)
    try:
        number = float(value.value) if kind == "number" else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
