"""Rows from an XML file: one per element that an XPath selects, fields by XPath too. [PO-2]

`rapport.core.xml` checks a document before lxml parses it: it refuses document types, so that no
entity is ever declared, expanded or fetched, and bounds size, depth and namespaces.

Expressions are XPath 1.0 in its abbreviated form, evaluated by lxml. Two rules are ours, and
`_translate` applies them to the text of an expression: a name without a prefix matches in any
namespace, because people write `/plan/room` also for a file with a default namespace; and unknown
functions, prefixes and wrong numbers of arguments are reported without a document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from lxml import etree

from rapport.core.errors import InvalidInput, SiteError
from rapport.core.xml import XmlError, XmlLimits, XmlReader, XmlVisitor, read_xml
from rapport.tables.rows import LooseRows, check_size, content_digest, unusable_table

MOST_BYTES = 256 * 1024 * 1024
_LIMITS = XmlLimits(bytes=MOST_BYTES, depth=200, parts=20_000_000)
_CODES = {"xml.doctype_refused": "tables.doctype_refused", "xml.too_large": "tables.too_large"}

_MAX_EXPRESSION = 2_000
_NAME = r"[^\W\d][\w.\-]*"
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<number>\d+(?:\.\d*)?|\.\d+)
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<symbol>::|//|\.\.|!=|<=|>=|[/.@()\[\],|+\-*=<>$])
    | (?P<name>{_NAME}(?::(?:{_NAME}|\*))?)
    )""",
    re.VERBOSE,
)
_FUNCTIONS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("last", "position", "true", "false"), (0, 0)),
    **dict.fromkeys(("count", "sum", "boolean", "not", "floor", "ceiling", "round"), (1, 1)),
    **dict.fromkeys(("name", "local-name", "string", "number"), (0, 1)),
    **dict.fromkeys(("string-length", "normalize-space"), (0, 1)),
    **dict.fromkeys(("starts-with", "contains", "substring-before", "substring-after"), (2, 2)),
    "substring": (2, 3),
    "translate": (3, 3),
    "concat": (2, 50),
}
"""Functions with the fewest and most arguments."""
_NODE_TESTS = ("text", "node")
_OPERATORS = ("and", "or", "div", "mod")
_OPERAND_FOLLOWS = frozenset(("", "@", "::", "(", "[", ",", *_OPERATORS))
_OPERAND_FOLLOWS |= frozenset(("/", "//", "|", "+", "-", "*", "=", "!=", "<", "<=", ">", ">="))
"""After one of these a name or `*` is an operand; after anything else it is an operator."""


class XPathFault(InvalidInput):
    """An expression that is not XPath, or uses a part of it that is not supported."""

    code = "tables.bad_xpath"


class XPath:
    """A compiled expression; raises XPathFault for a text that is not one.

    With `from_root` relative paths begin at the document, otherwise at the element that is given.
    """

    def __init__(
        self,
        text: str,
        namespaces: Mapping[str, str] | None = None,
        *,
        from_root: bool = False,
    ) -> None:
        self.text = text
        known = dict(namespaces or {})
        translated = _translate(text, known, from_root=from_root)
        try:
            # The text as it was written comes first: the column of a fault is one of it.
            etree.XPath(text)
            self._evaluate = etree.XPath(translated, namespaces=known or None, smart_strings=False)
            self._evaluate(_PROBE)
        except etree.XPathSyntaxError as error:
            raise _fault(f"{error}", _column(error)) from None
        except (etree.XPathError, ValueError) as error:  # or characters that XML does not have
            raise XPathFault(f"{text[:60]!r}: {error}") from None

    def nodes(self, root: Any) -> list[Any]:
        """The nodes that a path or a union selects, in document order; raises XPathFault for an
        expression that selects none.
        """
        found = self._value(root)
        if not isinstance(found, list):
            raise XPathFault(f"{self.text!r} selects no elements", hint="such as /floorplan/room")
        return found

    def text_at(self, element: Any) -> str | None:
        """The text that the expression gives for an element; None when a path selects nothing."""
        found = self._value(element)
        if isinstance(found, list):
            return _string_value(found[0]) if found else None
        if isinstance(found, bool):
            return "true" if found else "false"
        return found if isinstance(found, str) else _number_text(found)

    def _value(self, element: Any) -> Any:
        try:
            return self._evaluate(element)
        except etree.XPathError as error:
            raise XPathFault(f"{self.text[:60]!r}: {error}") from None


