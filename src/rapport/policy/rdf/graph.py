"""Triples: what Turtle and RDF/XML say, and the names of the vocabularies we understand. [PO-1]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDFS = "http://www.w3.org/2000/01/rdf-schema#"
OWL = "http://www.w3.org/2002/07/owl#"
XSD = "http://www.w3.org/2001/XMLSchema#"
TERMS = "urn:rapport:terms:"
"""What OWL has no word for: units, functions, points and rectangles."""
PREFIXES = {"rdf": RDF, "rdfs": RDFS, "owl": OWL, "xsd": XSD, "rapport": TERMS}


class Iri(msgspec.Struct, frozen=True, order=True):
    """A thing with a name of its own."""

    value: str


class Blank(msgspec.Struct, frozen=True, order=True):
    """A thing without one; the label holds within its file only."""

    label: str


class Text(msgspec.Struct, frozen=True, order=True):
    """A literal."""

    value: str
    datatype: str = XSD + "string"
    language: str = ""


Subject = Iri | Blank
Node = Iri | Blank | Text

TYPE = Iri(RDF + "type")
FIRST, REST, NIL = Iri(RDF + "first"), Iri(RDF + "rest"), Iri(RDF + "nil")
LABEL, DOMAIN, RANGE = Iri(RDFS + "label"), Iri(RDFS + "domain"), Iri(RDFS + "range")
SUBCLASS = Iri(RDFS + "subClassOf")
CLASS, UNION = Iri(OWL + "Class"), Iri(OWL + "unionOf")
RESTRICTION, ON_PROPERTY = Iri(OWL + "Restriction"), Iri(OWL + "onProperty")
HAS_VALUE = Iri(OWL + "hasValue")
DATATYPE_PROPERTY, OBJECT_PROPERTY = Iri(OWL + "DatatypeProperty"), Iri(OWL + "ObjectProperty")
UNIT, FUNCTION = Iri(TERMS + "unit"), Iri(TERMS + "function")
FIRST_ATTRIBUTE, SECOND_ATTRIBUTE = Iri(TERMS + "firstAttribute"), Iri(TERMS + "secondAttribute")
LEVEL = Iri(TERMS + "level")


class Graph:
    """Triples in the order in which they were said, found by subject."""

    def __init__(self, triples: Iterable[tuple[Subject, Iri, Node]] = ()) -> None:
        self._said: dict[Subject, list[tuple[Iri, Node]]] = {}
        for subject, predicate, node in triples:
            self.add(subject, predicate, node)

    def add(self, subject: Subject, predicate: Iri, node: Node) -> None:
        """Says it once more, if need be."""
        self._said.setdefault(subject, []).append((predicate, node))

    def subjects(self) -> list[Subject]:
        """Everything something is said of."""
        return list(self._said)

    def about(self, subject: Subject) -> list[tuple[Iri, Node]]:
        """All that is said of it."""
        return self._said.get(subject, [])

    def all(self, subject: Subject, predicate: Iri) -> Iterator[Node]:
        """The values of one predicate."""
        return (node for said, node in self.about(subject) if said == predicate)

    def text(self, subject: Subject, predicate: Iri) -> str:
        """The first literal of a predicate, empty without one; plain or English ones first."""
        found = [node for node in self.all(subject, predicate) if isinstance(node, Text)]
        found.sort(key=lambda text: (text.language not in ("", "en"), text.language != ""))
        return found[0].value if found else ""

    def of_type(self, kind: Iri) -> list[Iri]:
        """The named things of a type."""
        return [
            subject
            for subject in self._said
            if isinstance(subject, Iri) and kind in self.all(subject, TYPE)
        ]

    def members(self, head: Node) -> list[Node]:
        """The members of a list; those found so far when it is torn or bites its tail."""
        found: list[Node] = []
        seen: set[Node] = set()
        while isinstance(head, Iri | Blank) and head != NIL and head not in seen:
            seen.add(head)
            found.extend(self.all(head, FIRST))
            head = next(self.all(head, REST), NIL)
        return found


def add_list(graph: Graph, members: list[Node], label: str) -> Subject:
    """A list of nodes; returns its head."""
    for index, member in enumerate(members):
        last = index + 1 == len(members)
        graph.add(Blank(f"{label}.{index}"), FIRST, member)
        graph.add(Blank(f"{label}.{index}"), REST, NIL if last else Blank(f"{label}.{index + 1}"))
    return Blank(f"{label}.0") if members else NIL
