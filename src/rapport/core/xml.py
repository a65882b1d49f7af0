"""Safe, bounded reading of XML from outside: no document types, no entities, no external resources.

Every reader of XML in the product uses `read_xml`, which limits bytes, depth, elements, attributes,
the length of one tag and the namespaces in scope. This module resolves prefixes itself: expat would
join the namespace to every name, which turns a few hundred kilobytes of declarations into
gigabytes. Endpoints check payloads with `check_xml`; queries and SOAP use `parse_xml`. [CH-4,
CH-12]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NoReturn
from xml.parsers import expat

import msgspec

from rapport.core.errors import InvalidInput, Problem

MAX_XML_BYTES = 16 * 1024 * 1024
MAX_XML_DEPTH = 100
"""Maximum nesting of elements."""
MAX_XML_PARTS = 200_000
"""Maximum of elements and attributes together: a node in memory is far larger than `<a/>`."""
MAX_XML_TAG_BYTES = 4 * 1024 * 1024
"""Longest tag, comment or processing instruction; expat buffers each as a whole."""
MAX_XML_NAMESPACES = 100
"""Maximum of prefixes in scope: an element extracted from a document repeats them all."""
MAX_XML_NAMESPACE_CHARACTERS = 1_000
"""Longest address of a namespace."""
MAX_XML_NAME_CHARACTERS = 8 * 1024 * 1024
"""Maximum of characters of all distinct `{namespace}name` together."""

_CHUNK_BYTES = 256 * 1024
"""Expat reads a chunk to its end even after a handler has rejected the document."""
_ENCODINGS = re.compile(
    r"(utf-?8|utf-?16(le|be)?|us-ascii|ascii|iso-8859-\d{1,2}|latin-?1|windows-125\d|cp125\d"
    r"|koi8-[ru])\Z",
    re.I,
)
_MISSING_ENTITY = 11  # expat's XML_ERROR_UNDEFINED_ENTITY
_XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"
_XMLNS_NAMESPACE = "http://www.w3.org/2000/xmlns/"
_NOT_FIRST = re.compile(
    r"[-.\d\u00b7\u02d0\u02d1\u0387\u0640\u0e46\u0ec6\u3005\u3031-\u3035\u309d\u309e\u30fc-\u30fe]"
    r"|[^\w]"
)
"""Name characters that cannot begin a name; combining marks are no `\\w`."""
_WELL_FORMED_HINT = "the document needs one root element, closed tags and escaped & and <"


class XmlLimits(msgspec.Struct, frozen=True):
    """Limits of one document; the other limits are constants."""

    bytes: int = MAX_XML_BYTES
    depth: int = MAX_XML_DEPTH
    parts: int = MAX_XML_PARTS


class XmlScope(Mapping[str, str]):
    """Namespaces in scope by prefix, "" for the default one. Stores only its element's declarations
    and a reference to the outer scope, so that memory grows with the declarations of a document.
    """

    __slots__ = ("_outer", "_size", "declared")

    declared: Mapping[str, str]
    """The declarations of its element."""

    def __init__(self, declared: Mapping[str, str], outer: XmlScope | None = None) -> None:
        self.declared, self._outer = declared, outer
        self._size = len(declared)
        if outer is not None:
            self._size = len(outer) + sum([outer.find(prefix) is None for prefix in declared])

    def __getitem__(self, prefix: str) -> str:
        found = self.find(prefix)
        if found is None:
            raise KeyError(prefix)
        return found

    def find(self, prefix: str) -> str | None:
        """The namespace of a prefix; None when it is not declared."""
        scope: XmlScope | None = self
        while scope is not None:
            found = scope.declared.get(prefix)
            if found is not None:
                return found
            scope = scope._outer
        return None

    def __iter__(self) -> Iterator[str]:
        scopes: list[XmlScope] = [self]
        while scopes[-1]._outer is not None:
            scopes.append(scopes[-1]._outer)
        return iter({prefix: None for scope in reversed(scopes) for prefix in scope.declared})

    def __len__(self) -> int:
        return self._size


_NO_PREFIXES = XmlScope({"xml": _XML_NAMESPACE})


class XmlNode(msgspec.Struct, frozen=True):
    """One element. Content is in document order, without comments and processing instructions;
    CDATA sections are text.
    """

    name: str
    """The local name."""
    namespace: str
    """Address of its namespace; empty when it has none."""
    attributes: Mapping[str, str]
    """By local name, `{namespace}name` for those with a prefix."""
    content: tuple[XmlNode | str, ...]
    prefixes: XmlScope
    """Namespaces in scope by prefix, "" for the default one: for values that are qualified names,
    such as `xsi:type="xsd:string"`. Neighbours share one mapping.
    """

    @property
    def children(self) -> tuple[XmlNode, ...]:
        """The direct child elements."""
        return tuple(part for part in self.content if isinstance(part, XmlNode))

    @property
    def text(self) -> str:
        """The direct text content, unchanged."""
        return "".join(part for part in self.content if isinstance(part, str))

    def child(self, name: str, namespace: str | None = None) -> XmlNode | None:
        """The first child element with that local name (and namespace, if given)."""
        for part in self.content:
            if not isinstance(part, XmlNode) or part.name != name:
                continue
            if namespace is None or part.namespace == namespace:
                return part
        return None


class XmlError(InvalidInput):
    """Rejected XML; `line` and `column` count from 1."""

    code = "xml.not_well_formed"

    def __init__(self, message: str, *, code: str, hint: str, line: int, column: int) -> None:
        super().__init__(f"{line}:{column}: {message}", code=code, hint=hint)
        self.line, self.column = line, column
        self._problem = Problem(line=line, column=column, code=code, message=message, hint=hint)

    def problems_found(self) -> tuple[Problem, ...]:
        return (self._problem,)


class XmlVisitor:
    """Receives the parts of a document in order; a subclass overrides the methods it needs."""

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        """An element begins; `attributes` are named as in XmlNode."""

    def end(self) -> None:
        """The innermost element ends."""

    def text(self, text: str) -> None:
        """Characters within the innermost element, possibly in several pieces."""


def check_xml(data: bytes | str) -> None:
    """Raises XmlError unless the data is one well-formed document within the limits.

    Codes: `xml.not_well_formed`, `xml.doctype_refused`, `xml.too_deep`, `xml.too_large`. Bytes are
    read in the encoding they declare (UTF-8 and UTF-16 need not), a text as it is. Costs one pass
    and no memory beyond it.
    """
    read_xml(data, XmlVisitor())


def parse_xml(data: bytes | str) -> XmlNode:
    """The document's element; checked as by `check_xml`, raises the same."""
    builder = _Builder()
    read_xml(data, builder)
    return builder.root


