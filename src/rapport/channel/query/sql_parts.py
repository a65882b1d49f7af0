"""Pieces of SQL that conditions are put together from; `to_sql.py` says which. [CH-4, CH-13]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.channel.query.tree import Field

PAYLOAD_FUNCTIONS = r"""
CREATE OR REPLACE FUNCTION rapport_payload(data text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  IF data ~ '[0-9]{200}|[0-9.][eE][+-]?[0-9]{3}'
     OR length(data) - length(translate(data, '[{', '')) > 300 THEN
    RETURN NULL;
  END IF;
  RETURN data::jsonb;
EXCEPTION WHEN data_exception OR statement_too_complex THEN
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION rapport_element(list jsonb, place integer) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE jsonb_typeof(list) WHEN 'array' THEN list -> place END
$$;
"""
"""`rapport_payload`: the payload; SQL null where PostgreSQL and Python might read it differently:
not JSON, absurd numbers, very deep. A JSON null is not SQL null. `rapport_element`: PostgreSQL's
own `-> 0` of a scalar would be the scalar.
"""


class Sql(msgspec.Struct, frozen=True):
    """A piece with its parameters in order of their `%s`."""

    text: str
    parameters: tuple[Any, ...] = ()
    payload: bool = False
    """Whether it speaks of `payload`, which `with_payload` provides."""
    exact: bool = True


TRUE, FALSE = Sql("TRUE"), Sql("FALSE")
UNDECIDED = Sql("TRUE", exact=False)
"""Lets every row through, to be decided elsewhere."""


def every(parts: Sequence[Sql]) -> Sql:
    """True when all are."""
    return _joined(parts, " AND ") if parts else TRUE


def some(parts: Sequence[Sql]) -> Sql:
    """True when one is."""
    return _joined(parts, " OR ") if parts else FALSE


def _joined(parts: Sequence[Sql], word: str) -> Sql:
    return Sql(
        f"({word.join(part.text for part in parts)})",
        tuple(parameter for part in parts for parameter in part.parameters),
        any(part.payload for part in parts),
        all(part.exact for part in parts),
    )


def opposite(part: Sql) -> Sql:
    """True when an exact piece is false."""
    return Sql(f"(NOT {part.text})", part.parameters, part.payload, part.exact)


def with_payload(condition: Sql) -> Sql:
    """The condition with `payload` read once per row; rows that it cannot decide come through."""
    text = (
        "(SELECT row_.payload IS NULL OR coalesce(headers ->> 'datacontenttype', '') "
        f"ILIKE '%%xml%%' OR {condition.text} "
        "FROM (SELECT rapport_payload(data) AS payload OFFSET 0) AS row_)"
    )
    return Sql(text, condition.parameters, payload=True, exact=False)


def can_be_sent(text: str) -> bool:
    """Whether PostgreSQL can hold a text."""
    return "\0" not in text


# --- envelope -------------------------------------------------------------------------------------


def column(field: Field) -> Sql:
    """An envelope field or a header."""
    if field.path[0] == "headers":
        name = str(field.path[1])
        return Sql("(headers ->> %s::text)", (name,)) if can_be_sent(name) else Sql("NULL::text")
    return Sql(str(field.path[0]))


def compared(operator: str, left: Sql, right: Sql, kind: str) -> Sql:
    """Two values of one kind; never SQL null, texts by code points."""
    order = ' COLLATE "C"' if kind == "text" else ""
    text = f"coalesce({left.text} {operator} {right.text}{order}, FALSE)"
    return Sql(text, (*left.parameters, *right.parameters))


# --- payload --------------------------------------------------------------------------------------


def _value(field: Field) -> Sql:
    """jsonb at a path, SQL null where there is none."""
    text, parameters = "row_.payload", []
    for step in field.path[1:]:
        if isinstance(step, int):
            text = f"rapport_element({text}, {step})"
        elif can_be_sent(step):
            text = f"({text} -> %s::text)"
            parameters.append(step)
        else:
            return Sql("NULL::jsonb", (), payload=True)
    return Sql(text, tuple(parameters), payload=True)


def payload_is(field: Field, truth: str) -> Sql:
    """Whether the value is TRUE or FALSE."""
    value = _value(field)
    text = f"coalesce({value.text} = '{truth}'::jsonb, FALSE)"
    return Sql(text, value.parameters, payload=True)


def payload_has_kind(field: Field, kind: str) -> Sql:
    """Whether the value is of a kind of JSON."""
    value = _value(field)
    text = f"coalesce(jsonb_typeof({value.text}) = '{kind}', FALSE)"
    return Sql(text, value.parameters, payload=True, exact=False)


def payload_is_no(field: Field, kind: str) -> Sql:
    """Whether the value is something, but of another kind."""
    value = _value(field)
    text = f"coalesce(jsonb_typeof({value.text}) NOT IN ('{kind}', 'null'), FALSE)"
    return Sql(text, value.parameters, payload=True)


def payload_is_something(field: Field) -> Sql:
    """Whether the value is not null."""
    value = _value(field)
    text = f"coalesce(jsonb_typeof({value.text}) <> 'null', FALSE)"
    return Sql(text, value.parameters, payload=True)


def payload_text(field: Field, test: str, *parameters: str) -> Sql:
    """Whether the value is a text that passes."""
    return _tested(field, "string", "({} #>> '{{}}') COLLATE \"C\" " + test, parameters)


def payload_number(field: Field, test: str, *parameters: float) -> Sql:
    """Whether the value is a number that passes."""
    return _tested(field, "number", "{}::float8 " + test, parameters)


def _tested(field: Field, kind: str, test: str, parameters: tuple[Any, ...]) -> Sql:
    """CASE, not AND: only it promises that other kinds are never cast."""
    value = _value(field)
    text = f"(CASE jsonb_typeof({value.text}) WHEN '{kind}' THEN {test.format(value.text)} "
    return Sql(
        text + "ELSE FALSE END)",
        (*value.parameters, *value.parameters, *parameters),
        payload=True,
    )
