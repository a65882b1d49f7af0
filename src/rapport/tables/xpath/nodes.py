"""An XML document as XPath sees it: elements, attributes and texts in document order. [PO-2]

Read safely: a document type is refused, so no entity is ever declared, expanded or fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers import expat

from rapport.core.errors import Problem, SiteError

MOST_BYTES = 256 * 1024 * 1024
_MOST_NESTED = 200


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
    if len(data) > MOST_BYTES:
        message = f"the document is larger than {MOST_BYTES >> 20} MiB"
        raise _refused(name, 0, "tables.too_large", message, "split it into several tables")
    parser = ElementTree.XMLParser(target=_Strict(), encoding=None)
    try:
        parser.feed(data)
        return Document(parser.close())
    except _Doctype:
        hint = "leave out <!DOCTYPE ...>: entities are never expanded or fetched"
        line = _line_of_doctype(data)
        message = "a document type is declared"
        raise _refused(name, line, "tables.doctype_refused", message, hint) from None
    except _TooDeep:
        message = f"elements stand more than {_MOST_NESTED} levels deep"
        raise _refused(name, 0, "tables.bad_xml", message, "a flatter document is needed") from None
    except ElementTree.ParseError as error:
        line = error.position[0]
        message = f"the file is not XML: {expat.ErrorString(error.code) or error}"
        hint = "it needs one root element, closed tags and escaped & and <"
        raise _refused(name, line, "tables.bad_xml", message, hint) from None
    except (ValueError, LookupError) as error:  # an encoding that Python does not read
        message = f"the encoding is not read: {str(error)[:100]}"
        raise _refused(name, 1, "tables.bad_xml", message, "save it as UTF-8") from None


def line_of_element(data: bytes, place: int) -> int:
    """The line in which the element at this place of document order begins; reads it all again, so
    it is for faults only."""
    parser = expat.ParserCreate()
    lines: list[int] = []

    def start(_name: str, _attributes: dict[str, str]) -> None:
        if len(lines) <= place:
            lines.append(parser.CurrentLineNumber)

    parser.StartElementHandler = start
    parser.Parse(data, True)
    return lines[place]


class _Doctype(Exception):
    """A document type was declared."""


class _TooDeep(Exception):
    """Too many elements within each other."""


class _Strict(ElementTree.TreeBuilder):
    """Builds the tree; stops before the first declaration of a document type is read."""

    _open = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._open += 1
        if self._open > _MOST_NESTED:
            raise _TooDeep
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._open -= 1
        return super().end(tag)

    def doctype(self, _name: str, _public: str | None, _system: str | None) -> None:
        raise _Doctype


def _line_of_doctype(data: bytes) -> int:
    at = data.find(b"<!DOCTYPE")
    return data[: max(at, 0)].count(b"\n") + 1


def _refused(name: str, line: int, code: str, message: str, hint: str) -> SiteError:
    return SiteError([Problem(file=name, line=line, code=code, message=message, hint=hint)])
