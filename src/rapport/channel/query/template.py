"""Equality templates: an object that says which fields must be equal, null for "any". [CH-4]

`{"type": "badge.seen", "data": {"room": {"floor": 2}}}` becomes the condition
`type = 'badge.seen' AND data.room.floor = 2`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rapport.channel.query.fields import MAX_STEPS
from rapport.channel.query.tree import (
    FIELDS,
    ROOTS,
    And,
    Compare,
    Condition,
    Field,
    Literal,
    field_kind,
)
from rapport.core.errors import InvalidInput, nearest_names
from rapport.core.times import parse_time

MAX_FIELDS = 200


def template_condition(template: dict[str, Any]) -> Condition:
    """The condition a template stands for; raises InvalidInput naming the member at fault."""
    parts = _parts(template, ())
    if len(parts) > MAX_FIELDS:
        raise _fault("", f"names {len(parts)} fields; {MAX_FIELDS} are allowed")
    return And(tuple(parts))


def template_text(template: dict[str, Any]) -> str:
    """The same template always gives the same text, whatever the order of its members."""
    try:
        return msgspec.json.encode(template, order="sorted").decode()
    except (OverflowError, TypeError, ValueError) as error:
        raise _fault("", f"cannot be written as JSON: {error}") from None


def _parts(members: dict[str, Any], path: tuple[str, ...]) -> list[Condition]:
    parts: list[Condition] = []
    for name, value in sorted(members.items()):
        place = (*path, name)
        if not path and name not in FIELDS:
            raise _unknown(name)
        if len(place) > MAX_STEPS:
            raise _fault(".".join(place), f"is deeper than {MAX_STEPS} steps")
        if isinstance(value, dict) and place[0] in ROOTS:
            parts += _parts(value, place)
        elif value is not None:
            parts.append(_equal(Field(place), value))
    return parts


def _equal(field: Field, value: Any) -> Compare:
    place = ".".join(str(step) for step in field.path)
    kind = field_kind(field)
    if field.path[0] == "headers" and len(field.path) != 2:
        raise _fault(place, "must be an object of header names and texts")
    if kind == "time" and isinstance(value, str):
        try:
            return Compare("=", field, Literal(parse_time(value), is_time=True))
        except InvalidInput as error:
            raise _fault(place, error.message, error.hint) from None
    if not isinstance(value, str | int | float):
        raise _fault(place, "must be a text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise _fault(place, "must be a finite number")
    is_text, is_number = isinstance(value, str), not isinstance(value, str | bool)
    if (kind == "text" and not is_text) or (kind in ("time", "number") and not is_number):
        raise _fault(place, f"must be a {kind}")
    return Compare("=", field, Literal(value))


def _unknown(name: str) -> InvalidInput:
    nearest = nearest_names(name, FIELDS, limit=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"fields: {', '.join(FIELDS)}"
    return InvalidInput(
        f"the template names {name[:60]!r}, which is no field",
        code="query.unknown_field",
        hint=f'{hint} Members of the payload stand under "data"',
    )


def _fault(place: str, message: str, hint: str = "") -> InvalidInput:
    where = f"the template's {place[:120]}" if place else "the template"
    return InvalidInput(f"{where} {message}", code="query.bad_template", hint=hint)
