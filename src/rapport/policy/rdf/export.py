"""An ontology as a graph: concepts are classes, attributes data properties, relationships object
properties. What OWL has no place for is named, not dropped in silence. [PO-1]
"""

from __future__ import annotations

from urllib.parse import quote

from rapport.core.schema import AttributeType
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Constraint
from rapport.policy.rdf.graph import (
    CLASS,
    DATATYPE_PROPERTY,
    DOMAIN,
    FIRST_ATTRIBUTE,
    FUNCTION,
    HAS_VALUE,
    LABEL,
    LEVEL,
    OBJECT_PROPERTY,
    ON_PROPERTY,
    OWL,
    RANGE,
    RDFS,
    RESTRICTION,
    SECOND_ATTRIBUTE,
    SUBCLASS,
    TERMS,
    TYPE,
    UNION,
    UNIT,
    XSD,
    Blank,
    Graph,
    Iri,
    Text,
    add_list,
)

DEFAULT_BASE = "urn:rapport:site:"
RANGES: dict[AttributeType, str] = {
    "text": XSD + "string",
    "number": XSD + "double",
    "boolean": XSD + "boolean",
    "point": TERMS + "Point",
    "rectangle": TERMS + "Rectangle",
}


def to_graph(ontology: Ontology, base: str = DEFAULT_BASE) -> tuple[Graph, list[str]]:
    """The graph, and in words what of the ontology is not in it."""
    graph = Graph()
    graph.add(Iri(base.rstrip("#/:") or base), TYPE, Iri(OWL + "Ontology"))
    for kind in ("point", "rectangle"):
        graph.add(Iri(RANGES[kind]), TYPE, Iri(RDFS + "Datatype"))
    _concepts(graph, ontology, base)
    _kinds(graph, ontology, base)
    _relationships(graph, ontology, base)
    return graph, _left_out(ontology)


def _iri(base: str, *names: str) -> Iri:
    return Iri(base + ".".join(quote(name, safe="") for name in names))


def _named(graph: Graph, thing: Iri, kind: Iri, name: str) -> None:
    graph.add(thing, TYPE, kind)
    graph.add(thing, LABEL, Text(name))


def _concepts(graph: Graph, ontology: Ontology, base: str) -> None:
    for concept, attributes in ontology.concepts.items():
        _named(graph, _iri(base, concept), CLASS, concept)
        for attribute, kind in attributes.items():
            thing = _iri(base, concept, attribute)
            _named(graph, thing, DATATYPE_PROPERTY, attribute)
            graph.add(thing, DOMAIN, _iri(base, concept))
            graph.add(thing, RANGE, Iri(RANGES[kind]))
            unit = ontology.units.get(concept, {}).get(attribute)
            if unit is not None:
                graph.add(thing, UNIT, Text(unit))


def _kinds(graph: Graph, ontology: Ontology, base: str) -> None:
    for name, above in ontology.parents.items():
        kind, thing = ontology.kinds[name], _iri(base, name)
        general = ontology.kinds.get(above)
        inherited = len(general.constraints) if general else 0
        _named(graph, thing, CLASS, name)
        graph.add(thing, SUBCLASS, _iri(base, above))
        for number, constraint in enumerate(kind.constraints[inherited:]):
            restriction = Blank(f"{quote(name)}.{number}")
            graph.add(thing, SUBCLASS, restriction)
            graph.add(restriction, TYPE, RESTRICTION)
            graph.add(restriction, ON_PROPERTY, _iri(base, kind.concept, constraint.attribute))
            graph.add(restriction, HAS_VALUE, _value(ontology, kind.concept, constraint))
    for name, members in ontology.groups.items():
        _named(graph, _iri(base, name), CLASS, name)
        nodes = [_iri(base, member) for member in members]
        graph.add(_iri(base, name), UNION, add_list(graph, [*nodes], f"{quote(name)}.of"))


def _value(ontology: Ontology, concept: str, constraint: Constraint) -> Text:
    kind = ontology.concepts[concept][constraint.attribute]
    if kind == "boolean":
        return Text("true" if constraint.value else "false", RANGES[kind])
    if kind == "number":
        return Text(repr(constraint.value), RANGES[kind])
    return Text(str(constraint.value))


def _relationships(graph: Graph, ontology: Ontology, base: str) -> None:
    for relationship in ontology.relationships.values():
        if relationship.name in ontology.containers:
            continue  # said by its levels
        (first, _), (second, _) = relationship.first, relationship.second
        thing = _iri(base, relationship.name, first, second)
        _named(graph, thing, OBJECT_PROPERTY, relationship.name)
        graph.add(thing, DOMAIN, _iri(base, first))
        graph.add(thing, RANGE, _iri(base, second))
        graph.add(thing, FUNCTION, Text(relationship.function))
        graph.add(thing, FIRST_ATTRIBUTE, _iri(base, *relationship.first))
        graph.add(thing, SECOND_ATTRIBUTE, _iri(base, *relationship.second))
    for name, links in ontology.containers.items():
        thing = _iri(base, name, "levels")
        _named(graph, thing, OBJECT_PROPERTY, name)
        for link in links:
            graph.add(thing, LEVEL, Text(f"{link.inner}.{link.attribute} in {link.outer}"))


def _left_out(ontology: Ontology) -> list[str]:
    found = [f"the function {name!r} (a number, no relationship)" for name in ontology.functions]
    found += [f"the source {name!r} (events are no part of OWL)" for name in ontology.sources]
    return found
