"""Parses comparisons: `temperature of S above 30 degC`, `distance(A, B) < minimumDistance(A, B)`,
and the signs and words that compare (`>`, `at least`, `is not above`). [PO-3]"""

from __future__ import annotations

from typing import NamedTuple

from rapport.policy.language.diagnostics import nearest_word
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor, span
from rapport.policy.language.printer import print_measured
from rapport.policy.language.quantities import TIMING_WORDS, read_constant
from rapport.policy.language.tree import (
    NEGATED_OPERATORS,
    AttributeOf,
    Call,
    Comparison,
    Measured,
    Operator,
    Quantity,
    SourceSpan,
)

OPERATORS: dict[str, Operator] = {each: each for each in NEGATED_OPERATORS}
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
    """An operator, whether it is negated, and the words that express it."""

    operator: Operator
    negated: bool
    words: str


def begins_comparator(cursor: TokenCursor, *, ahead: int = 0) -> bool:
    """True at a sign, at `is`, or at comparing words followed by a constant. Comparing words are
    not reserved, so without a constant they may be names."""
    if cursor.sees("operator", ahead=ahead) or cursor.sees("keyword", "is", "not", ahead=ahead):
        return True
    first, second = cursor.word(ahead), cursor.word(ahead + 1)
    if first == "at" and second in _AT:
        return _is_constant(cursor, ahead + 2)
    return first in COMPARATOR_WORDS and _is_constant(cursor, ahead + 1)


def read_comparator(
    cursor: TokenCursor, shown: str, example: str, between: str
) -> Comparator | None:
    """Reads the comparator of `shown`; None if there is none. Raises SyntaxFault for a near
    synonym. `example` (a constant) and `between` (a replacement for "between") appear in hints."""
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
    """Reads an operator; raises SyntaxFault for a wrong sign such as `==`."""
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
    """The fault for a synonym or a misspelt comparing word."""
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


def begins_comparison(cursor: TokenCursor, aliases: frozenset[str]) -> bool:
    """True if the next tokens can only be an operand of a comparison."""
    token = cursor.peek()
    if token is None or token.kind in ("number", "text"):
        return token is not None
    if token.kind != "word":
        return False
    called = cursor.sees("mark", "(", ahead=1) and token.text not in aliases
    return called or cursor.sees("keyword", "of", ahead=1)


def read_comparison(cursor: TokenCursor, aliases: frozenset[str]) -> Comparison:
    """Reads a comparison; raises SyntaxFault."""
    start = cursor.place()
    left = _operand(cursor, aliases)
    shown = print_measured(left)
    # Without `for`, two different readings could satisfy the two comparisons.
    between = f"({shown} at least ... AND {shown} at most ...) for 1 s"
    comparator = read_comparator(cursor, shown, _example(left), between)
    if comparator is None:
        raise _expected_comparison(cursor, left, aliases)
    right = _operand(cursor, aliases, f"{shown} {comparator.words}", comparator.operator)
    place = span(start, cursor.last_place())
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        message = "both sides are constants, so there is nothing to watch"
        hint = "write an attribute on one side, such as: temperature of S"
        raise SyntaxFault("policy.constant_comparison", message, place, hint)
    _refuse_third(cursor, f"{shown} {comparator.words}", right)
    return Comparison(left, comparator.operator, right, comparator.negated, place)


def _expected_comparison(
    cursor: TokenCursor, left: Measured, aliases: frozenset[str]
) -> SyntaxFault:
    shown = print_measured(left)
    if isinstance(left, AttributeOf) and left.attribute in aliases:
        message = f"expected a relationship between {left.attribute!r} and {left.alias!r}"
        hint = f"such as: {left.attribute} is inside {left.alias}"
        return SyntaxFault("policy.expected_relationship", message, left.place, hint)
    hint = f"write {ALL_WORDS} or an operator, such as: {shown} above {_example(left)}"
    if isinstance(left, Quantity):
        hint = f"write out what is compared, such as: temperature of S above {shown}"
    message = f"expected a comparison after {shown!r}"
    return cursor.fault("policy.expected_comparison", message, hint=hint)


def _example(left: Measured) -> str:
    return "5 m" if isinstance(left, Call) else "30 degC"