_PROBE = etree.Element("probe")
"""An element without content, on which the types of an expression's outer parts are checked."""


class _Token(NamedTuple):
    """`kind` is number, text, symbol or name; `column` counts from 1."""

    kind: str
    text: str
    column: int


def _tokens(expression: str) -> list[_Token]:
    if len(expression) > _MAX_EXPRESSION:
        message = f"the expression is longer than {_MAX_EXPRESSION} characters"
        raise _fault(message, _MAX_EXPRESSION)
    found: list[_Token] = []
    at, text = 0, expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise _fault(f"{text[start]!r} has no meaning here", start + 1, "quotes closed?")
        kind = str(match.lastgroup)
        found.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return found


def _translate(expression: str, namespaces: Mapping[str, str], *, from_root: bool) -> str:
    """The expression with names that match in any namespace and, with `from_root`, with absolute
    paths only; raises XPathFault for what can be seen to be wrong without a document.
    """
    tokens = _tokens(expression)
    texts = [token.text for token in tokens]
    parts: list[str] = []
    brackets: list[_Bracket] = []
    for number, token in enumerate(tokens):
        before = texts[number - 1] if number else ""
        after = texts[number + 1] if number + 1 < len(texts) else ""
        text, is_operand = token.text, before in _OPERAND_FOLLOWS
        if text == "$":
            raise _fault("variables are not supported", token.column, "write the value itself")
        if text == "::" or after == "::":
            hint = "write the short form: a/b, //b, @b, . or .."
            raise _fault("axes by name are not supported", token.column, hint)
        if brackets and text != ")":
            brackets[-1].note(text)
        if text in ("(", "["):
            brackets.append(_Bracket(text, _called(tokens, number)))
        elif text in (")", "]") and brackets:
            brackets.pop().check_arguments()
        begins_path = is_operand and before not in ("/", "//", "@")
        in_predicate = any(bracket.text == "[" for bracket in brackets)
        is_step = token.kind == "name" and (after != "(" or text in _NODE_TESTS)
        is_step = is_operand and (is_step or text in (".", "..", "@", "*"))
        if from_root and is_step and begins_path and not in_predicate:
            parts.append("/")
        parts.append(_translated_name(token, before, after, namespaces) if is_operand else text)
    return " ".join(parts)


def _translated_name(token: _Token, before: str, after: str, namespaces: Mapping[str, str]) -> str:
    if token.kind != "name":
        return token.text
    if after == "(":
        if token.text not in _FUNCTIONS and token.text not in _NODE_TESTS:
            hint = f"known: {', '.join(sorted(_FUNCTIONS))}"
            raise _fault(f"there is no function {token.text!r}", token.column, hint)
        # Prefixes differ between documents that mean the same.
        return "local-name" if token.text == "name" else token.text
    prefix, colon, _name = token.text.partition(":")
    if colon:
        if prefix not in namespaces:
            message = f"the prefix {prefix!r} is not declared"
            raise _fault(message, token.column, 'add namespaces = { x = "http://..." }')
        return token.text
    return token.text if before == "@" else f"*[local-name()='{token.text}']"


class _Bracket:
    """An open bracket, and how many arguments there are when it is that of a function."""

    def __init__(self, text: str, function: _Token | None) -> None:
        self.text, self._function, self._arguments = text, function, 0

    def note(self, text: str) -> None:
        """Takes in a token between this bracket and its end, inner brackets left out."""
        self._arguments = self._arguments + 1 if text == "," else max(self._arguments, 1)

    def check_arguments(self) -> None:
        """Raises XPathFault when the function does not take so many."""
        if self._function is None or self._function.text not in _FUNCTIONS:
            return
        least, most = _FUNCTIONS[self._function.text]
        if not least <= self._arguments <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            message = f"{self._function.text}() takes {wanted} arguments"
            raise _fault(message, self._function.column)


def _called(tokens: Sequence[_Token], number: int) -> _Token | None:
    """The function whose arguments a bracket begins."""
    before = tokens[number - 1] if number else None
    if tokens[number].text == "[" or before is None or before.kind != "name":
        return None
    return before


def _fault(message: str, column: int, hint: str = "") -> XPathFault:
    return XPathFault(f"character {column}: {message}", hint=hint)


def _column(error: etree.XPathSyntaxError) -> int:
    log = error.error_log
    return int(log[0].column) + 1 if len(log) else 1


