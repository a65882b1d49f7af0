"""An XML document as XPath sees it: elements, attributes and texts in document order. [PO-2]

Read safely: a document type is refused, so no entity is ever declared, expanded or fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec

from rapport.core.errors import SiteError
from rapport.core.xml import XmlError, XmlLimits, XmlReader, XmlVisitor, read_xml

MOST_BYTES = 256 * 1024 * 1024
_LIMITS = XmlLimits(bytes=MOST_BYTES, depth=200, parts=20_000_000)
_CODES = {"xml.doctype_refused": "tables.doctype_refused", "xml.too_large": "tables.too_large"}


class Attribute(NamedTuple):
    """An attribute of an element; `name` may have the form `{namespace}local`."""

    owner: Element
    name: str


class Text(NamedTuple):
    """Characters directly in an element: before its first child, or behind the child `slot`."""

    owner: Element
    slot: int


class Document:
    """The root node; knows parents and order, which are found out when first needed."""

    def __init__(self, root: Element) -> None:
        self.root = root

    @cached_property
    def parents(self) -> dict[Element, Element]:
        """Of every element but the first the one around it."""
        return {child: parent for parent in self.root.iter() for child in parent}

    @cached_property
    def order(self) -> dict[Element, int]:
        """Places of elements in the document, from 0."""
        return {element: place for place, element in enumerate(self.root.iter())}

    def place(self, node: Node) -> tuple[int, int, int]:
        """What nodes are sorted by."""
        if isinstance(node, Document):
            return -1, 0, 0
        if isinstance(node, Attribute):
            return self.order[node.owner], 1, list(node.owner.attrib).index(node.name)
        if isinstance(node, Text):
            return self._place_of_text(node)
        return self.order[node], 0, 0

    def _place_of_text(self, node: Text) -> tuple[int, int, int]:
        if node.slot == 0:
            return self.order[node.owner], 2, 0
        last, inner = node.owner[node.slot - 1], 0
        while len(last):
            last, inner = last[-1], inner + 1
        return self.order[last], 3, inner


Node = Element | Attribute | Text | Document


def string_of(node: Node) -> str:
    """The string value of a node, as the standard says."""
    if isinstance(node, Attribute):
        return node.owner.attrib[node.name]
    if isinstance(node, Text):
        return (node.owner.text if node.slot == 0 else node.owner[node.slot - 1].tail) or ""
    element = node.root if isinstance(node, Document) else node
    return "".join(element.itertext()) if len(element) else element.text or ""


def texts_in(element: Element) -> Iterator[Text]:
    """The texts directly within, in order; none is empty."""
    if element.text:
        yield Text(element, 0)
    for slot, child in enumerate(element, start=1):
        if child.tail:
            yield Text(element, slot)


def local_name(name: str) -> str:
    """The name without its namespace."""
    return name.rpartition("}")[2]


def read_document(data: bytes, *, name: str) -> Document:
    """The document in the data; raises SiteError with the line of its first fault.

    100 MB take some seconds and about ten times the memory.
    """
    visitor = _TreeVisitor()
    try:
        read_xml(data, visitor, _LIMITS)
    except XmlError as error:
        raise _refused(name, error) from None
    return Document(visitor.tree.close())


def line_of_element(data: bytes, place: int) -> int:
    """The line in which the element at this place of document order begins; reads it all again, so
    it is for faults only."""
    visitor = _LineVisitor(place)
    read_xml(data, visitor, _LIMITS)
    return visitor.line


class _TreeVisitor(XmlVisitor):
    """Builds the tree."""

    def __init__(self) -> None:
        self.tree = ElementTree.TreeBuilder()

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        """See XmlVisitor."""
        self.tree.start(reader.expanded(namespace, name), attributes)

    def end(self) -> None:
        """See XmlVisitor."""
        self.tree.end("")

    def text(self, text: str) -> None:
        """See XmlVisitor."""
        self.tree.data(text)


class _LineVisitor(XmlVisitor):
    """Finds the line of one element."""

    def __init__(self, place: int) -> None:
        self._left, self.line = place, 0

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        """See XmlVisitor."""
        if self._left == 0:
            self.line = reader.place[0]
        self._left -= 1


def _refused(name: str, error: XmlError) -> SiteError:
    (problem,) = error.problems_found()
    code = _CODES.get(error.code, "tables.bad_xml")
    return SiteError([msgspec.structs.replace(problem, file=name, code=code, column=0)])
