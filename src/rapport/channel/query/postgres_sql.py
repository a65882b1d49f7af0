"""Translates a condition to SQL for PostgreSQL, so that the store filters. [CH-4, CH-13]

For a table with the columns position, received, time (bigint), source, id, type, subject (text),
data (text, JSON) and headers (jsonb). As in the compiler there is SQL for "true" and SQL for
"false" of every part, so three-valued logic needs no nulls. Where PostgreSQL cannot decide exactly
(calculations, XML, numbers beyond 2^53, payloads it cannot read) the SQL lets the row through, and
`exact` is false: the caller then applies `query.matches` to every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from rapport.channel.query.query_kinds import Query
from rapport.channel.query.tree import (
    TURNED,
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
    kind_of,
)
from rapport.channel.query.values import compare

_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_LARGEST_EXACT = 2**53


class SqlPiece(msgspec.Struct, frozen=True):
    """A piece with its parameters in order of their `%s`."""

    text: str
    parameters: tuple[Any, ...] = ()
    payload: bool = False
    """Whether it speaks of `payload`, which `with_payload` provides."""
    exact: bool = True


TRUE, FALSE = SqlPiece("TRUE"), SqlPiece("FALSE")
UNDECIDED = SqlPiece("TRUE", exact=False)
"""Lets every row through, to be decided elsewhere."""


def all_of(parts: Sequence[SqlPiece]) -> SqlPiece:
    return _joined(parts, " AND ") if parts else TRUE


def any_of(parts: Sequence[SqlPiece]) -> SqlPiece:
    return _joined(parts, " OR ") if parts else FALSE


def _joined(parts: Sequence[SqlPiece], word: str) -> SqlPiece:
    return SqlPiece(
        f"({word.join(part.text for part in parts)})",
        tuple(parameter for part in parts for parameter in part.parameters),
        any(part.payload for part in parts),
        all(part.exact for part in parts),
    )


def negated(part: SqlPiece) -> SqlPiece:
    """True when an exact piece is false."""
    return SqlPiece(f"(NOT {part.text})", part.parameters, part.payload, part.exact)


def with_payload(condition: SqlPiece) -> SqlPiece:
    """The condition with `payload` read once per row; undecidable rows pass."""
    text = (
        "(SELECT row_.payload IS NULL OR coalesce(headers ->> 'datacontenttype', '') "
        f"ILIKE '%%xml%%' OR {condition.text} "
        "FROM (SELECT rapport_payload(data) AS payload OFFSET 0) AS row_)"
    )
    return SqlPiece(text, condition.parameters, payload=True, exact=False)


def can_be_sent(text: str) -> bool:
    return "\0" not in text


# --- envelope -------------------------------------------------------------------------------------


def column(field: Field) -> SqlPiece:
    if field.path[0] == "headers":
        name = str(field.path[1])
        return (
            SqlPiece("(headers ->> %s::text)", (name,))
            if can_be_sent(name)
            else SqlPiece("NULL::text")
        )
    return SqlPiece(str(field.path[0]))


def compared(operator: str, left: SqlPiece, right: SqlPiece, kind: str) -> SqlPiece:
    """Two values of one kind; never SQL null, texts by code points."""
    order = ' COLLATE "C"' if kind == "text" else ""
    text = f"coalesce({left.text} {operator} {right.text}{order}, FALSE)"
    return SqlPiece(text, (*left.parameters, *right.parameters))


# --- payload --------------------------------------------------------------------------------------


def _value(field: Field) -> SqlPiece:
    """jsonb at a path, SQL null where there is none."""
    text, parameters = "row_.payload", []
    for step in field.path[1:]:
        if isinstance(step, int):
            text = f"rapport_element({text}, {step})"
        elif can_be_sent(step):
            text = f"({text} -> %s::text)"
            parameters.append(step)
        else:
            return SqlPiece("NULL::jsonb", (), payload=True)
    return SqlPiece(text, tuple(parameters), payload=True)


def payload_is(field: Field, truth: str) -> SqlPiece:
    value = _value(field)
    text = f"coalesce({value.text} = '{truth}'::jsonb, FALSE)"
    return SqlPiece(text, value.parameters, payload=True)


def payload_has_kind(field: Field, kind: str) -> SqlPiece:
    value = _value(field)
    text = f"coalesce(jsonb_typeof({value.text}) = '{kind}', FALSE)"
    return SqlPiece(text, value.parameters, payload=True, exact=False)


def payload_is_no(field: Field, kind: str) -> SqlPiece:
    """Whether the value is something, but of another kind."""
    value = _value(field)
    text = f"coalesce(jsonb_typeof({value.text}) NOT IN ('{kind}', 'null'), FALSE)"
    return SqlPiece(text, value.parameters, payload=True)


def payload_is_not_null(field: Field) -> SqlPiece:
    value = _value(field)
    text = f"coalesce(jsonb_typeof({value.text}) <> 'null', FALSE)"
    return SqlPiece(text, value.parameters, payload=True)


def payload_text(field: Field, test: str, *parameters: str) -> SqlPiece:
    return _tested(field, "string", "({} #>> '{{}}') COLLATE \"C\" " + test, parameters)


def payload_number(field: Field, test: str, *parameters: float) -> SqlPiece:
    return _tested(field, "number", "{}::float8 " + test, parameters)


def _tested(field: Field, kind: str, test: str, parameters: tuple[Any, ...]) -> SqlPiece:
    """CASE, not AND: only it promises that other kinds are never cast."""
    value = _value(field)
    text = f"(CASE jsonb_typeof({value.text}) WHEN '{kind}' THEN {test.format(value.text)} "
    return SqlPiece(
        text + "ELSE FALSE END)",
        (*value.parameters, *value.parameters, *parameters),
        payload=True,
    )


class SqlCondition(msgspec.Struct, frozen=True):
    """The WHERE clause: `text` with `%s` for `parameters`, in order.

    Never false for a matching row. `exact`: never true for another one.
    """

    text: str
    parameters: tuple[Any, ...] = ()
    exact: bool = True


def to_sql(query: Query) -> SqlCondition:
    """The query for PostgreSQL; a query without a known condition lets every row pass.

    Needs `rapport_payload` and `rapport_element` in the database, whose encoding must be UTF-8.
    """
    if query.condition is None:
        return SqlCondition("TRUE", (), exact=False)
    condition = query.condition
    envelope: list[SqlPiece] = []
    payload: list[SqlPiece] = []
    for part in condition.parts if isinstance(condition, And) else (condition,):
        written = _true(part)
        (payload if written.payload else envelope).append(written)
    if payload:
        envelope.append(with_payload(all_of(payload)))
    whole = all_of(envelope)
    return SqlCondition(whole.text, whole.parameters, whole.exact)


def _true(node: Condition) -> SqlPiece:
    """SQL that is true at least whenever the condition is true."""
    match node:
        case And(parts):
            return all_of([_true(part) for part in parts])
        case Or(parts):
            return any_of([_true(part) for part in parts])
        case Not(operand):
            return _false(operand)
        case Compare():
            return _compared(node, wanted=True)
        case Between(operand, low, high):
            return all_of([_true(part) for part in _ends(operand, low, high)])
        case In(operand, choices):
            return any_of([_true(Compare("=", operand, choice)) for choice in choices])
        case Like(operand, pattern, escape):
            return _like(operand, pattern, escape, wanted=True)
        case IsNull(operand):
            return _null(operand, wanted=True)
        case Field():
            return payload_is(node, "true")
        case Literal(value):
            return TRUE if value is True else FALSE


def _false(node: Condition) -> SqlPiece:
    """SQL that is true at least whenever the condition is false."""
    match node:
        case And(parts):
            return any_of([_false(part) for part in parts])
        case Or(parts):
            return all_of([_false(part) for part in parts])
        case Not(operand):
            return _true(operand)
        case Compare():
            return _compared(node, wanted=False)
        case Between(operand, low, high):
            return any_of([_false(part) for part in _ends(operand, low, high)])
        case In(operand, choices):
            return all_of([_false(Compare("=", operand, choice)) for choice in choices])
        case Like(operand, pattern, escape):
            return _like(operand, pattern, escape, wanted=False)
        case IsNull(operand):
            return _null(operand, wanted=False)
        case Field():
            return payload_is(node, "false")
        case Literal(value):
            return TRUE if value is False else FALSE


def _ends(operand: Value, low: Value, high: Value) -> tuple[Compare, Compare]:
    return Compare(">=", operand, low), Compare("<=", operand, high)


def _compared(node: Compare, *, wanted: bool) -> SqlPiece:
    left, right = node.left, node.right
    if isinstance(left, Literal) and isinstance(right, Literal):
        truth = compare(node.operator, left.value, right.value)
        return TRUE if truth is wanted else FALSE
    if isinstance(left, Literal):
        return _compared(Compare(TURNED[node.operator], right, left), wanted=wanted)
    operator = node.operator if wanted else _OPPOSITE[node.operator]
    if not isinstance(left, Field):
        return UNDECIDED
    if isinstance(right, Field):
        return _two_fields(operator, left, right)
    if not isinstance(right, Literal):
        return UNDECIDED
    if left.path[0] == "data":
        return _payload_with_literal(node, left, right, wanted=wanted)
    return _envelope_with_literal(operator, left, right)


def _two_fields(operator: str, left: Field, right: Field) -> SqlPiece:
    """Envelope fields of one kind are compared by the database; payloads are not."""
    if "data" in (left.path[0], right.path[0]) or kind_of(left) != kind_of(right):
        return UNDECIDED
    return compared(operator, column(left), column(right), kind_of(left))


def _envelope_with_literal(operator: str, field: Field, literal: Literal) -> SqlPiece:
    kind = kind_of(field)
    if kind != kind_of(literal):
        return UNDECIDED
    value = literal.value
    if isinstance(value, str):
        if not can_be_sent(value):
            return UNDECIDED
        return compared(operator, column(field), SqlPiece("%s::text", (value,)), kind)
    number = Decimal(value) if isinstance(value, float) else value
    return compared(operator, column(field), SqlPiece("%s::numeric", (number,)), kind)


def _payload_with_literal(
    node: Compare, field: Field, literal: Literal, *, wanted: bool
) -> SqlPiece:
    value, operator = literal.value, node.operator
    if isinstance(value, bool):
        if operator not in ("=", "<>"):
            return FALSE if wanted else payload_is_not_null(field)
        is_same = (operator == "=") is wanted
        same = payload_is(field, "true" if value else "false")
        other = payload_is(field, "false" if value else "true")
        chosen = same if is_same else other
        return chosen if wanted else any_of([chosen, payload_is_no(field, "boolean")])
    kind = "string" if isinstance(value, str) else "number"
    chosen_operator = operator if wanted else _OPPOSITE[operator]
    if isinstance(value, str):
        decided = can_be_sent(value)
        test = payload_text(field, f"{chosen_operator} %s::text", value if decided else "")
    else:
        decided = abs(value) < _LARGEST_EXACT
        test = payload_number(
            field, f"{chosen_operator} %s::float8", float(value) if decided else 0.0
        )
    if not decided:
        test = payload_has_kind(field, kind)
    return test if wanted else any_of([test, payload_is_no(field, kind)])


def _like(operand: Value, pattern: str, escape: str, *, wanted: bool) -> SqlPiece:
    if not isinstance(operand, Field) or not can_be_sent(pattern + escape):
        return UNDECIDED
    test = f"{'LIKE' if wanted else 'NOT LIKE'} %s ESCAPE %s"
    if operand.path[0] != "data":
        found = column(operand)
        return SqlPiece(f'({found.text} COLLATE "C" {test})', (*found.parameters, pattern, escape))
    fits = payload_text(operand, test, pattern, escape)
    return fits if wanted else any_of([fits, payload_is_no(operand, "string")])


def _null(operand: Value, *, wanted: bool) -> SqlPiece:
    if not isinstance(operand, Field):
        return UNDECIDED
    if operand.path[0] == "data":
        something = payload_is_not_null(operand)
        return negated(something) if wanted else something
    found = column(operand)
    return SqlPiece(f"({found.text} IS {'' if wanted else 'NOT '}NULL)", found.parameters)
