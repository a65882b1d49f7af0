"""From the text of a condition to its tree: the SQL-92 subset of JMS selectors. [CH-4]

OR binds weakest, then AND, NOT, comparisons, + and -, * and /, signs. Fields are parsed in
`fields.py`, what may be compared with what is checked in `checking.py`.
"""

from __future__ import annotations

from typing import cast

from rapport.channel.query.checking import comparable, literal_for, need_condition, need_value
from rapport.channel.query.cursor import Cursor
from rapport.channel.query.fields import parse_field
from rapport.channel.query.tree import (
    EVERYTHING,
    And,
    Arithmetic,
    Between,
    Compare,
    Comparison,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    Sign,
    Value,
)
from rapport.channel.query.values import mixed_characters

MAX_CHOICES = 1_000
"""Most literals in one IN."""


def parse_condition(text: str) -> Condition:
    """The tree of a condition; an empty text is the condition that every event fulfils.

    Raises QueryError with line, column, excerpt and hint.
    """
    cursor = Cursor(text)
    if cursor.sees("end"):
        return EVERYTHING
    start = cursor.offset()
    tree = need_condition(cursor, _either(cursor), start)
    if not cursor.sees("end"):
        raise cursor.fault(
            "query.unexpected",
            f"{cursor.shown()} is not expected here",
            "join conditions with AND or OR",
        )
    return tree


def _either(cursor: Cursor) -> Node:
    return _joined(cursor, "OR", Or)


def _both(cursor: Cursor) -> Node:
    return _joined(cursor, "AND", And)


def _joined(cursor: Cursor, keyword: str, kind: type[Or] | type[And]) -> Node:
    below = _both if kind is Or else _opposite
    start = cursor.offset()
    first = below(cursor)
    if not cursor.sees("keyword", keyword):
        return first
    parts = [need_condition(cursor, first, start)]
    while cursor.take_if("keyword", keyword):
        start = cursor.offset()
        parts.append(need_condition(cursor, below(cursor), start))
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    return kind(tuple(flat))


def _opposite(cursor: Cursor) -> Node:
    if not cursor.take_if("keyword", "NOT"):
        return _predicate(cursor)
    with cursor.deeper():
        start = cursor.offset()
        return Not(need_condition(cursor, _opposite(cursor), start))


def _predicate(cursor: Cursor) -> Node:
    start = cursor.offset()
    left = _sum(cursor)
    if cursor.sees("operator"):
        return _comparison(cursor, need_value(cursor, left, start), start)
    if cursor.take_if("keyword", "IS"):
        negated = cursor.take_if("keyword", "NOT") is not None
        cursor.expect("keyword", "NULL", what="NULL")
        return _maybe_not(IsNull(need_value(cursor, left, start)), negated)
    negated = cursor.take_if("keyword", "NOT") is not None
    if cursor.sees("keyword", "BETWEEN", "IN", "LIKE"):
        keyword = cursor.take().text
        parse = {"BETWEEN": _between, "IN": _in, "LIKE": _like}[keyword]
        return _maybe_not(parse(cursor, need_value(cursor, left, start), start), negated)
    if negated:
        raise cursor.fault(
            "query.unexpected", f"{cursor.shown()} is not expected after NOT", "BETWEEN, IN, LIKE"
        )
    return left


def _maybe_not(condition: Condition, negated: bool) -> Condition:
    return Not(condition) if negated else condition


def _comparison(cursor: Cursor, left: Value, start: int) -> Node:
    operator = cast(Comparison, cursor.take().text)
    right_start = cursor.offset()
    right = need_value(cursor, _sum(cursor), right_start)
    left = literal_for(cursor, left, right, start)
    right = literal_for(cursor, right, left, right_start)
    comparable(cursor, left, right, operator, right_start)
    return Compare(operator, left, right)


