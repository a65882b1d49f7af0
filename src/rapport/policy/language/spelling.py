"""Detects misspelt words of the language and suggests the intended one. [PO-3]

Applies only to lines that do not begin with an alias, so that no name is taken for a misspelt word.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.policy.language.diagnostics import nearest_word
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor

CONNECTIVES = ("and", "or", "followed-by")
SYNONYMS = {
    **dict.fromkeys(("then", "before"), "FOLLOWED-BY"),
    **dict.fromkeys(("but", "while", ",", "also"), "AND"),
    **dict.fromkeys(("during", "lasting", "since"), "for"),
}
"""Common synonyms of connectives."""
_MODES = ("chronicle", "recent")
_IN_WORDS = ("newest", "oldest")
_ONCE_PER = ("at", "most", "once", "per")


def misspelt_option(cursor: TokenCursor, aliases: frozenset[str]) -> SyntaxFault | None:
    """The fault of a line that is a misspelt option; None for any other line."""
    if not aliases or cursor.word() == "" or cursor.names(aliases):
        return None
    if cursor.sees("keyword", ahead=1) or cursor.sees("mark", ahead=1):
        return None  # `temperature of S ...`, `distance(A, B) ...`: not an option
    meant = _option(cursor, aliases)
    if not meant:
        return None
    for ahead, wanted in enumerate(meant):
        if cursor.word(ahead) != wanted:
            token = cursor.peek(ahead)
            assert token is not None, "it was found near a word"
            return misspelling("policy.expected_condition", token, wanted)
    return None


def misspelt_condition(cursor: TokenCursor, aliases: frozenset[str]) -> SyntaxFault | None:
    """The fault of a condition with a misspelt NOT or `no`; None for any other."""
    first = cursor.peek()
    if first is None or not aliases or cursor.word() == "" or first.text in aliases:
        return None
    if cursor.names(aliases, ahead=1) and _near(cursor.word(), "not"):
        return misspelling("policy.expected_condition", first, "NOT")
    is_silence = cursor.sees("keyword", "of", ahead=2) and _near(cursor.word(4), "for")
    if is_silence and cursor.word(1) and _near(cursor.word(), "no"):
        return misspelling("policy.expected_condition", first, "no")
    return None


def misspelling(code: str, token: Token, meant: str) -> SyntaxFault:
    """The fault for one misspelt word."""
    message = f"{token.text!r} is no word of the language here"
    return SyntaxFault(code, message, token.place, f"did you mean {meant!r}?")


def first_misspelt(tokens: Sequence[Token], wanted: Sequence[str]) -> tuple[Token, str] | None:
    """The first word that differs from `wanted` but is near it, and the intended word."""
    for token, word in zip(tokens, wanted, strict=False):
        if token.text.lower() != word:
            return (token, word) if _near(token.text.lower(), word) else None
    return None


def suggest_connective(cursor: TokenCursor) -> str:
    """The connective or timing word that was probably meant, as shown in a hint; empty if none is
    near."""
    token = cursor.peek()
    assert token is not None, "something stands there"
    word = token.text.lower()
    if word == "not":
        return "NOT FOLLOWED-BY" if _near(cursor.word(1), "followed-by") else ""
    timing = ("for", "within") if cursor.sees("number", ahead=1) else ()
    meant = nearest_word(word, timing) or nearest_word(word, CONNECTIVES)
    meant = SYNONYMS.get(word) or (meant if meant in timing else meant.upper())
    return repr(meant) if meant.islower() else meant


def _option(cursor: TokenCursor, aliases: frozenset[str]) -> tuple[str, ...]:
    """The words of the option that the line resembles; empty if none."""
    first, second, third = (cursor.word(ahead) for ahead in range(3))
    if cursor.sees("number", ahead=1) and not cursor.sees("keyword", "of", ahead=3):
        return ("within",) if _near(first, "within") and cursor.peek(3) is None else ()
    if cursor.names(aliases, ahead=1):
        several = cursor.sees("mark", ",", ahead=2) or cursor.sees("keyword", "and", ahead=2)
        return ("distinct",) if several and _near(first, "distinct") else ()
    if _near(first, "consume") and (mode := nearest_word(second, _MODES)):
        return ("consume", mode)
    if _near(first, "use") and _near(second, "the") and (which := nearest_word(third, _IN_WORDS)):
        return ("use", "the", which)
    if _near(first, "when") and _near(second, "unsure"):
        return ("when", "unsure")
    near = [_near(cursor.word(ahead), word) for ahead, word in enumerate(_ONCE_PER)]
    return _ONCE_PER if all(near) else ()


def _near(word: str, wanted: str) -> bool:
    return word == wanted or nearest_word(word, (wanted,)) == wanted
