"""Comparisons: `temperature of S above 30 degC`, `distance(A, B) < minimumDistance(A, B)`.
[PO-3]"""

from __future__ import annotations

import math
from typing import NamedTuple

from rapport.policy.language.cursor import Cursor, SyntaxFault, span
from rapport.policy.language.durations import TIMING_WORDS
from rapport.policy.language.printer import print_measured
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import (
    AttributeOf,
    Call,
    Comparison,
    Measured,
    Operator,
    Place,
    Quantity,
)

OPERATORS: dict[str, Operator] = {
    "=": "=",
    "!=": "!=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
}
MISWRITTEN = {"==": "=", "<>": "!=", "=<": "<=", "=>": ">="}
COMPARING_WORDS: dict[str, Operator] = {
    "above": ">",
    "over": ">",
    "below": "<",
    "under": "<",
    "equals": "=",
}
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
_WORDS = "above, below, at least, at most, is, is not"


class _Said(NamedTuple):
    """How two operands are compared, and the words that said so."""

    operator: Operator
    negated: bool
    words: str


def begins_comparison(cursor: Cursor, aliases: frozenset[str]) -> bool:
    """True when what comes next can only be an operand of a comparison."""
    token = cursor.peek()
    if token is None or token.kind in ("number", "text"):
        return token is not None
    if token.kind != "word":
        return False
    called = cursor.sees("mark", "(", ahead=1) and token.text not in aliases
    return called or cursor.sees("keyword", "of", ahead=1)


def read_comparison(cursor: Cursor, aliases: frozenset[str]) -> Comparison:
    """The comparison that comes next; raises SyntaxFault."""
    start = cursor.place()
    left = _operand(cursor, aliases)
    said = _operator(cursor, left, aliases)
    right = _operand(cursor, aliases, f"{print_measured(left)} {said.words}", said.operator)
    place = span(start, cursor.last_place())
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        message = "both sides are constants, so there is nothing to watch"
        hint = "write an attribute on one side, such as: temperature of S"
        raise SyntaxFault("policy.constant_comparison", message, place, hint)
    _refuse_third(cursor, f"{print_measured(left)} {said.words}", right)
    return Comparison(left, said.operator, right, said.negated, place)


def _operator(cursor: Cursor, left: Measured, aliases: frozenset[str]) -> _Said:
    has_is = cursor.take_if("keyword", "is") is not None
    has_not = cursor.take_if("keyword", "not") is not None
    token = cursor.peek()
    if token is not None and token.kind == "operator":
        return _Said(read_operator(cursor), has_not, token.text)
    word = token.text.lower() if token is not None and token.kind == "word" else ""
    if word in COMPARING_WORDS:
        cursor.take()
        return _Said(COMPARING_WORDS[word], has_not, word)
    if word == "at":
        return _at(cursor, left, has_not)
    if word in _MEANT or word == "between":
        raise _other_word(cursor, word, left)
    if has_is:
        return _Said("!=" if has_not else "=", False, "is not" if has_not else "is")
    raise _expected_comparison(cursor, left, aliases)


def read_operator(cursor: Cursor) -> Operator:
    """The operator that comes next; raises SyntaxFault when it is miswritten."""
    token = cursor.take()
    if token.text in MISWRITTEN:
        message = f"there is no operator {token.text}"
        hint = f"did you mean {MISWRITTEN[token.text]}?"
        raise SyntaxFault("policy.bad_operator", message, token.place, hint)
    return OPERATORS[token.text]


def _at(cursor: Cursor, left: Measured, negated: bool) -> _Said:
    at = cursor.take()
    word = cursor.peek()
    if word is None or word.kind != "word" or word.text.lower() not in _AT:
        message = "expected 'at least' or 'at most'"
        hint = f"such as: {print_measured(left)} at least {_example(left)}"
        raise SyntaxFault("policy.expected_comparison", message, at.place, hint)
    cursor.take()
    return _Said(_AT[word.text.lower()], negated, f"at {word.text.lower()}")


def _other_word(cursor: Cursor, word: str, left: Measured) -> SyntaxFault:
    shown = print_measured(left)
    hint = f"did you mean: {shown} {_MEANT.get(word)} ...?"
    if word == "between":
        hint = f"write: {shown} at least ... AND {shown} at most ..."
    message = f"{word!r} is no word for comparing"
    return cursor.fault("policy.expected_comparison", message, hint=hint)


