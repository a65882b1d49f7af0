"""From the text of a condition to tokens, each with its offset. [CH-4]"""

from __future__ import annotations

import re
from typing import Literal as OneOf

import msgspec

from rapport.channel.query.faults import query_fault

Kind = OneOf["word", "keyword", "name", "number", "text", "operator", "mark", "end"]

MAX_TEXT = 8_192
"""Longest text of a condition, in characters."""
KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>'(?:[^']|'')*')|(?P<name>\"(?:[^\"]|\"\")+\")"
    r"|(?P<operator><>|<=|>=|=|<|>)|(?P<mark>[-+*/(),.\[\]@])"
)
_LONGEST_NUMBER = 40
_CURLY_QUOTES = "‘’‚‛“”„‟´`"


class Token(msgspec.Struct, frozen=True):
    """One token; `text` is what it means: keywords in capitals, quoted text without its quotes."""

    kind: Kind
    text: str
    offset: int


def tokenize(text: str) -> list[Token]:
    """The tokens of a condition and an `end`; raises QueryError at the first character at fault."""
    if len(text) > MAX_TEXT:
        raise query_fault(
            text,
            MAX_TEXT,
            "query.too_long",
            f"the condition has {len(text)} characters; {MAX_TEXT} are allowed",
            "ask in several requests, or use IN for long lists of choices",
        )
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        found = _TOKEN.match(text, offset)
        if found is None:
            raise _bad_character(text, offset)
        if found.lastgroup != "space":
            tokens.append(_token(text, found))
        offset = found.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def _token(whole: str, found: re.Match[str]) -> Token:
    text, offset = found[0], found.start()
    kind: Kind = found.lastgroup  # type: ignore[assignment]
    if kind == "word" and text.upper() in KEYWORDS:
        return Token("keyword", text.upper(), offset)
    if kind in ("text", "name"):
        quote = text[0]
        return Token(kind, text[1:-1].replace(quote * 2, quote), offset)
    if kind == "number" and len(text) > _LONGEST_NUMBER:
        raise query_fault(whole, offset, "query.bad_number", "the number is too long")
    return Token(kind, text, offset)


def _bad_character(text: str, offset: int) -> Exception:
    character = text[offset]
    if character == "'":
        message, code = "the quoted text has no end", "query.unclosed_quote"
        hint = "end it with '; write '' for the sign itself"
    elif character == '"':
        message, code = "the quoted name has no end", "query.unclosed_quote"
        hint = "names stand in double quotes, texts in single ones"
    else:
        shown = character if character.isprintable() else ascii(character)
        message, code = f"the character {shown} has no meaning here", "query.bad_character"
        hint = "use straight quotes: 'text'" if character in _CURLY_QUOTES else ""
        if character == "!":
            hint = "write <> for not equal, NOT for the opposite"
    return query_fault(text, offset, code, message, hint)
