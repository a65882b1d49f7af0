"""The names that may stand in a condition: envelope fields and paths into the payload. [CH-4]"""

from __future__ import annotations

from rapport.channel.query.cursor import Cursor
from rapport.channel.query.tree import FIELDS, ROOTS, Field, Step
from rapport.core.errors import nearest_names

MAX_STEPS = 20
"""Longest path, in steps."""
_LARGEST_INDEX = 1_000_000


def parse_field(cursor: Cursor) -> Field:
    """A field at the cursor; raises QueryError with the nearest name for one that does not exist.

    `data.room`, `data."room number"`, `data.value[0]`, `data.order.@id`, `headers.traceparent`.
    """
    if not cursor.sees("word") and not cursor.sees("name"):
        raise cursor.fault(
            "query.unexpected",
            f"expected a field, a text or a number, found {cursor.shown()}",
            f"fields are {', '.join(FIELDS[:-2])}, data.NAME and headers.NAME",
        )
    start = cursor.offset()
    name = cursor.take().text
    if name not in FIELDS:
        raise cursor.fault_at(
            start, "query.unknown_field", f"there is no field {name[:60]!r}", field_hint(name)
        )
    path: list[Step] = [name]
    while step := _step(cursor):
        path += step
        if len(path) > MAX_STEPS:
            raise cursor.fault_at(start, "query.too_deep", f"a path of over {MAX_STEPS} steps")
    _check_path(cursor, path, start)
    return Field(tuple(path))


def field_hint(name: str) -> str:
    """What a person may have meant by a name that is no field."""
    nearest = nearest_names(name.lower(), FIELDS, limit=1)
    if nearest:
        return f"did you mean {nearest[0]!r}? Fields of the payload are written data.{name[:60]}"
    return f"fields of the payload are written data.{name[:60]}"


def _step(cursor: Cursor) -> tuple[Step, ...]:
    if cursor.take_if("mark", "."):
        sign = "@" if cursor.take_if("mark", "@") else ""
        if not (cursor.sees("word") or cursor.sees("name") or cursor.sees("keyword")):
            raise cursor.fault(
                "query.unexpected",
                f"expected a name after the point, found {cursor.shown()}",
                'names with other signs stand in double quotes: data."room number"',
            )
        return (sign + cursor.take_name(),)
    if cursor.take_if("mark", "["):
        token = cursor.expect("number", what="the number of an element, counted from 0")
        if not token.text.isdecimal() or int(token.text) > _LARGEST_INDEX:
            raise cursor.fault_at(token.offset, "query.bad_number", "elements are counted 0, 1, 2")
        cursor.expect("mark", "]", what="]")
        return (int(token.text),)
    return ()


def _check_path(cursor: Cursor, path: list[Step], start: int) -> None:
    root, steps = path[0], path[1:]
    if root not in ROOTS and steps:
        raise cursor.fault_at(
            start, "query.unknown_field", f"{root!r} has no parts", "only data and headers have"
        )
    if root == "headers" and (len(steps) != 1 or not isinstance(steps[0], str)):
        raise cursor.fault_at(
            start, "query.unknown_field", "a header is written headers.NAME", "headers are texts"
        )
