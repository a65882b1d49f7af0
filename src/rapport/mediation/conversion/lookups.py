"""Look-ups of conversions: site tables, present values, and the time of the event. [ME-4]"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from rapport.core.errors import InvalidInput, UnknownName
from rapport.mediation.rejections import (
    SHOWN,
    Calculation,
    Port,
    RejectedValue,
    finite,
    is_of_kind,
    text,
)
from rapport.units.quantities import Affine, parse_number


class SiteTables(Protocol):
    """The tables of the site, such as `rapport.tables.Tables`."""

    @property
    def revision(self) -> int:
        """Changes whenever rows change, so that cached rows are invalid."""

    def lookup(self, table: str, key: str, column: str) -> str | None:
        """The text in `column` of the row with that key; None without row or text."""

    def rows(self, table: str, columns: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """Some columns of every row; raises UnknownName."""


class NoTables:
    """A site without tables."""

    revision = 0

    def lookup(self, table: str, key: str, column: str) -> str | None:
        return None

    def rows(self, table: str, columns: Sequence[str]) -> Sequence[tuple[str, ...]]:
        raise UnknownName("table", table, (), code="lookup.unknown_table")


def text_finder(lookups: SiteTables, table: str, column: str) -> Callable[[str], str | None]:
    """Returns a function from key to text."""

    def find(key: str) -> str | None:
        return lookups.lookup(table, key, column) or None

    return find


def numbers_finder(
    lookups: SiteTables, table: str, columns: tuple[tuple[str, Affine], ...]
) -> Callable[[str], tuple[float, ...]]:
    """Returns a function from key to the converted numbers of some columns; raises Rejected.
    Rows are cached until the tables change, so a sensor's position is read once.
    """
    known: dict[str, tuple[float, ...]] = {}
    revision = lookups.revision

    def find(key: str) -> tuple[float, ...]:
        nonlocal revision
        if lookups.revision != revision:
            revision = lookups.revision
            known.clear()
        row = known.get(key)
        if row is None:
            row = tuple(
                affine.apply(_number_in(lookups, table, key, column)) for column, affine in columns
            )
            known[key] = row
        return row

    return find


def _number_in(lookups: SiteTables, table: str, key: str, column: str) -> float:
    text = lookups.lookup(table, key, column)
    if not text:
        raise RejectedValue(
            "lookup.unknown",
            f"table {table!r} has no {column!r} for {key[:60]!r}",
            f"add the row to {table!r}, or correct the device's name",
        )
    place = f"table {table!r}, row {key[:60]!r}, column {column!r}"
    try:
        number = parse_number(text)
    except InvalidInput as error:
        raise RejectedValue("lookup.bad_number", f"{place}: {error.message}", error.hint) from None
    if not math.isfinite(number):
        raise RejectedValue("lookup.bad_number", f"{place}: {text[:40]!r} is not a finite number")
    return number


Scalar = str | int | float | bool | None


class TableLookup(msgspec.Struct, frozen=True, tag="table"):
    """Looks up columns of the row with the given key; texts are converted as the signature
    says. Without a row or text it returns `otherwise` or rejects.
    """

    table: str
    columns: tuple[str, ...]
    key: str = "key"
    attributes: tuple[str, ...] = ()
    """Attribute names of the columns in an object; empty: the column names."""
    otherwise: tuple[Scalar, ...] | msgspec.UnsetType = msgspec.UNSET

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port(self.key, "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return tuple(Port(name, "scalar") for name in self.attributes or self.columns)


class ContextLookup(msgspec.Struct, frozen=True, tag="context"):
    """Looks up the present value of a concept's attribute for the instance with the given key.
    `parts` names its parts: one for numbers, texts and booleans, `x, y` for a point. An unknown
    value gives `otherwise` or is rejected.
    """

    concept: str
    attribute: str
    key: str = "key"
    parts: tuple[str, ...] = ("value",)
    otherwise: tuple[Scalar, ...] | msgspec.UnsetType = msgspec.UNSET

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port(self.key, "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return tuple(Port(name, "scalar") for name in self.parts)


LookupKind = TableLookup | ContextLookup


class PresentContext(Protocol):
    """Present values of concepts."""

    def value(self, concept: str, key: str, attribute: str) -> Sequence[Any] | None:
        """The parts of the present value of an attribute of one instance; None if unknown."""


class ConversionEnvironment:
    """What conversions of a source may look up; one object for the lifetime of its
    transformers. The caller sets `event_time_ms` before each event, for conversions that need a
    time.
    """

    def __init__(
        self, tables: SiteTables | None = None, context: PresentContext | None = None
    ) -> None:
        self.tables, self.context = tables, context
        self.event_time_ms: int | None = None


_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def lookup_calculation(
    how: LookupKind, name: str, kinds: Sequence[str], surroundings: ConversionEnvironment
) -> Calculation:
    """`kinds`: the kinds of the results, part by part."""
    if isinstance(how, TableLookup):
        return _in_table(how, name, kinds, surroundings)
    return _in_context(how, name, kinds, surroundings)


def _in_table(
    how: TableLookup, name: str, kinds: Sequence[str], surroundings: ConversionEnvironment
) -> Calculation:
    def look_up(key: Any) -> Sequence[Any]:
        key = text(key, name)
        fields = [_field(how.table, key, column, surroundings) for column in how.columns]
        if all(fields):
            return [
                _typed(str(field), kind, f"table {how.table!r}, {key[:SHOWN]!r}")
                for field, kind in zip(fields, kinds, strict=True)
            ]
        if how.otherwise is msgspec.UNSET:
            column = how.columns[fields.index(next(field for field in fields if not field))]
            raise RejectedValue(
                "lookup.unknown",
                f"{name}: table {how.table!r} has no {column!r} for {key[:SHOWN]!r}",
                f"add it to {how.table!r}, or declare `otherwise`",
            )
        return how.otherwise

    return look_up


def _field(table: str, key: str, column: str, surroundings: ConversionEnvironment) -> str | None:
    if surroundings.tables is None:
        return None
    try:
        return surroundings.tables.lookup(table, key, column)
    except UnknownName as error:
        raise RejectedValue("lookup.unknown", error.message, error.hint) from None


def _typed(field: str, kind: str, place: str) -> Any:
    """Converts the text of a table to the kind that the signature declares."""
    if kind not in ("number", "integer", "boolean"):
        return field
    if kind == "boolean":
        if field.lower() not in _TRUTHS:
            raise RejectedValue(
                "lookup.bad_value", f"{place}: {field[:SHOWN]!r} is not true or false"
            )
        return _TRUTHS[field.lower()]
    try:
        found = finite(parse_number(field), place)
    except InvalidInput as error:
        raise RejectedValue("lookup.bad_number", f"{place}: {error.message}", error.hint) from None
    if kind == "number":
        return found
    if found != int(found):
        raise RejectedValue(
            "lookup.bad_number", f"{place}: {field[:SHOWN]!r} is not a whole number"
        )
    return int(found)


def _in_context(
    how: ContextLookup, name: str, kinds: Sequence[str], surroundings: ConversionEnvironment
) -> Calculation:
    def look_up(key: Any) -> Sequence[Any]:
        key = text(key, name)
        context = surroundings.context
        found = context.value(how.concept, key, how.attribute) if context is not None else None
        if found is None:
            if how.otherwise is msgspec.UNSET:
                raise RejectedValue(
                    "lookup.unknown",
                    f"{name}: there is no present value of {how.attribute!r} of {key[:SHOWN]!r}",
                    "it is known after its first reading; or declare `otherwise`",
                )
            return how.otherwise
        if len(found) != len(kinds) or not all(map(is_of_kind, found, kinds)):
            message = f"{name}: {how.concept}.{how.attribute} is {str(list(found))[:SHOWN]}"
            raise RejectedValue("lookup.bad_value", message, f"expected {', '.join(kinds)}")
        return found

    return look_up
