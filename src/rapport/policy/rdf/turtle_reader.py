"""Turtle (and N-Triples) as a graph: all of the language, bounded in size and depth. [PO-1]"""

from __future__ import annotations

import re
from typing import NoReturn
from urllib.parse import urljoin

import msgspec

from rapport.core.errors import InvalidInput, Problem, excerpt_with_caret
from rapport.policy.rdf.graph import (
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

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<iri><[^<>"{}|^`\x00-\x20]*>)
    |(?P<text>\"{3}(?:\"{0,2}(?:[^"\\]|\\.))*\"{3}|'{3}(?:'{0,2}(?:[^'\\]|\\.))*'{3}
        |"(?:[^"\\\n\r]|\\.)*"|'(?:[^'\\\n\r]|\\.)*')
    |(?P<directive>@prefix|@base)\b
    |(?P<language>@[A-Za-z]+(?:-[A-Za-z0-9]+)*)
    |(?P<blank>_:[\w](?:[\w.·-]*[\w·-])?)
    |(?P<number>[+-]?(?:[0-9]+\.?[0-9]*[eE][+-]?[0-9]+|\.[0-9]+[eE][+-]?[0-9]+
        |[0-9]*\.[0-9]+|[0-9]+))
    |(?P<name>(?:[^\W\d_](?:[\w.·-]*[\w·-])?)?:
        (?:(?:[\w:]|%[0-9A-Fa-f]{2}|\\[_~.!$&'()*+,;=/?\#@%-])
        (?:(?:[\w.:·-]|%[0-9A-Fa-f]{2}|\\[_~.!$&'()*+,;=/?\#@%-])*
        (?:[\w:·-]|%[0-9A-Fa-f]{2}|\\[_~.!$&'()*+,;=/?\#@%-]))?)?)
    |(?P<word>[A-Za-z]+)
    |(?P<mark>\^\^|[.;,\[\]()])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    start: int


class TurtleError(InvalidInput):
    """A text that is no Turtle; the problem says where."""

    code = "rdf.bad_turtle"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.as_text(), code=problem.code)
        self.problem = problem

    def problems_found(self) -> tuple[Problem, ...]:
        return (self.problem,)


def read_turtle(text: str, *, name: str = "", base: str = "") -> Graph:
    """The triples in the order of the text; raises TurtleError with line and column."""
    return _Reader(text, name, base).document()


class _Reader:
    """Recursive descent over the tokens, as deep as brackets are nested."""

    def __init__(self, text: str, name: str, base: str) -> None:
        self._text, self._name, self._base = text, name, base
        self._graph, self._prefixes = Graph(), dict[str, str]()
        self._position, self._blanks, self._depth = 0, 0, 0
        if len(text) > MAX_BYTES:
            self._fail("the file is larger than 16 MiB", 0)
        self._token = self._next()

    # --- tokens ---

    def _next(self) -> _Token:
        while self._position < len(self._text):
            start = self._position
            found = _TOKEN.match(self._text, start)
            if found is None:
                self._fail(f"{self._text[start]!r} does not fit here", start)
            self._position = found.end()
            if found.lastgroup != "space":
                return _Token(str(found.lastgroup), found[0], start)
        return _Token("end", "", len(self._text))

    def _take(self) -> _Token:
        taken, self._token = self._token, self._next()
        return taken

    def _is(self, text: str) -> bool:
        return self._token.kind in ("mark", "word") and self._token.text == text

    def _expect(self, text: str) -> None:
        if not self._is(text):
            self._unexpected(f"{text!r}")
        self._take()

    def _unexpected(self, wanted: str) -> NoReturn:
        found = "the end of the file" if self._token.kind == "end" else repr(self._token.text[:40])
        self._fail(f"expected {wanted}, found {found}", self._token.start)

    def _fail(self, message: str, start: int) -> NoReturn:
        line = self._text.count("\n", 0, start) + 1
        column = start - (self._text.rfind("\n", 0, start) + 1) + 1
        problem = Problem(
            file=self._name,
            line=line,
            column=column,
            code="rdf.bad_turtle",
            message=message,
            hint="the file must be Turtle; RDF/XML is read from files that end in .rdf or .owl",
            excerpt=excerpt_with_caret(self._text[: start + 200], line, column),
        )
        raise TurtleError(problem)

    # --- statements ---

    def document(self) -> Graph:
        while self._token.kind != "end":
            if self._token.kind == "directive":
                self._directive(self._take().text[1:])
                self._expect(".")
            elif self._token.kind == "word" and self._token.text.lower() in ("prefix", "base"):
                self._directive(self._take().text.lower())
            else:
                self._statement()
                self._expect(".")
        return self._graph

    def _directive(self, which: str) -> None:
        if which == "prefix":
            if self._token.kind != "name" or not self._token.text.endswith(":"):
                self._unexpected("a prefix such as `ex:`")
            prefix = self._take().text[:-1]
            self._prefixes[prefix] = self._address()
        else:
            self._base = self._address()

    def _address(self) -> str:
        if self._token.kind != "iri":
            self._unexpected("an address in <>")
        return self._joined(self._take())

    def _statement(self) -> None:
        is_bracketed = self._is("[")
        subject = self._subject()
        if not (is_bracketed and self._is(".")):
            self._predicates(subject)

    def _subject(self) -> Subject:
        start, node = self._token.start, self._node()
        if isinstance(node, Text):
            self._fail("nothing can be said of a text", start)
        return node

    def _predicates(self, subject: Subject) -> None:
        while True:
            predicate = self._predicate()
            self._graph.add(subject, predicate, self._node())
            while self._is(","):
                self._take()
                self._graph.add(subject, predicate, self._node())
            if not self._is(";"):
                return
            while self._is(";"):
                self._take()
            if self._is(".") or self._is("]"):
                return

    def _predicate(self) -> Iri:
        if self._is("a"):
            self._take()
            return TYPE
        if self._token.kind not in ("iri", "name"):
            self._unexpected("a property")
        return self._iri()

    # --- nodes ---

    def _node(self) -> Node:
        match self._token.kind:
            case "iri" | "name":
                return self._iri()
            case "blank":
                return Blank(self._take().text)
            case "text":
                return self._literal()
            case "number":
                return self._number()
            case "word" if self._token.text in ("true", "false"):
                return Text(self._take().text, XSD + "boolean")
        if self._is("["):
            return self._bracketed()
        if self._is("("):
            return self._list()
        self._unexpected("a name, a text, a number, `[` or `(`")

    def _iri(self) -> Iri:
        token = self._take()
        if token.kind == "iri":
            return Iri(self._joined(token))
        prefix, _, local = token.text.partition(":")
        if prefix not in self._prefixes:
            self._fail(f"the prefix {prefix + ':'!r} is not declared", token.start)
        return Iri(self._prefixes[prefix] + re.sub(r"\\(.)", r"\1", local))

    def _joined(self, token: _Token) -> str:
        address = self._unescaped(token.text[1:-1], token.start)
        try:
            return urljoin(self._base, address) if self._base else address
        except ValueError:
            self._fail("this is no address", token.start)

    def _unescaped(self, text: str, start: int) -> str:
        def plain(found: re.Match[str]) -> str:
            if found[3] is not None:
                return _ESCAPED.get(found[3], found[3])
            number = int(found[1] or found[2], 16)
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                self._fail("there is no such character", start)
            return chr(number)

        return _ESCAPE.sub(plain, text)

    def _literal(self) -> Text:
        token = self._take()
        width = 3 if len(token.text) >= 6 and token.text[:3] == token.text[0] * 3 else 1
        value = self._unescaped(token.text[width:-width], token.start)
        if self._token.kind == "language":
            return Text(value, RDF + "langString", self._take().text[1:].lower())
        if self._is("^^"):
            self._take()
            if self._token.kind not in ("iri", "name"):
                self._unexpected("a type")
            return Text(value, self._iri().value)
        return Text(value)

    def _number(self) -> Text:
        text = self._take().text
        kind = "integer"
        if "e" in text.lower():
            kind = "double"
        elif "." in text:
            kind = "decimal"
        return Text(text, XSD + kind)

    def _new_blank(self) -> str:
        self._blanks += 1
        return f"[{self._blanks}]"

    def _bracketed(self) -> Blank:
        self._deeper()
        self._take()
        node = Blank(self._new_blank())
        if not self._is("]"):
            self._predicates(node)
        self._expect("]")
        self._depth -= 1
        return node

    def _list(self) -> Subject:
        self._deeper()
        self._take()
        members: list[Node] = []
        while not self._is(")"):
            members.append(self._node())
        self._take()
        self._depth -= 1
        return add_list(self._graph, members, self._new_blank())

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"brackets are nested deeper than {MAX_DEPTH}", self._token.start)