def _between(cursor: Cursor, operand: Value, _start: int) -> Condition:
    low_start = cursor.offset()
    low = literal_for(cursor, need_value(cursor, _sum(cursor), low_start), operand, low_start)
    comparable(cursor, operand, low, ">=", low_start)
    cursor.expect("keyword", "AND", what="AND and the upper end")
    high_start = cursor.offset()
    high = literal_for(cursor, need_value(cursor, _sum(cursor), high_start), operand, high_start)
    comparable(cursor, operand, high, "<=", high_start)
    return Between(operand, low, high)


def _in(cursor: Cursor, operand: Value, _start: int) -> Condition:
    cursor.expect("mark", "(", what="( and a list")
    choices = [_choice(cursor, operand)]
    while cursor.take_if("mark", ","):
        if len(choices) == MAX_CHOICES:
            raise cursor.fault("query.too_many", f"more than {MAX_CHOICES} choices in one IN")
        choices.append(_choice(cursor, operand))
    cursor.expect("mark", ")", what=", or )")
    return In(operand, tuple(choices))


def _choice(cursor: Cursor, operand: Value) -> Literal:
    start = cursor.offset()
    choice = literal_for(cursor, need_value(cursor, _signed(cursor), start), operand, start)
    if not isinstance(choice, Literal):
        raise cursor.fault_at(start, "query.not_a_literal", "IN lists texts, numbers, TRUE, FALSE")
    comparable(cursor, operand, choice, "=", start)
    return choice


def _like(cursor: Cursor, operand: Value, start: int) -> Condition:
    comparable(cursor, operand, Literal(""), "=", start, timeless=True)
    pattern = cursor.expect("text", what="a quoted pattern")
    escape = ""
    if cursor.take_if("keyword", "ESCAPE"):
        token = cursor.expect("text", what="a quoted character")
        escape = token.text
        if len(escape) != 1:
            raise cursor.fault_at(token.offset, "query.bad_escape", "ESCAPE names one character")
        if pattern.text.replace(escape * 2, "").endswith(escape):
            raise cursor.fault_at(
                pattern.offset, "query.bad_escape", "the pattern ends with the escape character"
            )
    cursor.count_mixed(pattern.offset, mixed_characters(pattern.text, escape))
    return Like(operand, pattern.text, escape)


def _sum(cursor: Cursor) -> Node:
    return _chain(cursor, ("+", "-"))


def _product(cursor: Cursor) -> Node:
    return _chain(cursor, ("*", "/"))


def _chain(cursor: Cursor, signs: tuple[str, str]) -> Node:
    below = _product if "+" in signs else _signed
    start = cursor.offset()
    left = below(cursor)
    while cursor.sees("mark", *signs):
        cursor.count_arithmetic()
        sign = cast(Sign, cursor.take().text)
        right_start = cursor.offset()
        right = need_value(cursor, below(cursor), right_start, number=True)
        left = Arithmetic(sign, need_value(cursor, left, start, number=True), right)
    return left


def _signed(cursor: Cursor) -> Node:
    if cursor.take_if("mark", "+"):
        start = cursor.offset()
        with cursor.deeper():
            return need_value(cursor, _signed(cursor), start, number=True)
    if not cursor.take_if("mark", "-"):
        return _primary(cursor)
    start = cursor.offset()
    with cursor.deeper():
        operand = need_value(cursor, _signed(cursor), start, number=True)
    if isinstance(operand, Literal) and isinstance(operand.value, int | float):
        return Literal(-operand.value)
    return Negative(operand)


def _primary(cursor: Cursor) -> Node:
    if cursor.take_if("mark", "("):
        with cursor.deeper():
            inner = _either(cursor)
        cursor.expect("mark", ")", what=")")
        return inner
    if cursor.sees("number"):
        return Literal(_number(cursor))
    if cursor.sees("text"):
        return Literal(cursor.take().text)
    if cursor.sees("keyword", "TRUE", "FALSE"):
        return Literal(cursor.take().text == "TRUE")
    return parse_field(cursor)


def _number(cursor: Cursor) -> int | float:
    token = cursor.take()
    if token.text.isdecimal():
        return int(token.text)
    number = float(token.text)
    if number in (float("inf"), float("-inf")):
        raise cursor.fault_at(token.offset, "query.bad_number", "the number is too large")
    return number
