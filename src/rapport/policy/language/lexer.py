"""Splits policy text into tokens line by line, and walks over them. An unknown character is
reported as a fault, never raised. [PO-3]"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Literal

import msgspec

from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.tree import SourceSpan

Kind = Literal[
    "word", "keyword", "header", "number", "unit", "text", "operator", "mark", "sign", "clock"
]

HEADERS = ("concepts", "conditions", "actions")
KEYWORDS = ("and", "or", "followed-by", "is", "not", "of")
RESERVED = frozenset({*HEADERS, *KEYWORDS})

WORD_PATTERN = r"[^\W\d]\w*(?:-\w+)*"
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<comment>#|//)|(?P<word>{WORD_PATTERN})"
    r"|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+(?![^\W_]))?)"
    r"|(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<operator><=|>=|!=|==|<>|=<|=>|=|<|>)|(?P<mark>[(),])"
)
_SITUATION_TOKEN = re.compile(
    rf"(?P<clock>[0-9]{{1,2}}:[0-9]{{2}}(?![0-9:]))|{_TOKEN.pattern}|(?P<sign>[-+*/])"
)
"""Situations also have times of day and signs for calculating."""
_UNIT_PART = r"(?:[%‰°]\w*|\{\w+\}|[^\W\d]\w*(?:\[[\w']+\])?|\[[\w']+\])"
_PER_TIME = re.compile(r"\s+1/(?:s|min|h|d)\b")
"""The unit of how often per time, as in `2 1/min`."""
_UNIT = re.compile(rf"\s*(dB\([AC]\)|/?{_UNIT_PART}(?:[/.·]{_UNIT_PART})*)")
_PHRASE_COMMENT = re.compile(r"(?:^|\s)(?:#|//)")
_QUOTED = re.compile(r'"[^"]*"')
_CURLY_QUOTES = "‘’‚‛“”„‟´`"
_INSTEAD = {
    ":": "the name of a section stands without a colon",
    ".": "name an attribute as: temperature of S",
    "%": "a unit stands after its number, as in 15 %",
    "°": "a unit stands after its number, as in 30 °C",
    "&": "write AND",
    "|": "write OR",
    "!": "write NOT",
    "≤": "write <=",
    "≥": "write >=",
    "≠": "write !=",
    "[": "use parentheses: ( )",
    "{": "use parentheses: ( )",
    **dict.fromkeys("+*/^", "policies do not calculate; a function of the site can"),
    **dict.fromkeys(_CURLY_QUOTES, "use straight quotes: 'text'"),
}
"""Hints for characters without a meaning."""


class Token(msgspec.Struct, frozen=True):
    """One token. Keywords are in lower case, quoted text has no quotes."""

    kind: Kind
    text: str
    place: SourceSpan
    glued: bool = False
    """True if no space separates it from the token before."""


def tokenize_line(text: str, line: int, faults: Diagnostics) -> list[Token]:
    """The tokens of one line; adds faults and skips them."""
    tokens: list[Token] = []
    for token in _tokens(_TOKEN, text, line, faults):
        tokens.append(token)
        if token.kind == "header" and token.text == "actions":
            break  # a phrase follows, not tokens
    return tokens


def tokenize_situation(text: str, line: int, faults: Diagnostics) -> list[Token]:
    """The same for a line of a situation, with times of day, signs for calculating and units
    after `in`; no word is a header."""
    found = _tokens(_SITUATION_TOKEN, text, line, faults, is_situation=True)
    return [
        Token(
            "word", text[token.place.column - 1 :][: token.place.length], token.place, token.glued
        )
        if token.kind == "header"
        else token
        for token in found
    ]


def _tokens(
    pattern: re.Pattern[str],
    text: str,
    line: int,
    faults: Diagnostics,
    *,
    is_situation: bool = False,
) -> Iterator[Token]:
    position, glued = 0, False
    hints_given: set[str] = set()
    while position < len(text):
        found = pattern.match(text, position)
        if found is None:
            position = _skip_bad(text, position, line, faults, hints_given)
            glued = False
            continue
        if found.lastgroup == "comment":
            return
        position = found.end()
        if found.lastgroup == "space":
            glued = False
            continue
        token = _token(found, line, glued)
        if is_situation and token.kind == "header":
            token = Token("word", found[0], token.place, glued)
        yield token
        glued = True
        after_in = is_situation and token.kind == "word" and token.text.lower() == "in"
        if token.kind == "number" or after_in:
            per_time = _PER_TIME.match(text, position) if is_situation else None
            end = per_time.end() if per_time is not None else _end_of_unit(text, position)
            if end > position:
                yield _unit(text[position:end], line, position)
                position = end


def comment_at(text: str) -> int:
    """The column where the comment of a line of concepts or conditions begins; the line's length
    without one.

    >>> comment_at("A is inside R # why"), comment_at("person A (name='#1')")
    (14, 20)
    """
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is not None and found.lastgroup == "comment":
            break
        if found is not None and found[0].lower() == "actions":
            return phrase_comment_at(text, found.end())
        position = found.end() if found is not None else position + 1
        if found is not None and found.lastgroup == "number":
            position = _end_of_unit(text, position)
    return position


def phrase_comment_at(text: str, start: int = 0) -> int:
    """The same for a line of actions, where a comment sign counts only after a space."""
    found = _PHRASE_COMMENT.search(_without_quoted(text[start:]))
    return start + found.end() - len(found[0].lstrip()) if found else len(text)


def phrase_of(text: str) -> str:
    """An action line without its comment; a comment sign counts only after a space, since addresses
    may contain one.

    >>> phrase_of("  call http://example.org  # urgent")
    'call http://example.org'
    >>> phrase_of('  say "room # {R}"  # why')
    'say "room # {R}"'
    """
    return " ".join(text[: phrase_comment_at(text)].split())


def _without_quoted(text: str) -> str:
    """Masks text in double quotes, so that no comment begins in it."""
    return _QUOTED.sub(lambda found: "_" * len(found[0]), text)


def is_name(text: str) -> bool:
    """True if `text` can be a concept, alias or attribute in a policy.

    >>> is_name("car-sharing"), is_name("and"), is_name("5m")
    (True, False, False)
    """
    return re.fullmatch(WORD_PATTERN, text) is not None and text.lower() not in RESERVED


def _token(found: re.Match[str], line: int, glued: bool) -> Token:
    text = found[0]
    place = SourceSpan(line, found.start() + 1, len(text))
    kind: Kind = found.lastgroup  # type: ignore[assignment]
    if kind == "text":
        quote = text[0]
        return Token("text", text[1:-1].replace(quote * 2, quote), place, glued)
    if kind == "word" and text.lower() in HEADERS:
        return Token("header", text.lower(), place, glued)
    if kind == "word" and text.lower() in KEYWORDS:
        return Token("keyword", text.lower(), place, glued)
    return Token(kind, text, place, glued)


def _end_of_unit(text: str, position: int) -> int:
    """The end of a unit that is more than a word (`%`, `m/s`, `°C`). For a single word it is
    `position`: the parser decides whether it is a unit."""
    found = _UNIT.match(text, position)
    if found is None or re.fullmatch(WORD_PATTERN, found[1]):
        return position
    return found.end()


def _unit(text: str, line: int, position: int) -> Token:
    unit = text.lstrip()
    space = len(text) - len(unit)
    return Token("unit", unit, SourceSpan(line, position + space + 1, len(unit)), glued=not space)


def _skip_bad(
    text: str, position: int, line: int, faults: Diagnostics, hints_given: set[str]
) -> int:
    """Reports the character at `position`, each hint once per line; returns the next position."""
    character = text[position]
    place = SourceSpan(line, position + 1)
    if character in "'\"":
        hint = f"end it with {character}; write {character}{character} for the sign itself"
        faults.add(
            "policy.unclosed_quote", "the quoted text has no end in this line", place, hint=hint
        )
        return len(text)
    hint = _INSTEAD.get(character, "leave it out")
    message = f"the character {character!a} has no meaning here"
    if character.isprintable():
        message = f"the character {character} has no meaning here"
    if hint not in hints_given:
        faults.add("policy.bad_character", message, place, hint=hint)
        hints_given.add(hint)
    return position + 1


class SyntaxFault(Exception):
    """A line that cannot be parsed; the parser reports it and continues with the next line."""

    def __init__(self, code: str, message: str, place: SourceSpan, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.place, self.hint = code, message, place, hint


def span(first: SourceSpan, last: SourceSpan) -> SourceSpan:
    """From the start of `first` to the end of `last`; one character if they are in
    different lines."""
    if first.line != last.line:
        return SourceSpan(first.line, first.column)
    return SourceSpan(first.line, first.column, last.column + last.length - first.column)


class TokenCursor:
    """A position in a non-empty sequence of tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def peek(self, ahead: int = 0) -> Token | None:
        """The token `ahead` of the position, None past the end."""
        index = self._next + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def sees(self, kind: Kind, *texts: str, ahead: int = 0) -> bool:
        """True if the token there has this kind and, if given, one of the `texts`."""
        token = self.peek(ahead)
        return token is not None and token.kind == kind and (not texts or token.text in texts)

    def reads(self, *words: str) -> bool:
        """True if the next tokens are these words, in any case."""
        tokens = [self.peek(ahead) for ahead in range(len(words))]
        return all(
            token is not None and token.kind in ("word", "keyword") and token.text.lower() == word
            for token, word in zip(tokens, words, strict=True)
        )

    def word(self, ahead: int = 0) -> str:
        """The word there in lower case; empty if there is none."""
        token = self.peek(ahead)
        return token.text.lower() if token is not None and token.kind == "word" else ""

    def names(self, aliases: Container[str], *, ahead: int = 0) -> bool:
        """True if one of the aliases is there."""
        token = self.peek(ahead)
        return token is not None and token.kind == "word" and token.text in aliases

    def take(self) -> Token:
        """Consumes the next token, which must exist."""
        token = self._tokens[self._next]
        self._next += 1
        return token

    def take_if(self, kind: Kind, *texts: str) -> Token | None:
        """Consumes the next token if `sees` is true for it, else returns None."""
        return self.take() if self.sees(kind, *texts) else None

    def name(self, code: str, what: str, hint: str) -> Token:
        """Consumes a name; raises a fault that expects `what`."""
        token = self.take_if("word")
        if token is not None:
            return token
        found = self.peek()
        if found is not None and found.kind in ("keyword", "header"):
            message = f"expected {what}, but {found.text.upper()} is a word of the language"
            raise self.fault("policy.reserved_name", message, hint="choose another name")
        raise self.fault(code, f"expected {what}", hint=hint)

    def last_place(self) -> SourceSpan:
        """The place of the last consumed token, or of the first one before any."""
        return self._tokens[max(self._next - 1, 0)].place

    def place(self) -> SourceSpan:
        """The place of the next token, or just past the last one."""
        token = self.peek()
        if token is not None:
            return token.place
        last = self._tokens[-1].place
        return SourceSpan(last.line, last.column + last.length)

    def fault(self, code: str, message: str, *, hint: str = "") -> SyntaxFault:
        """A fault at the next token."""
        return SyntaxFault(code, message, self.place(), hint)
