"""What the kinds in `finding.py` do: rows of tables, and present values. [ME-4]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, UnknownName
from rapport.mediation.model.finding import ContextLookup, Finding, TableLookup
from rapport.mediation.model.passing import Calculation
from rapport.mediation.model.rejecting import SHOWN, finite, text
from rapport.mediation.model.shaping import is_of_kind
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.rejection import Rejected
from rapport.units.quantities import parse_number

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def finding(
    how: Finding, name: str, kinds: Sequence[str], surroundings: Surroundings
) -> Calculation:
    """The kind as a calculation; `kinds` are those of the results, part by part."""
    if isinstance(how, TableLookup):
        return _in_table(how, name, kinds, surroundings)
    return _in_context(how, name, kinds, surroundings)


def _in_table(
    how: TableLookup, name: str, kinds: Sequence[str], surroundings: Surroundings
) -> Calculation:
    def look_up(key: Any) -> Sequence[Any]:
        asked = text(key, name)
        fields = [_field(how.table, asked, column, surroundings) for column in how.columns]
        if all(fields):
            return [
                _typed(str(field), kind, f"table {how.table!r}, {asked[:SHOWN]!r}")
                for field, kind in zip(fields, kinds, strict=True)
            ]
        if how.otherwise is msgspec.UNSET:
            column = how.columns[fields.index(next(field for field in fields if not field))]
            raise Rejected(
                "lookup.unknown",
                f"{name}: table {how.table!r} has no {column!r} for {asked[:SHOWN]!r}",
                f"add it to {how.table!r}, or say `otherwise`",
            )
        return how.otherwise

    return look_up


def _field(table: str, key: str, column: str, surroundings: Surroundings) -> str | None:
    if surroundings.tables is None:
        return None
    try:
        return surroundings.tables.lookup(table, key, column)
    except UnknownName as error:
        raise Rejected("lookup.unknown", error.message, error.hint) from None


def _typed(field: str, kind: str, place: str) -> Any:
    """The text of a table as the kind of value that the signature promises."""
    if kind not in ("number", "integer", "boolean"):
        return field
    if kind == "boolean":
        if field.lower() not in _TRUTHS:
            raise Rejected("lookup.bad_value", f"{place}: {field[:SHOWN]!r} is not true or false")
        return _TRUTHS[field.lower()]
    try:
        found = finite(parse_number(field), place)
    except InvalidInput as error:
        raise Rejected("lookup.bad_number", f"{place}: {error.message}", error.hint) from None
    if kind == "number":
        return found
    if found != int(found):
        raise Rejected("lookup.bad_number", f"{place}: {field[:SHOWN]!r} is not a whole number")
    return int(found)


def _in_context(
    how: ContextLookup, name: str, kinds: Sequence[str], surroundings: Surroundings
) -> Calculation:
    def ask(key: Any) -> Sequence[Any]:
        asked = text(key, name)
        context = surroundings.context
        found = context.value(how.concept, asked, how.attribute) if context is not None else None
        if found is None:
            if how.otherwise is msgspec.UNSET:
                raise Rejected(
                    "lookup.unknown",
                    f"{name}: nothing is known of {how.attribute!r} of {asked[:SHOWN]!r}",
                    "it is known from its first reading on; or say `otherwise`",
                )
            return how.otherwise
        if len(found) != len(kinds) or not all(map(is_of_kind, found, kinds)):
            message = f"{name}: {how.concept}.{how.attribute} is {str(list(found))[:SHOWN]}"
            raise Rejected("lookup.bad_value", message, f"expected {', '.join(kinds)}")
        return found

    return ask
