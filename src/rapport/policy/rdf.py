"""Exchanges ontologies with other tools as OWL, in Turtle or RDF/XML. [PO-1]

Export: concepts become classes, attributes data properties and relationships object properties.
Import: a graph becomes the ontology tables of a site file, for a person to edit. Both list
everything that has no counterpart on the other side. Needs the extra `rdf` (rdflib).
"""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from typing import Literal as OneOf
from urllib.parse import quote, unquote

import msgspec

from rapport.core.errors import (
    InvalidInput,
    Problem,
    RapportError,
    Unsupported,
    excerpt_with_caret,
)
from rapport.core.schema import AttributeType
from rapport.core.xml import parse_xml
from rapport.policy.language.lexer import is_name
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Constraint
from rapport.units.quantities import unit_named

try:
    from rdflib import BNode, Graph, Literal, Namespace, URIRef
    from rdflib.exceptions import ParserError
    from rdflib.namespace import OWL, RDF, RDFS, XSD
    from rdflib.plugins.parsers.notation3 import BadSyntax
    from rdflib.plugins.serializers.turtle import TurtleSerializer
    from rdflib.term import Node
except ModuleNotFoundError:
    raise Unsupported(
        "exchanging ontologies as OWL", "this installation", hint="pip install 'rapport[rdf]'"
    ) from None

GraphFormat = OneOf["turtle", "rdfxml"]