def _refuse_third(cursor: TokenCursor, before: str, right: Measured) -> None:
    token = cursor.peek()
    if token is None:
        return
    again = token.kind == "operator" or token.text.lower() in (*COMPARATOR_WORDS, "is", "at")
    if again and token.kind in ("operator", "word", "keyword"):
        middle = print_measured(right)
        message = "a comparison has two sides"
        hint = f"write: ({before} {middle} AND {middle} {token.text} ...) for 1 s"
        raise cursor.fault("policy.chained_comparison", message, hint=hint)


def _operand(
    cursor: TokenCursor, aliases: frozenset[str], before: str = "", operator: Operator = "="
) -> Measured:
    """Reads an operand; `before` and `operator` are the text to its left, for the fault."""
    token = cursor.peek()
    if token is not None and token.kind == "word":
        if cursor.sees("mark", "(", ahead=1):
            return _call(cursor)
        if cursor.sees("keyword", "of", ahead=1):
            return _attribute(cursor)
    constant = read_constant(cursor, _is_unit)
    if constant is not None:
        _refuse_second_word(cursor, constant)
        return constant
    message = f"expected a value after {before!r}"
    hint = f"write a number with its unit, such as: {before} 30 degC"
    if token is not None and token.kind == "word" and token.text in aliases:
        hint = f"say which attribute of it, such as: temperature of {token.text}"
    elif token is not None and token.kind == "word" and operator in ("=", "!="):
        hint = f"put text in quotes: '{token.text}'"
    raise cursor.fault("policy.expected_value", message, hint=hint)


def _refuse_second_word(cursor: TokenCursor, constant: Quantity) -> None:
    """Rejects `30 degrees celsius`: a unit is one word."""
    if constant.unit and cursor.sees("word") and _is_unit(cursor):
        message = f"a unit is one word, but {cursor.word()!r} follows {constant.unit!r}"
        hint = "such as degC, %, km/h; or put what follows on a line of its own"
        raise cursor.fault("policy.bad_unit", message, hint=hint)


def _is_unit(cursor: TokenCursor) -> bool:
    return cursor.word() not in (*TIMING_WORDS, *COMPARATOR_WORDS, "at")


def _attribute(cursor: TokenCursor) -> AttributeOf:
    attribute = cursor.take()
    cursor.take()
    misread = cursor.sees("word", *COMPARATOR_WORDS) and cursor.sees("number", ahead=1)
    alias = None if misread else cursor.take_if("word")
    if alias is None:
        message = f"expected an alias after '{attribute.text} of'"
        hint = f"say whose {attribute.text}, such as: {attribute.text} of S"
        raise cursor.fault("policy.missing_alias", message, hint=hint)
    place = span(attribute.place, alias.place)
    return AttributeOf(attribute.text, alias.text, place, alias.place)


def _call(cursor: TokenCursor) -> Call:
    function = cursor.take()
    opening = cursor.take()
    aliases = [_argument(cursor, function)]
    while cursor.take_if("mark", ","):
        aliases.append(_argument(cursor, function))
    if not cursor.take_if("mark", ")"):
        raise _unclosed(cursor, function, opening.place)
    place = span(function.place, cursor.last_place())
    names = tuple(alias.text for alias in aliases)
    return Call(function.text, names, place, tuple(alias.place for alias in aliases))


def _argument(cursor: TokenCursor, function: Token) -> Token:
    alias = cursor.peek()
    if alias is None or alias.kind != "word" or cursor.sees("keyword", "of", ahead=1):
        message = f"expected an alias in {function.text}(...)"
        hint = f"a function takes one or two aliases, such as: {function.text}(A, B)"
        raise cursor.fault("policy.missing_alias", message, hint=hint)
    return cursor.take()


def _unclosed(cursor: TokenCursor, function: Token, opening: SourceSpan) -> SyntaxFault:
    if cursor.sees("word"):
        message = "expected a comma between two aliases"
        hint = f"such as: {function.text}(A, B)"
        return cursor.fault("policy.missing_comma", message, hint=hint)
    message = "there is no closing parenthesis for this one"
    hint = f"such as: {function.text}(A, B)"
    return SyntaxFault("policy.unclosed_parenthesis", message, opening, hint)
