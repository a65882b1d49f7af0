"""XML from outside, read safely: no document types, no entities, nothing fetched, bounded in depth,
size and parts. Doors check payloads with `check_xml`; queries and SOAP read with `parse_xml`.
[CH-4, CH-12]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn
from xml.parsers import expat

import msgspec

from rapport.core.errors import InvalidInput, Problem

MAX_XML_BYTES = 16 * 1024 * 1024
MAX_XML_DEPTH = 100
"""Most elements within each other."""
MAX_XML_PARTS = 200_000
"""Most elements and attributes together: a node in memory is far larger than `<a/>`."""

_ENCODINGS = re.compile(
    r"(utf-?8|utf-?16(le|be)?|us-ascii|ascii|iso-8859-\d{1,2}|latin-?1|windows-125\d)\Z", re.I
)
_MISSING_ENTITY = 11  # expat's XML_ERROR_UNDEFINED_ENTITY
_NO_PREFIXES: Mapping[str, str] = {"xml": "http://www.w3.org/XML/1998/namespace"}


class XmlNode(msgspec.Struct, frozen=True):
    """One element. Content stands in document order; comments and processing instructions are left
    out, CDATA sections are text.
    """

    name: str
    """The local name."""
    namespace: str
    """Address of its namespace; empty when it has none."""
    attributes: Mapping[str, str]
    """By local name, `{namespace}name` for those with a prefix."""
    content: tuple[XmlNode | str, ...]
    prefixes: Mapping[str, str]
    """Namespaces in scope by prefix, "" for the default one: for values that are qualified names,
    such as `xsi:type="xsd:string"`. Neighbours share one mapping.
    """

    @property
    def children(self) -> tuple[XmlNode, ...]:
        """The elements directly within."""
        return tuple(part for part in self.content if isinstance(part, XmlNode))

    @property
    def text(self) -> str:
        """The characters directly within, joined, as they stand."""
        return "".join(part for part in self.content if isinstance(part, str))

    def child(self, name: str, namespace: str | None = None) -> XmlNode | None:
        """The first element directly within of that local name (and namespace, when given)."""
        for part in self.content:
            if not isinstance(part, XmlNode) or part.name != name:
                continue
            if namespace is None or part.namespace == namespace:
                return part
        return None


class XmlError(InvalidInput):
    """XML that is not accepted; `line` and `column` count from 1."""

    code = "xml.not_well_formed"

    def __init__(self, message: str, *, code: str, hint: str, line: int, column: int) -> None:
        super().__init__(f"{line}:{column}: {message}", code=code, hint=hint)
        self.line, self.column = line, column
        self._problem = Problem(line=line, column=column, code=code, message=message, hint=hint)

    def problems_found(self) -> tuple[Problem, ...]:
        """See RapportError."""
        return (self._problem,)


def check_xml(data: bytes | str) -> None:
    """Raises XmlError unless the data is one well-formed document within the limits.

    Codes: `xml.not_well_formed`, `xml.doctype_refused`, `xml.too_deep`, `xml.too_large`. Bytes are
    read in the encoding they declare (UTF-8 and UTF-16 need not), a text as it is. Costs one pass
    and no memory beyond it.
    """
    _Reader(data, builder=None).read()


def parse_xml(data: bytes | str) -> XmlNode:
    """The document's element; checked as by `check_xml`, raises the same."""
    builder = _Builder()
    _Reader(data, builder=builder).read()
    return builder.root


class _Builder:
    """Puts nodes together from the inside out."""

    root: XmlNode

    def __init__(self) -> None:
        self._open: list[tuple[str, Mapping[str, str], list[XmlNode | str]]] = []
        self._scopes: list[Mapping[str, str]] = [_NO_PREFIXES]
        self._declared: dict[str, str] = {}

    def declare(self, prefix: str | None, address: str | None) -> None:
        """A namespace that holds from the next element on."""
        self._declared[prefix or ""] = address or ""

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """An element begins."""
        scope = self._scopes[-1]
        if self._declared:
            scope = {**scope, **self._declared}
            self._declared = {}
        self._scopes.append(scope)
        self._open.append((name, attributes, []))

    def end(self) -> None:
        """The innermost element ends."""
        full_name, attributes, content = self._open.pop()
        namespace, _space, name = full_name.rpartition(" ")
        renamed = {_clark(key): value for key, value in attributes.items()}
        node = XmlNode(name, namespace, renamed, tuple(content), self._scopes.pop())
        if self._open:
            self._open[-1][2].append(node)
        else:
            self.root = node

    def text(self, text: str) -> None:
        """Characters within the innermost element."""
        self._open[-1][2].append(text)


