"""XPath 1.0, cut into tokens. [PO-2]"""

from __future__ import annotations

import re
from typing import NamedTuple

from rapport.core.errors import InvalidInput

MAX_LENGTH = 2_000
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


class Token(NamedTuple):
    """`kind` is number, text, symbol, name or end; `at` counts characters from 1."""

    kind: str
    text: str
    at: int


class XPathFault(InvalidInput):
    """An expression that is no XPath, or uses a part of it that is not offered."""

    code = "tables.bad_xpath"


def fault(message: str, at: int, hint: str = "") -> XPathFault:
    """The error for a place in the expression."""
    return XPathFault(f"character {at}: {message}", hint=hint)


def tokens(expression: str) -> list[Token]:
    """All tokens and one of kind `end`; raises XPathFault. Costs one pass."""
    if len(expression) > MAX_LENGTH:
        raise fault(f"the expression is longer than {MAX_LENGTH} characters", MAX_LENGTH)
    found: list[Token] = []
    at = 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise fault(f"{text[start]!r} has no meaning here", start + 1, "quotes closed?")
        kind = str(match.lastgroup)
        found.append(Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*found, Token("end", "", len(text) + 1)]