MAX_BYTES = 16 * 1024 * 1024
DEFAULT_BASE = "urn:rapport:site:"
TERMS = Namespace("urn:rapport:terms:")
"""Names for what OWL cannot express: units, functions, points and rectangles."""
_FIRST_ATTRIBUTE, _SECOND_ATTRIBUTE = TERMS.firstAttribute, TERMS.secondAttribute
_RANGES: dict[AttributeType, URIRef] = {
    "text": XSD.string,
    "number": XSD.double,
    "boolean": XSD.boolean,
    "point": TERMS.Point,
    "rectangle": TERMS.Rectangle,
    "area": TERMS.Area,
    "geo_point": TERMS.GeoPoint,
    "geo_area": TERMS.GeoArea,
}
_NUMBERS = (
    *("integer", "decimal", "double", "float", "int", "long", "short", "byte"),
    *("nonNegativeInteger", "positiveInteger", "nonPositiveInteger", "negativeInteger"),
    *("unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"),
)
_TEXTS = ("string", "normalizedString", "token", "anyURI", "language", "Name", "NCName")
_TYPES: dict[Node, AttributeType] = {
    **{URIRef(f"{XSD}{name}"): "number" for name in _NUMBERS},
    **{URIRef(f"{XSD}{name}"): "text" for name in _TEXTS},
    XSD.boolean: "boolean",
    RDF.langString: "text",
    RDFS.Literal: "text",
    TERMS.Point: "point",
    TERMS.Rectangle: "rectangle",
    TERMS.Area: "area",
    TERMS.GeoPoint: "geo_point",
    TERMS.GeoArea: "geo_area",
}
_UNDERSTOOD = {
    *(RDF.type, RDFS.label, RDFS.domain, RDFS.range, RDFS.subClassOf, RDFS.comment, OWL.unionOf),
    *(TERMS.unit, TERMS.function, TERMS.level, _FIRST_ATTRIBUTE, _SECOND_ATTRIBUTE),
}
_EXPECTED_TYPES: set[Node] = {
    *(OWL.Class, OWL.DatatypeProperty, OWL.ObjectProperty, OWL.Restriction, OWL.Ontology),
    *(RDFS.Datatype, RDFS.Class),
}
_BASE = "http://base.invalid/"
"""Relative addresses of a file without a base are below this one."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


# --- text and graph ---


class GraphSyntaxError(InvalidInput):
    """A text that is not Turtle; the problem has line and column."""

    code = "rdf.bad_turtle"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.as_text(), code=problem.code)
        self.problem = problem

    def problems_found(self) -> tuple[Problem, ...]:
        return (self.problem,)


def _ordered_graph() -> Graph:
    """A graph that lists its statements in the order in which they were added."""
    return Graph(store="SimpleMemory")


def write_graph(graph: Graph, format: GraphFormat, *, base: str = DEFAULT_BASE) -> str:
    """Serializes the graph; in Turtle, names below `base` get the empty prefix."""
    if format == "rdfxml":
        return graph.serialize(format="xml")
    graph.bind("", base, replace=True)
    written = io.BytesIO()
    _OrderedTurtle(graph).serialize(written)
    return written.getvalue().decode()


class _OrderedTurtle(TurtleSerializer):
    """Writes statements in the order of the graph: names of relationships depend on it."""

    def orderSubjects(self) -> list[Any]:
        return list(dict.fromkeys(self.store.subjects()))

    def sortProperties(self, properties: Mapping[Any, list[Node]]) -> list[Any]:
        return list(properties)


def read_rdfxml(data: bytes) -> Graph:
    """Parses RDF/XML; raises InvalidInput. Document types and entities are refused."""
    root, graph = parse_xml(data), _ordered_graph()
    hint = "save the ontology as Turtle, which can express the same"
    if not root.namespace:
        message = f"<{root.name}>: an element of RDF/XML has a namespace"
        raise InvalidInput(message, code="rdf.bad_rdfxml", hint=hint)
    try:
        graph.parse(data=data, format="xml", publicID=_BASE)
    except (ParserError, ValueError, RecursionError) as error:
        raise InvalidInput(_first_line(error), code="rdf.bad_rdfxml", hint=hint) from None
    return graph


def read_turtle(text: str, *, name: str = "") -> Graph:
    """Parses Turtle or N-Triples up to 16 MiB; raises GraphSyntaxError with line and column."""
    if len(text) > MAX_BYTES:
        raise _turtle_error(text[:200], name, 0, "the file is larger than 16 MiB")
    graph = _ordered_graph()
    try:
        graph.parse(data=text, format="turtle", publicID=_BASE)
    except BadSyntax as error:
        raise _turtle_error(text, name, error._i, str(error._why)) from None
    except RecursionError:
        raise _turtle_error(text, name, 0, "brackets are nested too deep") from None
    except IndexError:
        raise _turtle_error(text, name, len(text), "the file ends within a statement") from None
    except Exception as error:  # rdflib raises several kinds for text that is not Turtle
        raise _turtle_error(text, name, 0, _first_line(error)) from None
    return graph


def _turtle_error(text: str, name: str, offset: int, message: str) -> GraphSyntaxError:
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return GraphSyntaxError(
        Problem(
            file=name,
            line=line,
            column=column,
            code="rdf.bad_turtle",
            message=message,
            hint="the file must be Turtle; RDF/XML is read from files that end in .rdf or .owl",
            excerpt=excerpt_with_caret(text[: offset + 200], line, column),
        )
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# --- export ---


def to_graph(ontology: Ontology, base: str = DEFAULT_BASE) -> tuple[Graph, list[str]]:
    """The ontology as a graph, and descriptions of the parts that are not in it."""
    exporter = _Exporter(ontology, base)
    exporter.add_concepts()
    exporter.add_kinds_and_groups()
    exporter.add_relationships()
    left_out = [f"the function {name!r} (a number, no relationship)" for name in ontology.functions]
    left_out += [f"the source {name!r} (events are no part of OWL)" for name in ontology.sources]
    return exporter.graph, left_out


class _Exporter:
    def __init__(self, ontology: Ontology, base: str) -> None:
        self._ontology, self._base, self._blanks = ontology, base, 0
        self.graph = _ordered_graph()
        self.graph.bind("rapport", TERMS)
        self.graph.add((URIRef(base.rstrip("#/:") or base), RDF.type, OWL.Ontology))
        used = {kind for own in ontology.concepts.values() for kind in own.values()}
        places: tuple[AttributeType, ...] = ("area", "geo_point", "geo_area")
        for kind in ("point", "rectangle", *(one for one in places if one in used)):
            self.graph.add((_RANGES[kind], RDF.type, RDFS.Datatype))

    def add_concepts(self) -> None:
        for concept, attributes in self._ontology.concepts.items():
            self._named(self._iri(concept), OWL.Class, concept)
            units = self._ontology.units.get(concept, {})
            for attribute, kind in attributes.items():
                thing = self._iri(concept, attribute)
                self._named(thing, OWL.DatatypeProperty, attribute)
                self.graph.add((thing, RDFS.domain, self._iri(concept)))
                self.graph.add((thing, RDFS.range, _RANGES[kind]))
                if attribute in units:
                    self.graph.add((thing, TERMS.unit, Literal(units[attribute])))

    def add_kinds_and_groups(self) -> None:
        ontology = self._ontology
        for name, above in ontology.parents.items():
            kind, thing = ontology.kinds[name], self._iri(name)
            general = ontology.kinds.get(above)
            inherited = len(general.constraints) if general else 0
            self._named(thing, OWL.Class, name)
            self.graph.add((thing, RDFS.subClassOf, self._iri(above)))
            for constraint in kind.constraints[inherited:]:
                restriction = self._blank()
                on_property = self._iri(kind.concept, constraint.attribute)
                self.graph.add((thing, RDFS.subClassOf, restriction))
                self.graph.add((restriction, RDF.type, OWL.Restriction))
                self.graph.add((restriction, OWL.onProperty, on_property))
                self.graph.add((restriction, OWL.hasValue, self._value(kind.concept, constraint)))
        for name, members in ontology.groups.items():
            self._named(self._iri(name), OWL.Class, name)
            listed = self._list([self._iri(member) for member in members])
            self.graph.add((self._iri(name), OWL.unionOf, listed))

    def add_relationships(self) -> None:
        for relationship in self._ontology.relationships.values():
            if relationship.name in self._ontology.containers:
                continue  # expressed by its levels
            (first, _), (second, _) = relationship.first, relationship.second
            thing = self._iri(relationship.name, first, second)
            self._named(thing, OWL.ObjectProperty, relationship.name)
            self.graph.add((thing, RDFS.domain, self._iri(first)))
            self.graph.add((thing, RDFS.range, self._iri(second)))
            self.graph.add((thing, TERMS.function, Literal(relationship.function)))
            self.graph.add((thing, _FIRST_ATTRIBUTE, self._iri(*relationship.first)))
            self.graph.add((thing, _SECOND_ATTRIBUTE, self._iri(*relationship.second)))
        for name, links in self._ontology.containers.items():
            thing = self._iri(name, "levels")
            self._named(thing, OWL.ObjectProperty, name)
            for link in links:
                level = f"{link.inner}.{link.attribute} in {link.outer}"
                self.graph.add((thing, TERMS.level, Literal(level)))

    def _iri(self, *names: str) -> URIRef:
        return URIRef(self._base + ".".join(quote(name, safe="") for name in names))

    def _named(self, thing: URIRef, kind: URIRef, name: str) -> None:
        self.graph.add((thing, RDF.type, kind))
        self.graph.add((thing, RDFS.label, Literal(name)))

    def _blank(self) -> BNode:
        """A blank node with a counted label, so that equal ontologies give equal files."""
        self._blanks += 1
        return BNode(f"b{self._blanks}")

    def _list(self, members: Sequence[URIRef]) -> URIRef | BNode:
        head: URIRef | BNode = RDF.nil
        for member in reversed(members):
            rest, head = head, self._blank()
            self.graph.add((head, RDF.first, member))
            self.graph.add((head, RDF.rest, rest))
        return head

    def _value(self, concept: str, constraint: Constraint) -> Literal:
        kind = self._ontology.concepts[concept][constraint.attribute]
        if kind == "boolean":
            return Literal("true" if constraint.value else "false", datatype=XSD.boolean)
        if kind == "number":
            return Literal(repr(constraint.value), datatype=XSD.double)
        return Literal(str(constraint.value))


# --- import ---


class ImportedConcept(msgspec.Struct):
    """The content of `[concepts.X]`."""

    attributes: dict[str, AttributeType] = msgspec.field(default_factory=dict)
    units: dict[str, str] = msgspec.field(default_factory=dict)
    above: str = ""
    where: dict[str, str | float | bool] = msgspec.field(default_factory=dict)


class ImportedOntology(msgspec.Struct):
    """The part of a graph that a site file can express."""

    concepts: dict[str, ImportedConcept] = msgspec.field(default_factory=dict)
    groups: dict[str, list[str]] = msgspec.field(default_factory=dict)
    relationships: dict[str, list[tuple[str, str, str]]] = msgspec.field(default_factory=dict)
    """By name (first end, second end, function)."""
    undecided: dict[str, list[tuple[str, str]]] = msgspec.field(default_factory=dict)
    """Relationships without a function: (first concept, second concept)."""
    containers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)
    """Descriptions of everything that did not fit."""


def from_graph(graph: Graph) -> ImportedOntology:
    """Classes, properties and unions as concepts, attributes, relationships and groups."""
    return _Importer(graph).result


class _Importer:
    """One pass over one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self.result = graph, ImportedOntology()
        self._names: dict[Node, str] = {}
        self._attributes: dict[Node, list[tuple[str, str]]] = {}
        for thing in dict.fromkeys([*self._of_type(OWL.Class), *self._of_type(RDFS.Class)]):
            self._class(thing)
        for thing in self._of_type(OWL.DatatypeProperty):
            self._attribute(thing)
        for node, name in self._names.items():
            self._structure(node, name)
        for thing in self._of_type(OWL.ObjectProperty):
            self._relationship(thing)
        self._note_leftovers()

    def _note(self, text: str) -> None:
        self.result.notes.append(text)

    # --- the graph ---

    def _of_type(self, kind: Node) -> list[URIRef]:
        return [node for node in self._graph.subjects(RDF.type, kind) if isinstance(node, URIRef)]

    def _text(self, thing: Node, predicate: Node) -> str:
        """The first literal, empty without one; without a language or in English first."""
        found = [one for one in self._graph.objects(thing, predicate) if isinstance(one, Literal)]
        found.sort(key=lambda one: (one.language not in (None, "en"), one.language is not None))
        return str(found[0]) if found else ""

    def _members(self, head: Node) -> Iterator[Node]:
        """The members of a list; ends where the list is broken or returns to itself."""
        seen: set[Node] = set()
        while head != RDF.nil and head not in seen:
            seen.add(head)
            yield from self._graph.objects(head, RDF.first)
            head = next(self._graph.objects(head, RDF.rest), RDF.nil)

    def _union(self, node: Node) -> list[Node]:
        heads = self._graph.objects(node, OWL.unionOf)
        return [member for head in heads for member in self._members(head)]

    # --- names and attributes ---

    def _named(self, thing: URIRef, fits: Callable[[str], bool]) -> str:
        """The label if a policy can contain it, else the last part of the address made fit."""
        label = self._text(thing, RDFS.label)
        if fits(label):
            return label
        local = unquote(re.split(r"[#/:]", str(thing).rstrip("#/:"))[-1])
        name = local if fits(local) else _fitting_name(local)
        if name != local:
            self._note(f"<{thing}> is called {name!r}: its own name cannot stand in a policy")
        return name

    def _class(self, thing: URIRef) -> None:
        name = self._named(thing, is_name)
        if name in self._names.values():
            taken, number = name, 2
            while name in self._names.values():
                name, number = f"{taken}-{number}", number + 1
            self._note(f"<{thing}> is called {name!r}: there is another {taken!r}")
        self._names[thing] = name
        if (thing, OWL.unionOf, None) in self._graph:
            self.result.groups[name] = []
        else:
            self.result.concepts[name] = ImportedConcept()

    def _attribute(self, thing: URIRef) -> None:
        name = self._named(thing, is_name)
        concepts = self._concepts_of(thing, RDFS.domain)
        ranges = [one for one in self._graph.objects(thing, RDFS.range) if isinstance(one, URIRef)]
        kind = _TYPES.get(ranges[0]) if len(ranges) == 1 else None
        if not concepts or kind is None or name == "id":
            reason = "no class as its domain" if not concepts else "no type that we have"
            reason = "the name of the identity" if name == "id" else reason
            self._note(f"the data property {name!r} (<{thing}>) has {reason}")
            return
        for concept in concepts:
            known = self.result.concepts[concept].attributes.setdefault(name, kind)
            if known != kind:
                self._note(f"{concept}.{name} is a {known} and a {kind}; it is taken as a {known}")
            else:
                self._attributes.setdefault(thing, []).append((concept, name))
                self._unit(thing, concept, name, kind)

    def _unit(self, thing: URIRef, concept: str, name: str, kind: str) -> None:
        unit = self._text(thing, TERMS.unit)
        if not unit:
            return
        try:
            symbol = unit_named(unit).symbol
        except RapportError:
            symbol = ""
        if symbol and kind == "number":
            self.result.concepts[concept].units[name] = symbol
        else:
            self._note(f"the unit {unit!r} of {concept}.{name}")

    def _concepts_of(self, thing: URIRef, predicate: URIRef) -> list[str]:
        """The concepts that a domain or range names, directly or as a union."""
        found: dict[str, None] = {}
        for node in self._graph.objects(thing, predicate):
            for member in self._union(node) if isinstance(node, BNode) else [node]:
                name = self._names.get(member)
                if name is not None and name in self.result.concepts:
                    found[name] = None
        return list(found)

    # --- structure ---

    def _structure(self, thing: Node, name: str) -> None:
        if name in self.result.groups:
            for member in self._union(thing):
                if member in self._names:
                    self.result.groups[name].append(self._names[member])
                else:
                    self._note(f"a member of {name!r} that is no class")
            return
        concept = self.result.concepts[name]
        for above in self._graph.objects(thing, RDFS.subClassOf):
            if isinstance(above, BNode):
                self._restriction(name, concept, above)
            elif above in self._names and not concept.above:
                concept.above = self._names[above]
            elif above != OWL.Thing:
                self._note(f"{name!r} is also a <{above}>; a concept has one general one")

    def _restriction(self, name: str, concept: ImportedConcept, node: BNode) -> None:
        on_property = self._graph.value(node, OWL.onProperty)
        value = self._graph.value(node, OWL.hasValue)
        known = self._attributes.get(on_property) if on_property is not None else None
        if known and isinstance(value, Literal):
            of, attribute = known[0]
            constant = _constant(str(value), self.result.concepts[of].attributes[attribute])
            if constant is not None:
                concept.where[attribute] = constant
                return
        self._note(f"a restriction of {name!r} other than `hasValue` of a known data property")

    # --- relationships ---

    def _relationship(self, thing: URIRef) -> None:
        name = self._named(thing, _is_phrase)
        levels = [str(node) for node in self._graph.objects(thing, TERMS.level)]
        if levels:
            self.result.containers[name] = levels
            return
        function = self._text(thing, TERMS.function)
        first, second = self._end(thing, _FIRST_ATTRIBUTE), self._end(thing, _SECOND_ATTRIBUTE)
        if function and first and second:
            self.result.relationships.setdefault(name, []).append((first, second, function))
            return
        pairs = [
            (one, other)
            for one in self._concepts_of(thing, RDFS.domain)
            for other in self._concepts_of(thing, RDFS.range)
        ]
        if pairs:
            self.result.undecided.setdefault(name, []).extend(pairs)
            self._note(f"the relationship {name!r} has no function: name attributes and a function")
        else:
            self._note(f"the object property {name!r} (<{thing}>) joins no two classes")

    def _end(self, thing: URIRef, predicate: URIRef) -> str:
        """`concept.attribute`; the identity of a concept has no property of its own."""
        node = self._graph.value(thing, predicate)
        if node is None:
            return ""
        if node in self._attributes:
            return ".".join(self._attributes[node][0])
        concept, _, last = str(node).rpartition(".")
        name = self._names.get(URIRef(concept))
        return f"{name}.id" if last == "id" and name is not None else ""

    def _note_leftovers(self) -> None:
        """Counts the statements about imported things that use unknown predicates or types."""
        counted: Counter[str] = Counter()
        for subject in dict.fromkeys(self._graph.subjects()):
            kinds = set(self._graph.objects(subject, RDF.type))
            if subject in self._names:
                for predicate in self._graph.predicates(subject):
                    counted[str(predicate)] += predicate not in _UNDERSTOOD
            elif kinds and not kinds & _EXPECTED_TYPES:
                counted[f"a thing of type {min(str(kind) for kind in kinds)}"] += 1
        self.result.notes += [f"{name} ({count} x)" for name, count in counted.items() if count]


