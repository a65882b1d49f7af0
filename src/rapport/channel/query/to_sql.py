"""From a condition to SQL for PostgreSQL, so that the store itself leaves out what cannot match.
[CH-4, CH-13]

For a table with the columns position, received, time (bigint), source, id, type, subject (text),
data (text, JSON) and headers (jsonb). As in the compiler there is SQL for "true" and SQL for
"false" of every part, so three-valued logic needs no nulls. Where PostgreSQL cannot be asked
exactly (calculations, XML, numbers beyond 2^53, payloads it cannot read) the SQL lets the row
through, and `exact` is false: the caller then tries `query.matches` on every row it gets.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from rapport.channel.query import sql_parts as sql
from rapport.channel.query.checking import kind_of
from rapport.channel.query.kinds import Query
from rapport.channel.query.sql_parts import FALSE, TRUE, Sql
from rapport.channel.query.tree import (
    And,
    Between,
    Compare,
    Condition,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Value,
)
from rapport.channel.query.values import compare

SQL_FUNCTIONS = sql.PAYLOAD_FUNCTIONS
"""SQL to run once per database before conditions are used; harmless when run again."""

_TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_LARGEST_EXACT = 2**53


class SqlCondition(msgspec.Struct, frozen=True):
    """What to put behind WHERE: `text` with `%s` places for `parameters`, in order.

    Never false for a row that matches. `exact`: never true for a row that does not.
    """

    text: str
    parameters: tuple[Any, ...] = ()
    exact: bool = True


def to_sql(query: Query) -> SqlCondition:
    """The query for PostgreSQL; a query that says nothing of its condition lets every row through.

    Needs `SQL_FUNCTIONS` in the database, whose encoding must be UTF-8.
    """
    if query.condition is None:
        return SqlCondition("TRUE", (), exact=False)
    condition = query.condition
    envelope: list[Sql] = []
    payload: list[Sql] = []
    for part in condition.parts if isinstance(condition, And) else (condition,):
        written = _true(part)
        (payload if written.payload else envelope).append(written)
    if payload:
        envelope.append(sql.with_payload(sql.every(payload)))
    whole = sql.every(envelope)
    return SqlCondition(whole.text, whole.parameters, whole.exact)


def _true(node: Condition) -> Sql:
    """SQL that is true at least whenever the condition is true."""
    match node:
        case And(parts):
            return sql.every([_true(part) for part in parts])
        case Or(parts):
            return sql.some([_true(part) for part in parts])
        case Not(operand):
            return _false(operand)
        case Compare():
            return _compared(node, wanted=True)
        case Between(operand, low, high):
            return sql.every([_true(part) for part in _ends(operand, low, high)])
        case In(operand, choices):
            return sql.some([_true(Compare("=", operand, choice)) for choice in choices])
        case Like(operand, pattern, escape):
            return _like(operand, pattern, escape, wanted=True)
        case IsNull(operand):
            return _null(operand, wanted=True)
        case Field():
            return sql.payload_is(node, "true")
        case Literal(value):
            return TRUE if value is True else FALSE


def _false(node: Condition) -> Sql:
    """SQL that is true at least whenever the condition is false."""
    match node:
        case And(parts):
            return sql.some([_false(part) for part in parts])
        case Or(parts):
            return sql.every([_false(part) for part in parts])
        case Not(operand):
            return _true(operand)
        case Compare():
            return _compared(node, wanted=False)
        case Between(operand, low, high):
            return sql.some([_false(part) for part in _ends(operand, low, high)])
        case In(operand, choices):
            return sql.every([_false(Compare("=", operand, choice)) for choice in choices])
        case Like(operand, pattern, escape):
            return _like(operand, pattern, escape, wanted=False)
        case IsNull(operand):
            return _null(operand, wanted=False)
        case Field():
            return sql.payload_is(node, "false")
        case Literal(value):
            return TRUE if value is False else FALSE


def _ends(operand: Value, low: Value, high: Value) -> tuple[Compare, Compare]:
    return Compare(">=", operand, low), Compare("<=", operand, high)


def _compared(node: Compare, *, wanted: bool) -> Sql:
    left, right = node.left, node.right
    if isinstance(left, Literal) and isinstance(right, Literal):
        truth = compare(node.operator, left.value, right.value)
        return TRUE if truth is wanted else FALSE
    if isinstance(left, Literal):
        turned: Any = _TURNED[node.operator]
        return _compared(Compare(turned, right, left), wanted=wanted)
    operator = node.operator if wanted else _OPPOSITE[node.operator]
    if not isinstance(left, Field):
        return sql.UNDECIDED
    if isinstance(right, Field):
        return _two_fields(operator, left, right)
    if not isinstance(right, Literal):
        return sql.UNDECIDED
    if left.path[0] == "data":
        return _payload_with_literal(node, left, right, wanted=wanted)
    return _envelope_with_literal(operator, left, right)


def _two_fields(operator: str, left: Field, right: Field) -> Sql:
    """Envelope fields of one kind are compared by the database; payloads are not."""
    if "data" in (left.path[0], right.path[0]) or kind_of(left) != kind_of(right):
        return sql.UNDECIDED
    return sql.compared(operator, sql.column(left), sql.column(right), kind_of(left))


def _envelope_with_literal(operator: str, field: Field, literal: Literal) -> Sql:
    kind = kind_of(field)
    if kind != kind_of(literal):
        return sql.UNDECIDED
    value = literal.value
    if isinstance(value, str):
        if not sql.can_be_sent(value):
            return sql.UNDECIDED
        return sql.compared(operator, sql.column(field), Sql("%s::text", (value,)), kind)
    number = Decimal(value) if isinstance(value, float) else value
    return sql.compared(operator, sql.column(field), Sql("%s::numeric", (number,)), kind)


def _payload_with_literal(node: Compare, field: Field, literal: Literal, *, wanted: bool) -> Sql:
    value, operator = literal.value, node.operator
    if isinstance(value, bool):
        if operator not in ("=", "<>"):
            return FALSE if wanted else sql.payload_is_something(field)
        is_same = (operator == "=") is wanted
        same = sql.payload_is(field, "true" if value else "false")
        other = sql.payload_is(field, "false" if value else "true")
        chosen = same if is_same else other
        return chosen if wanted else sql.some([chosen, sql.payload_is_no(field, "boolean")])
    kind = "string" if isinstance(value, str) else "number"
    chosen_operator = operator if wanted else _OPPOSITE[operator]
    if isinstance(value, str):
        decided = sql.can_be_sent(value)
        test = sql.payload_text(field, f"{chosen_operator} %s::text", value if decided else "")
    else:
        decided = abs(value) < _LARGEST_EXACT
        test = sql.payload_number(
            field, f"{chosen_operator} %s::float8", float(value) if decided else 0.0
        )
    if not decided:
        test = sql.payload_has_kind(field, kind)
    return test if wanted else sql.some([test, sql.payload_is_no(field, kind)])


def _like(operand: Value, pattern: str, escape: str, *, wanted: bool) -> Sql:
    if not isinstance(operand, Field) or not sql.can_be_sent(pattern + escape):
        return sql.UNDECIDED
    test = f"{'LIKE' if wanted else 'NOT LIKE'} %s ESCAPE %s"
    if operand.path[0] != "data":
        column = sql.column(operand)
        return Sql(f'({column.text} COLLATE "C" {test})', (*column.parameters, pattern, escape))
    fits = sql.payload_text(operand, test, pattern, escape)
    return fits if wanted else sql.some([fits, sql.payload_is_no(operand, "string")])


def _null(operand: Value, *, wanted: bool) -> Sql:
    if not isinstance(operand, Field):
        return sql.UNDECIDED
    if operand.path[0] == "data":
        something = sql.payload_is_something(operand)
        return sql.opposite(something) if wanted else something
    column = sql.column(operand)
    return Sql(f"({column.text} IS {'' if wanted else 'NOT '}NULL)", column.parameters)