def _clark(name: str) -> str:
    namespace, _space, local = name.rpartition(" ")
    return f"{{{namespace}}}{local}" if namespace else local


class _Reader:
    """One pass over one document."""

    def __init__(self, data: bytes | str, *, builder: _Builder | None) -> None:
        self._data, self._builder = data, builder
        self._depth = self._parts = 0
        parser = expat.ParserCreate(
            encoding="utf-8" if isinstance(data, str) else None, namespace_separator=" "
        )
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.EntityDeclHandler = self._refuse_doctype
        parser.ExternalEntityRefHandler = self._refuse_doctype
        if isinstance(data, bytes):
            parser.XmlDeclHandler = self._check_declaration
        if builder is not None:
            parser.buffer_text = True
            parser.StartNamespaceDeclHandler = builder.declare
            parser.CharacterDataHandler = builder.text
        self._parser = parser

    def read(self) -> None:
        """Reads all of it; raises XmlError at the first fault."""
        try:
            data = self._data.encode() if isinstance(self._data, str) else self._data
            if len(data) > MAX_XML_BYTES:
                self._fail(
                    "xml.too_large",
                    f"the document has {len(data)} bytes; {MAX_XML_BYTES} are allowed",
                    "send it in parts",
                )
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            raise _syntax_error(error) from None
        except UnicodeEncodeError as error:
            self._fail("xml.not_well_formed", f"halves of characters: {error.reason}", "")
        except (ValueError, LookupError) as error:  # what Python says to encodings it cannot read
            self._fail("xml.not_well_formed", f"the encoding is not read: {error}", "use UTF-8")
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Parser and handlers hold each other: cut, so that memory goes at once."""
        for handler in ("StartElement", "EndElement", "StartDoctypeDecl", "EntityDecl"):
            setattr(self._parser, f"{handler}Handler", None)
        self._parser.ExternalEntityRefHandler = self._parser.XmlDeclHandler = None
        self._parser.StartNamespaceDeclHandler = self._parser.CharacterDataHandler = None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._parts += 1 + len(attributes)
        if self._depth > MAX_XML_DEPTH:
            self._fail(
                "xml.too_deep",
                f"elements stand more than {MAX_XML_DEPTH} levels deep",
                "a flatter document is needed",
            )
        if self._parts > MAX_XML_PARTS:
            self._fail(
                "xml.too_large",
                f"the document has over {MAX_XML_PARTS} elements and attributes",
                "send it in parts",
            )
        if self._builder is not None:
            self._builder.start(name, attributes)

    def _end(self, _name: str) -> None:
        self._depth -= 1
        if self._builder is not None:
            self._builder.end()

    def _refuse_doctype(self, *_declared: object) -> NoReturn:
        self._fail(
            "xml.doctype_refused",
            "a document type or an entity is declared",
            "leave out <!DOCTYPE ...>: entities are never expanded or fetched",
        )

    def _check_declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and not _ENCODINGS.match(encoding):
            self._fail(
                "xml.not_well_formed",
                f"the encoding {encoding[:40]!r} is not read",
                "use UTF-8",
            )

    def _fail(self, code: str, message: str, hint: str) -> NoReturn:
        line, column = self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1
        raise XmlError(message, code=code, hint=hint, line=line, column=column)


def _syntax_error(error: expat.ExpatError) -> XmlError:
    if error.code == _MISSING_ENTITY:
        message = "an entity is used that is none of &lt; &gt; &amp; &quot; &apos;"
        hint = "write the character itself or its number, such as &#233;"
    else:
        message = expat.ErrorString(error.code) or "not well-formed"
        hint = "the document needs one root element, closed tags and escaped & and <"
    return XmlError(
        message,
        code="xml.not_well_formed",
        hint=hint,
        line=max(error.lineno, 1),
        column=error.offset + 1,
    )