def _is_phrase(name: str) -> bool:
    words = name.split()
    words = words[:-1] if len(words) > 1 and words[-1].casefold() == "of" else words
    return bool(words) and all(is_name(word) for word in words)


def _fitting_name(name: str) -> str:
    """A name that a policy can contain: other characters become `_`."""
    fit = re.sub(r"[^\w-]+", "_", name).strip("_-") or "thing"
    fit = re.sub(r"-{2,}", "-", fit)
    return fit if is_name(fit) else f"the_{fit}"


def _constant(value: str, kind: AttributeType) -> str | float | bool | None:
    if kind == "text":
        return value
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(value)
    try:
        number = float(value) if kind == "number" else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# --- site file ---


def site_text(found: ImportedOntology) -> str:
    """The tables for `site.toml`; comments mark what a person must add."""
    blocks = [*_concept_blocks(found), *_relationship_blocks(found)]
    blocks[len(found.concepts) : len(found.concepts)] = [
        f"[groups.{_key(name)}]\nof = {_list(members)}" for name, members in found.groups.items()
    ]
    blocks += [
        f"[containers.{_key(name)}]\nof = {_list(levels)}"
        for name, levels in found.containers.items()
    ]
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _key(name: str) -> str:
    return name if _BARE_KEY.match(name) else _value_text(name)


