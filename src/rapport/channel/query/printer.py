"""The canonical text of a condition: parsing it gives the same tree again. [CH-4]"""

from __future__ import annotations

import re

from rapport.channel.query.tokens import KEYWORDS
from rapport.channel.query.tree import (
    And,
    Arithmetic,
    Between,
    Compare,
    Condition,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
)
from rapport.core.times import format_time

_PLAIN_NAME = re.compile(r"[^\W\d][\w$]*\Z")
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGN, _ALONE = range(8)


def print_condition(condition: Condition) -> str:
    """The text with capital keywords, single spaces and no needless parentheses.

    >>> from rapport.channel.query.parser import parse_condition
    >>> print_condition(parse_condition("not (type='a' or (data.x)>5)"))
    "NOT (type = 'a' OR data.x > 5)"
    """
    return _print(condition, _OR)


def _print(node: Node, within: int) -> str:
    """The node's text, in parentheses when it binds weaker than its place asks for."""
    strength, text = _strength_and_text(node)
    return text if strength >= within else f"({text})"


def _strength_and_text(node: Node) -> tuple[int, str]:
    match node:
        case Or(parts):
            return _OR, " OR ".join(_print(part, _AND) for part in parts)
        case And(parts):
            return _AND, " AND ".join(_print(part, _NOT) for part in parts)
        case Not(operand):
            return _not(operand)
        case Arithmetic(sign, left, right):
            strength = _SUM if sign in "+-" else _PRODUCT
            return strength, f"{_print(left, strength)} {sign} {_print(right, strength + 1)}"
        case Negative(operand):
            return _SIGN, f"-{_print(operand, _ALONE)}"
        case Literal():
            # A negative number is written like a sign before a number.
            negative = not isinstance(node.value, str) and not node.is_time and _is_negative(node)
            return _SIGN if negative else _ALONE, _literal(node)
        case Field():
            return _ALONE, print_field(node)
        case _:
            return _PREDICATE, _predicate(node, "")


def _not(operand: Condition) -> tuple[int, str]:
    if isinstance(operand, IsNull | Between | In | Like):
        return _PREDICATE, _predicate(operand, "NOT ")
    return _NOT, f"NOT {_print(operand, _NOT)}"


def _predicate(node: Node, negation: str) -> str:
    match node:
        case Compare(operator, left, right):
            return f"{_print(left, _SUM)} {operator} {_print(right, _SUM)}"
        case Between(operand, low, high):
            ends = f"{_print(low, _SUM)} AND {_print(high, _SUM)}"
            return f"{_print(operand, _SUM)} {negation}BETWEEN {ends}"
        case In(operand, choices):
            listed = ", ".join(_literal(choice) for choice in choices)
            return f"{_print(operand, _SUM)} {negation}IN ({listed})"
        case Like(operand, pattern, escape):
            ending = f" ESCAPE {_quoted(escape)}" if escape else ""
            return f"{_print(operand, _SUM)} {negation}LIKE {_quoted(pattern)}{ending}"
        case IsNull(operand):
            return f"{_print(operand, _SUM)} IS {negation}NULL"
        case _:
            raise AssertionError(f"{node!r} is no predicate")


def _is_negative(literal: Literal) -> bool:
    return _literal(literal).startswith("-")


def _literal(literal: Literal) -> str:
    value = literal.value
    if literal.is_time:
        return _quoted(format_time(int(value)))
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def print_field(field: Field) -> str:
    """The canonical text of a field."""
    text = str(field.path[0])
    for step in field.path[1:]:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_NAME.match(step.removeprefix("@")) and step.upper() not in KEYWORDS:
            text += f".{step}"
        else:
            quoted = step.replace('"', '""')
            text += f'."{quoted}"'
    return text
