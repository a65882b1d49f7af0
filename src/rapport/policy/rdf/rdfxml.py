"""RDF/XML in and out: striped, with document types and entities refused as everywhere. [PO-1]"""

from __future__ import annotations

from typing import NoReturn
from urllib.parse import urljoin
from xml.sax.saxutils import escape, quoteattr

from rapport.core.errors import InvalidInput
from rapport.core.xml import XmlNode, parse_xml
from rapport.policy.rdf.graph import (
    PREFIXES,
    RDF,
    TYPE,
    XSD,
    Blank,
    Graph,
    Iri,
    Node,
    Subject,
    Text,
    add_list,
)

_XML = "{http://www.w3.org/XML/1998/namespace}"
_ABOUT, _ID, _NODE_ID = f"{{{RDF}}}about", f"{{{RDF}}}ID", f"{{{RDF}}}nodeID"
_RESOURCE, _DATATYPE = f"{{{RDF}}}resource", f"{{{RDF}}}datatype"
_PARSE_TYPE = f"{{{RDF}}}parseType"
_OF_SYNTAX = frozenset({_ABOUT, _ID, _NODE_ID, _RESOURCE, _DATATYPE, _PARSE_TYPE})


def write_rdfxml(graph: Graph) -> str:
    """The graph as one `rdf:Description` per thing; predicates must be of a known vocabulary."""
    spaces = "".join(f"\n    xmlns:{name}={quoteattr(at)}" for name, at in PREFIXES.items())
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<rdf:RDF{spaces}>"]
    for subject in graph.subjects():
        name = "rdf:about" if isinstance(subject, Iri) else "rdf:nodeID"
        lines.append(f"  <rdf:Description {name}={_quoted(subject)}>")
        lines += [f"    {_property(predicate, node)}" for predicate, node in graph.about(subject)]
        lines.append("  </rdf:Description>")
    return "\n".join([*lines, "</rdf:RDF>", ""])


def _quoted(node: Subject) -> str:
    if isinstance(node, Iri):
        return quoteattr(node.value)
    # Names of XML begin with a letter and know no `%`.
    return quoteattr("b-" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in node.label))


def _property(predicate: Iri, node: Node) -> str:
    name = next(
        f"{prefix}:{predicate.value[len(at) :]}"
        for prefix, at in PREFIXES.items()
        if predicate.value.startswith(at)
    )
    match node:
        case Iri():
            return f"<{name} rdf:resource={_quoted(node)}/>"
        case Blank():
            return f"<{name} rdf:nodeID={_quoted(node)}/>"
        case Text(value, datatype, language):
            kind = f" xml:lang={quoteattr(language)}" if language else ""
            if not language and datatype != XSD + "string":
                kind = f" rdf:datatype={quoteattr(datatype)}"
            return f"<{name}{kind}>{escape(value)}</{name}>"


def read_rdfxml(data: bytes, *, base: str = "") -> Graph:
    """The triples; raises XmlError for what is no safe XML, InvalidInput for what is no RDF."""
    reader = _Reader()
    root = parse_xml(data)
    base = root.attributes.get(f"{_XML}base", base)
    if (root.namespace, root.name) == (RDF, "RDF"):
        for child in root.children:
            reader.thing(child, base)
    else:
        reader.thing(root, base)
    return reader.graph


def _fail(node: XmlNode, message: str) -> NoReturn:
    hint = "save the ontology as Turtle, which says the same"
    raise InvalidInput(f"<{node.name}>: {message}", code="rdf.bad_rdfxml", hint=hint)


class _Reader:
    """Things and their properties in turn; as deep as XML may be."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._blanks = 0

    def thing(self, node: XmlNode, base: str) -> Subject:
        """An element that stands for a thing."""
        base = node.attributes.get(f"{_XML}base", base)
        subject = self._subject(node, base)
        if (node.namespace, node.name) != (RDF, "Description"):
            self.graph.add(subject, TYPE, self._name(node))
        self._attributes(subject, node, base)
        for child in node.children:
            self._said(subject, child, base)
        return subject

    def _subject(self, node: XmlNode, base: str) -> Subject:
        given = node.attributes
        if _ABOUT in given:
            return Iri(_joined(node, base, given[_ABOUT]))
        if _ID in given:
            return Iri(_joined(node, base, "#" + given[_ID]))
        return Blank(given[_NODE_ID]) if _NODE_ID in given else self._blank()

    def _blank(self) -> Blank:
        self._blanks += 1
        return Blank(f"[{self._blanks}]")

    def _name(self, node: XmlNode) -> Iri:
        if not node.namespace:
            _fail(node, "an element of RDF/XML has a namespace")
        return Iri(node.namespace + node.name)

    def _attributes(self, subject: Subject, node: XmlNode, base: str) -> None:
        """Properties that are written as attributes."""
        for key, value in node.attributes.items():
            if key in _OF_SYNTAX or key.startswith(_XML) or not key.startswith("{"):
                continue
            predicate = Iri(key[1:].replace("}", "", 1))
            said: Node = Iri(_joined(node, base, value)) if predicate == TYPE else Text(value)
            self.graph.add(subject, predicate, said)

    def _said(self, subject: Subject, node: XmlNode, base: str) -> None:
        base = node.attributes.get(f"{_XML}base", base)
        self.graph.add(subject, self._name(node), self._value(node, base))

    def _value(self, node: XmlNode, base: str) -> Node:
        given = node.attributes
        kind = given.get(_PARSE_TYPE, "")
        if kind == "Resource":
            blank = self._blank()
            for child in node.children:
                self._said(blank, child, base)
            return blank
        if kind == "Collection":
            members: list[Node] = [self.thing(child, base) for child in node.children]
            return add_list(self.graph, members, self._blank().label)
        if kind:
            _fail(node, f"parseType {kind!r} is not read")
        if _RESOURCE in given:
            return Iri(_joined(node, base, given[_RESOURCE]))
        if _NODE_ID in given:
            return Blank(given[_NODE_ID])
        if len(node.children) > 1:
            _fail(node, "a property has one value; say it once more for another")
        return self.thing(node.children[0], base) if node.children else self._text(node, base)

    def _text(self, node: XmlNode, base: str) -> Text:
        given = node.attributes
        if _DATATYPE in given:
            return Text(node.text, _joined(node, base, given[_DATATYPE]))
        if f"{_XML}lang" in given:
            return Text(node.text, RDF + "langString", given[f"{_XML}lang"].lower())
        return Text(node.text)


def _joined(node: XmlNode, base: str, address: str) -> str:
    try:
        # A name of ours (`urn:...`) has no path to join to, which urljoin leaves as it is.
        return urljoin(base, address) if base else address
    except ValueError:
        _fail(node, f"{address[:60]!r} is no address")
