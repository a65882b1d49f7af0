"""The signs and words that compare: `>`, `at least`, `is not above`. [PO-3]"""

from __future__ import annotations

from typing import NamedTuple

from rapport.policy.language.cursor import SyntaxFault, TokenCursor
from rapport.policy.language.faults import nearest_word
from rapport.policy.language.tree import Operator

OPERATORS: dict[str, Operator] = {
    "=": "=",
    "!=": "!=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
}
CONTRARY: dict[Operator, Operator] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    ">": "<=",
    "<=": ">",
    ">=": "<",
}
MISWRITTEN = {"==": "=", "<>": "!=", "=<": "<=", "=>": ">="}
COMPARATOR_WORDS: dict[str, Operator] = {
    "above": ">",
    "over": ">",
    "below": "<",
    "under": "<",
    "equals": "=",
}
ALL_WORDS = "above, below, at least, at most, is, is not"
_AT: dict[str, Operator] = {"least": ">=", "most": "<="}
_MEANT = {
    **dict.fromkeys(("exceeds", "more", "greater", "higher", "larger", "bigger"), "above"),
    **dict.fromkeys(("less", "lower", "smaller", "fewer"), "below"),
    "equal": "is",
    "minimum": "at least",
    "maximum": "at most",
    "differs": "is not",
    "different": "is not",
}


class Comparator(NamedTuple):
    """How two things are compared, and the words that said so."""

    operator: Operator
    negated: bool
    words: str


def begins_comparator(cursor: TokenCursor, *, ahead: int = 0) -> bool:
    """True when a sign or `is` stands there, or other words that compare with a constant behind
    them: they are no reserved words, so alone they may be names."""
    if cursor.sees("operator", ahead=ahead) or cursor.sees("keyword", "is", "not", ahead=ahead):
        return True
    first, second = cursor.word(ahead), cursor.word(ahead + 1)
    if first == "at" and second in _AT:
        return _is_constant(cursor, ahead + 2)
    return first in COMPARATOR_WORDS and _is_constant(cursor, ahead + 1)


def read_comparator(
    cursor: TokenCursor, shown: str, example: str, between: str
) -> Comparator | None:
    """How `shown` is compared; None when nothing of the kind comes next. Raises SyntaxFault for a
    word that means something like it; `example` is a constant and `between` what to write instead
    of that word, for the hints."""
    has_is = cursor.take_if("keyword", "is") is not None
    has_not = cursor.take_if("keyword", "not") is not None
    token = cursor.peek()
    if token is not None and token.kind == "operator":
        return Comparator(read_operator(cursor), has_not, token.text)
    word = cursor.word()
    if word in COMPARATOR_WORDS:
        cursor.take()
        return Comparator(COMPARATOR_WORDS[word], has_not, word)
    if word == "at":
        return _at(cursor, shown, has_not, example)
    fault = _other_word(cursor, shown, between)
    if fault is not None:
        raise fault
    if has_is:
        return Comparator("!=" if has_not else "=", False, "is not" if has_not else "is")
    return None


def read_operator(cursor: TokenCursor) -> Operator:
    """The operator that comes next; raises SyntaxFault when it is miswritten."""
    token = cursor.take()
    if token.text in MISWRITTEN:
        message = f"there is no sign {token.text} for comparing"
        hint = f"did you mean {MISWRITTEN[token.text]}?"
        raise SyntaxFault("policy.bad_operator", message, token.place, hint)
    return OPERATORS[token.text]


def _at(cursor: TokenCursor, shown: str, negated: bool, example: str) -> Comparator:
    at = cursor.take()
    word = cursor.word()
    if word not in _AT:
        meant = nearest_word(word, _AT)
        message = "expected 'at least' or 'at most'"
        hint = f"such as: {shown} at least {example}"
        hint = f"did you mean 'at {meant}'?" if meant else hint
        place = cursor.place() if meant else at.place
        raise SyntaxFault("policy.expected_comparison", message, place, hint)
    cursor.take()
    return Comparator(_AT[word], negated, f"at {word}")


def _other_word(cursor: TokenCursor, shown: str, between: str) -> SyntaxFault | None:
    """A word that others use for comparing, or that is misspelt."""
    word = cursor.word()
    message = f"{word!r} is no word for comparing"
    if word == "between":
        hint = f"write: {between}"
    elif word in _MEANT:
        hint = f"did you mean: {shown} {_MEANT[word]} ...?"
    else:
        meant = nearest_word(word, COMPARATOR_WORDS) if _is_constant(cursor, 1) else ""
        hint = f"did you mean {meant!r}?"
        if not meant:
            return None
    return cursor.fault("policy.expected_comparison", message, hint=hint)


def _is_constant(cursor: TokenCursor, ahead: int) -> bool:
    return cursor.sees("number", ahead=ahead) or cursor.sees("text", ahead=ahead)