def read_xml(data: bytes | str, visitor: XmlVisitor, limits: XmlLimits | None = None) -> None:
    """Passes a document to the visitor in one pass; raises as `check_xml`, or what the visitor
    raises.
    """
    XmlReader(data, visitor, limits or XmlLimits()).read()


class _Builder(XmlVisitor):
    """Builds the tree of nodes."""

    root: XmlNode

    def __init__(self) -> None:
        self._open: list[tuple[str, str, dict[str, str], list[XmlNode | str], XmlScope]] = []

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        self._open.append((name, namespace, attributes, [], reader.scope))

    def end(self) -> None:
        name, namespace, attributes, content, scope = self._open.pop()
        node = XmlNode(name, namespace, attributes, tuple(content), scope)
        if self._open:
            self._open[-1][3].append(node)
        else:
            self.root = node

    def text(self, text: str) -> None:
        self._open[-1][3].append(text)


class XmlReader:
    """One pass over one document; visitors use it for positions and to reject the document."""

    def __init__(self, data: bytes | str, visitor: XmlVisitor, limits: XmlLimits) -> None:
        self._data, self._visitor, self._limits = data, visitor, limits
        self._depth = self._parts = self._name_characters = 0
        self._scope, self._names = _NO_PREFIXES, dict[str, tuple[str, str]]()
        self._outer: list[tuple[int, XmlScope, dict[str, tuple[str, str]]]] = []
        """Depth of an element that declares namespaces, and what held around it."""
        self._expanded: dict[tuple[str, str], str] = {}
        parser = expat.ParserCreate(encoding="utf-8" if isinstance(data, str) else None)
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._reject_doctype
        parser.EntityDeclHandler = self._reject_doctype
        parser.ExternalEntityRefHandler = self._reject_doctype
        if isinstance(data, bytes):
            parser.XmlDeclHandler = self._check_declaration
        if type(visitor).text is not XmlVisitor.text:
            parser.buffer_text = True
            parser.CharacterDataHandler = visitor.text
        self._parser = parser

    @property
    def scope(self) -> XmlScope:
        """Namespaces in scope in the innermost element."""
        return self._scope

    @property
    def place(self) -> tuple[int, int]:
        """Line and column, from 1, of the part being read."""
        return self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1

    def expanded(self, namespace: str, name: str) -> str:
        """`{namespace}name`, or the bare name where there is no namespace."""
        if not namespace:
            return name
        found = self._expanded.get((namespace, name))
        if found is None:
            found = self._expanded[namespace, name] = f"{{{namespace}}}{name}"
            self._name_characters += len(found)
            if self._name_characters > MAX_XML_NAME_CHARACTERS:
                self._fail_as_large("the names and their namespaces are too long together")
        return found

    def read(self) -> None:
        """Reads the document; raises XmlError at the first fault."""
        try:
            data = self._data.encode() if isinstance(self._data, str) else self._data
            if len(data) > self._limits.bytes:
                self._fail_as_large(
                    f"the document has {len(data)} bytes; {self._limits.bytes} are allowed"
                )
            self._feed(data)
        except expat.ExpatError as error:
            raise _syntax_error(error) from None
        except UnicodeEncodeError as error:
            self.fail("xml.not_well_formed", f"halves of characters: {error.reason}", "")
        except (ValueError, LookupError) as error:  # an unknown encoding
            self.fail("xml.not_well_formed", f"the encoding is not read: {error}", "use UTF-8")
        finally:
            self._release_parser()

    def fail(self, code: str, message: str, hint: str) -> NoReturn:
        """Rejects the document at the part being read."""
        line, column = self.place
        raise XmlError(message, code=code, hint=hint, line=line, column=column)

    def _feed(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK_BYTES):
            end = start + _CHUNK_BYTES
            self._parser.Parse(data[start:end], False)
            if end - max(self._parser.CurrentByteIndex, 0) > MAX_XML_TAG_BYTES + _CHUNK_BYTES:
                self._fail_as_large(f"a tag or comment has over {MAX_XML_TAG_BYTES} bytes")
        self._parser.Parse(b"", True)

    def _release_parser(self) -> None:
        """Breaks the reference cycle of parser and handlers, so that memory is freed at once."""
        for handler in ("StartElement", "EndElement", "StartDoctypeDecl", "EntityDecl"):
            setattr(self._parser, f"{handler}Handler", None)
        self._parser.ExternalEntityRefHandler = self._parser.XmlDeclHandler = None
        self._parser.CharacterDataHandler = None

    def _start(self, written: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._parts += 1 + len(attributes)
        if self._depth > self._limits.depth:
            self.fail(
                "xml.too_deep",
                f"elements stand more than {self._limits.depth} levels deep",
                "a flatter document is needed",
            )
        if self._parts > self._limits.parts:
            self._fail_as_large(f"the document has over {self._limits.parts} elements, attributes")
        if attributes:
            attributes = self._qualify(attributes)
        name = self._names.get(written)
        if name is None:
            prefix, local = self._split(written)
            name = self._names[written] = local, self._namespace(self._scope, prefix)
        self._visitor.start(name[0], name[1], attributes, self)

    def _end(self, _name: str) -> None:
        self._visitor.end()
        if self._outer and self._outer[-1][0] == self._depth:
            _depth, self._scope, self._names = self._outer.pop()
        self._depth -= 1

    def _qualify(self, written: dict[str, str]) -> dict[str, str]:
        """The attributes by full name, without declarations of namespaces: these hold from now on
        until the element ends.
        """
        declared: dict[str, str] = {}
        others: list[tuple[str, str, str]] = []
        for name, value in written.items():
            prefix, local = self._split(name) if ":" in name else ("", name)
            if prefix == "xmlns" or name == "xmlns":
                self._check_declared(local if prefix else "", value)
                declared[local if prefix else ""] = value
            else:
                others.append((prefix, local, value))
        new = {prefix: address for prefix, address in declared.items() if prefix != "xml"}
        if any(self._scope.find(prefix) != address for prefix, address in new.items()):
            self._outer.append((self._depth, self._scope, self._names))
            self._scope, self._names = XmlScope(new, self._scope), {}
            if len(self._scope) > MAX_XML_NAMESPACES:
                self._fail_as_large(
                    f"over {MAX_XML_NAMESPACES} namespaces are declared for one element"
                )
        attributes: dict[str, str] = {}
        for prefix, local, value in others:
            name = self.expanded(self._namespace(self._scope, prefix) if prefix else "", local)
            if name in attributes:
                self.fail("xml.not_well_formed", f"the attribute {local[:40]} stands twice", "")
            attributes[name] = value
        return attributes

    def _split(self, written: str) -> tuple[str, str]:
        """Prefix and local name."""
        prefix, colon, local = written.partition(":")
        if not colon:
            return "", written
        if not prefix or not local or ":" in local or _NOT_FIRST.match(local):
            message = f"{written[:40]!r} is no name with a prefix"
            self.fail("xml.not_well_formed", message, "a name has one prefix, as in a:b")
        return prefix, local

    def _namespace(self, scope: XmlScope, prefix: str) -> str:
        found = scope.find(prefix)
        if found is None and prefix:
            message = f"the prefix {prefix[:40]!r} is not declared"
            self.fail("xml.not_well_formed", message, f'add xmlns:{prefix[:40]}="..."')
        return found or ""

    def _check_declared(self, prefix: str, address: str) -> None:
        if len(address) > MAX_XML_NAMESPACE_CHARACTERS:
            most = MAX_XML_NAMESPACE_CHARACTERS
            self._fail_as_large(f"the address of a namespace has over {most} characters")
        fault = _declaration_fault(prefix, address)
        if fault:
            self.fail("xml.not_well_formed", fault, _WELL_FORMED_HINT)

    def _reject_doctype(self, *_declared: object) -> NoReturn:
        self.fail(
            "xml.doctype_refused",
            "a document type or an entity is declared",
            "leave out <!DOCTYPE ...>: entities are never expanded or fetched",
        )

    def _check_declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and not _ENCODINGS.match(encoding):
            self.fail(
                "xml.not_well_formed",
                f"the encoding {encoding[:40]!r} is not read",
                "use UTF-8",
            )

    def _fail_as_large(self, message: str) -> NoReturn:
        self.fail("xml.too_large", message, "send it in parts")


@lru_cache(maxsize=1_024)
def _declaration_fault(prefix: str, address: str) -> str:
    """Why a namespace cannot be declared so; empty when it can."""
    if prefix == "xmlns" or (prefix and not address):
        return f"the prefix {prefix[:40]!r} cannot be declared so"
    if (prefix == "xml") != (address == _XML_NAMESPACE) or address == _XMLNS_NAMESPACE:
        return "the prefixes xml and xmlns and their namespaces are reserved"
    return "the address of a namespace has a space" if re.search(r"\s", address) else ""


def _syntax_error(error: expat.ExpatError) -> XmlError:
    if error.code == _MISSING_ENTITY:
        message = "an entity is used that is none of &lt; &gt; &amp; &quot; &apos;"
        hint = "write the character itself or its number, such as &#233;"
    else:
        message = expat.ErrorString(error.code) or "not well-formed"
        hint = _WELL_FORMED_HINT
    return XmlError(
        message,
        code="xml.not_well_formed",
        hint=hint,
        line=max(error.lineno, 1),
        column=error.offset + 1,
    )