def _expected_comparison(cursor: Cursor, left: Measured, aliases: frozenset[str]) -> SyntaxFault:
    shown = print_measured(left)
    if isinstance(left, AttributeOf) and left.attribute in aliases:
        message = f"expected a relationship between {left.attribute!r} and {left.alias!r}"
        hint = f"such as: {left.attribute} is inside {left.alias}"
        return SyntaxFault("policy.expected_relationship", message, left.place, hint)
    hint = f"write {_WORDS} or an operator, such as: {shown} above {_example(left)}"
    if isinstance(left, Quantity):
        hint = f"write out what is compared, such as: temperature of S above {shown}"
    message = f"expected a comparison after {shown!r}"
    return cursor.fault("policy.expected_comparison", message, hint=hint)


def _example(left: Measured) -> str:
    return "5 m" if isinstance(left, Call) else "30 degC"


def _refuse_third(cursor: Cursor, before: str, right: Measured) -> None:
    token = cursor.peek()
    if token is None:
        return
    again = token.kind == "operator" or token.text.lower() in (*COMPARING_WORDS, "is", "at")
    if again and token.kind in ("operator", "word", "keyword"):
        middle = print_measured(right)
        message = "a comparison has two sides"
        hint = f"join two with AND: {before} {middle} AND {middle} {token.text} ..."
        raise cursor.fault("policy.chained_comparison", message, hint=hint)


def _operand(
    cursor: Cursor, aliases: frozenset[str], before: str = "", operator: Operator = "="
) -> Measured:
    """The next operand; `before` and `operator` are what stands left of it, for the fault."""
    token = cursor.peek()
    if token is not None and token.kind == "number":
        return _quantity(cursor)
    if token is not None and token.kind == "text":
        return Quantity(cursor.take().text, "", token.place)
    if token is not None and token.kind == "word":
        if cursor.sees("mark", "(", ahead=1):
            return _call(cursor)
        if cursor.sees("keyword", "of", ahead=1):
            return _attribute(cursor)
        if token.text.lower() in ("true", "false"):
            return Quantity(cursor.take().text.lower(), "", token.place)
    message = f"expected a value after {before!r}"
    hint = f"write a number with its unit, such as: {before} 30 degC"
    if token is not None and token.kind == "word" and token.text in aliases:
        hint = f"say which attribute of it, such as: temperature of {token.text}"
    elif token is not None and token.kind == "word" and operator in ("=", "!="):
        hint = f"put text in quotes: '{token.text}'"
    raise cursor.fault("policy.expected_value", message, hint=hint)


def _quantity(cursor: Cursor) -> Quantity:
    number = cursor.take()
    value = float(number.text)
    if not math.isfinite(value):
        message = "the number is too large"
        raise SyntaxFault("policy.bad_number", message, number.place, "at most 1e308")
    unit = cursor.peek()
    if unit is None or not _is_unit(unit):
        return Quantity(value, "", number.place)
    cursor.take()
    after = cursor.peek()
    if after is not None and after.kind == "word" and _is_unit(after):
        message = f"a unit is one word, so {after.text!r} does not belong here"
        hint = "such as degC, %, km/h; or put what follows on a line of its own"
        raise cursor.fault("policy.bad_unit", message, hint=hint)
    return Quantity(value, unit.text, span(number.place, unit.place))


def _is_unit(token: Token) -> bool:
    if token.kind == "unit":
        return True
    words = (*TIMING_WORDS, *COMPARING_WORDS, "at")
    return token.kind == "word" and token.text.lower() not in words


def _attribute(cursor: Cursor) -> AttributeOf:
    attribute = cursor.take()
    cursor.take()
    misread = cursor.sees("word", *COMPARING_WORDS) and cursor.sees("number", ahead=1)
    alias = None if misread else cursor.take_if("word")
    if alias is None:
        message = f"expected an alias after '{attribute.text} of'"
        hint = f"say whose {attribute.text}, such as: {attribute.text} of S"
        raise cursor.fault("policy.missing_alias", message, hint=hint)
    place = span(attribute.place, alias.place)
    return AttributeOf(attribute.text, alias.text, place, alias.place)


def _call(cursor: Cursor) -> Call:
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


def _argument(cursor: Cursor, function: Token) -> Token:
    alias = cursor.peek()
    if alias is None or alias.kind != "word" or cursor.sees("keyword", "of", ahead=1):
        message = f"expected an alias in {function.text}(...)"
        hint = f"a function takes one or two aliases, such as: {function.text}(A, B)"
        raise cursor.fault("policy.missing_alias", message, hint=hint)
    return cursor.take()


def _unclosed(cursor: Cursor, function: Token, opening: Place) -> SyntaxFault:
    if cursor.sees("word"):
        message = "expected a comma between two aliases"
        hint = f"such as: {function.text}(A, B)"
        return cursor.fault("policy.missing_comma", message, hint=hint)
    message = "there is no closing parenthesis for this one"
    hint = f"such as: {function.text}(A, B)"
    return SyntaxFault("policy.unclosed_parenthesis", message, opening, hint)