def _value_text(value: object) -> str:
    """A TOML value: JSON strings are TOML strings except for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(values: list[str]) -> str:
    return f"[{', '.join(_value_text(value) for value in values)}]"


def _concept_blocks(found: ImportedOntology) -> Iterator[str]:
    for name, concept in found.concepts.items():
        lines: list[str] = []
        if concept.above:
            lines += [f"[concepts.{_key(name)}]", f"is = {_value_text(concept.above)}"]
            where = ", ".join(f"{_key(key)} = {_value_text(v)}" for key, v in concept.where.items())
            missing = f"# say which {concept.above} is one: where = {{ ... }}"
            lines.append(f"where = {{ {where} }}" if where else missing)
        if concept.attributes or not concept.above:
            lines.append(f"[concepts.{_key(name)}.attributes]")
            lines += [f"{_key(k)} = {_value_text(kind)}" for k, kind in concept.attributes.items()]
        if concept.units:
            lines.append(f"[concepts.{_key(name)}.units]")
            lines += [f"{_key(k)} = {_value_text(unit)}" for k, unit in concept.units.items()]
        yield "\n".join(lines)


def _relationship_blocks(found: ImportedOntology) -> Iterator[str]:
    for name, variants in found.relationships.items():
        firsts = list(dict.fromkeys(first for first, _, _ in variants))
        seconds = list(dict.fromkeys(second for _, second, _ in variants))
        lines = [f"[relationships.{_key(name)}]"]
        lines.append(f"between = [{_ends(firsts)}, {_ends(seconds)}]")
        lines.append(f"function = {_value_text(variants[0][2])}")
        if len(variants) != len(firsts) * len(seconds) or len({one[2] for one in variants}) > 1:
            lines.append("# joins more pairs than the file had, or had several functions: look")
        yield "\n".join(lines)
    for name, pairs in found.undecided.items():
        shown = ", ".join(f"{one} and {other}" for one, other in pairs)
        yield (
            f"# [relationships.{_key(name)}]  # {shown}: by which attributes, which function?\n"
            f'# between = ["{pairs[0][0]}.", "{pairs[0][1]}."]\n# function = ""'
        )


def _ends(ends: list[str]) -> str:
    return _value_text(ends[0]) if len(ends) == 1 else _list(ends)