def _string_value(node: Any) -> str:
    return node if isinstance(node, str) else "".join(node.itertext())


def _number_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value == int(value) else repr(value)


def check_xpath(text: str, namespaces: Mapping[str, str]) -> XPathFault | None:
    """The fault of an expression, found without a document."""
    try:
        XPath(text, namespaces)
    except XPathFault as error:
        return error
    return None


# --- documents ------------------------------------------------------------------------------------


class XmlRows(LooseRows):
    """The elements of an XML file as rows; a row stands in the line where its element begins."""

    def __init__(
        self, name: str, header: list[str], rows: list[list[str]], digest: str, lines: list[int]
    ) -> None:
        super().__init__(name, header, rows, digest)
        self._lines = lines

    def line_of(self, row: int) -> int:
        return self._lines[row]


def read_xml_file(
    path: Path, xpath: str, fields: Sequence[str], *, name: str, namespaces: Mapping[str, str]
) -> XmlRows:
    """The rows of a file; raises SiteError with the line where there is one."""
    try:
        if path.stat().st_size > MOST_BYTES:
            message = f"the file is larger than {MOST_BYTES >> 20} MiB"
            raise unusable_table(name, "tables.too_large", message, "split it into several tables")
        data = path.read_bytes()
    except OSError as error:
        message, hint = f"cannot read {name}: {error.strerror}", "look at the file's rights"
        raise unusable_table(name, "tables.unreadable", message, hint) from None
    return rows_of_xml(data, xpath, fields, name=name, namespaces=namespaces)


def rows_of_xml(
    data: bytes, xpath: str, fields: Sequence[str], *, name: str, namespaces: Mapping[str, str]
) -> XmlRows:
    """The rows of a document. `fields` are expressions relative to a row; the names of children
    without children and of attributes (`@name`) are further columns, for look-ups.

    A path that no row has is not a column. Spaces around a field are removed.
    """
    root = parse_document(data, name=name)
    try:
        elements = _elements(root, xpath, namespaces, name)
        check_size(name, len(elements))
        wanted = {field: XPath(field, namespaces) for field in fields}
        for field in _headings(elements):
            if field not in wanted and check_xpath(field, {}) is None:
                wanted[field] = XPath(field)
        columns: dict[str, list[str]] = {}
        for field, expression in wanted.items():
            values = [expression.text_at(element) for element in elements]
            if not elements or any(value is not None for value in values):
                columns[field] = [(value or "").strip() for value in values]
    except XPathFault as error:
        raise unusable_table(name, error.code, error.message, error.hint) from None
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    lines = [element.sourceline for element in elements]
    return XmlRows(name, list(columns), rows, content_digest(data), lines)


class _LimitNames(XmlVisitor):
    """Lets the reader bound the names together with their namespaces."""

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        reader.expanded(namespace, name)


def parse_document(data: bytes, *, name: str) -> Any:
    """The document's element; raises SiteError with the line of its first fault.

    100 MB take some seconds and about ten times the memory.
    """
    try:
        read_xml(data, _LimitNames(), _LIMITS)
    except XmlError as error:
        (problem,) = error.problems_found()
        code = _CODES.get(error.code, "tables.bad_xml")
        problem = msgspec.structs.replace(problem, file=name, code=code, column=0)
        raise SiteError([problem]) from None
    parser = etree.XMLParser(
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=True,  # the check above has bounded it
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        line = max(error.lineno or 1, 1)
        message = str(error.msg).partition(", line")[0]
        raise unusable_table(name, "tables.bad_xml", message, line=line) from None


def _elements(root: Any, xpath: str, namespaces: Mapping[str, str], name: str) -> list[Any]:
    nodes = XPath(xpath, namespaces, from_root=True).nodes(root)
    selects_document = (
        not nodes and XPath(f"boolean({xpath})", namespaces, from_root=True).text_at(root) == "true"
    )
    if selects_document or any(isinstance(node, str) for node in nodes):
        message = f"{xpath!r} selects more than elements"
        hint = "rows are elements, such as /plan/room"
        raise unusable_table(name, "tables.bad_xpath", message, hint)
    return nodes


def _headings(elements: list[Any]) -> list[str]:
    found: dict[str, None] = {}
    for element in elements:
        for name in element.attrib:
            found[f"@{_local_name(name)}"] = None
        for child in element:
            if not len(child):
                found[_local_name(child.tag)] = None
    return list(found)


def _local_name(name: str) -> str:
    return name.rpartition("}")[2]
