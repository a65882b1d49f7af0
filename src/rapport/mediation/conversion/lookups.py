"""Looking things up in the site's tables while mediating: tag to person, reader to place. [ME-4]

Kinds of conversion that look a value up: in a table of the site, or in what is so at present.
[ME-4]

What they do is in `looking_up.py`.

What conversions may ask beside the value itself: tables of the site, what is so at present, and
the time of the event under way. [ME-4]

What the kinds in `finding.py` do: rows of tables, and present values. [ME-4]
"""

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
    Rejected,
    finite,
    is_of_kind,
    text,
)
from rapport.units.numbers import parse_number
from rapport.units.quantities import Affine


class Lookups(Protocol):
    """What mediation asks of the tables."""

    @property
    def revision(self) -> int:
        """Another number whenever rows have changed: what was read before holds no longer."""

    def lookup(self, table: str, key: str, column: str) -> str | None:
        """The text in `column` of the row with that key; None when there is no row or no text."""


class NoTables:
    """A site without tables: nothing is found."""

    revision = 0

    def lookup(self, table: str, key: str, column: str) -> str | None:
        return None

    def rows(self, table: str, columns: Sequence[str]) -> Sequence[tuple[str, ...]]:
        raise UnknownName("table", table, (), code="lookup.unknown_table")


def text_finder(lookups: Lookups, table: str, column: str) -> Callable[[str], str | None]:
    """A function from key to text."""

    def find(key: str) -> str | None:
        return lookups.lookup(table, key, column) or None

    return find


def numbers_finder(
    lookups: Lookups, table: str, columns: tuple[tuple[str, Affine], ...]
) -> Callable[[str], tuple[float, ...]]:
    """A function from key to the numbers of some columns, each converted; raises Rejected.

    Rows found are remembered until the tables change (never more than the table has), so a sensor's
    place is read once.
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


def _number_in(lookups: Lookups, table: str, key: str, column: str) -> float:
    text = lookups.lookup(table, key, column)
    if not text:
        raise Rejected(
            "lookup.unknown",
            f"table {table!r} has no {column!r} for {key[:60]!r}",
            f"add the row to {table!r}, or correct the device's name",
        )
    place = f"table {table!r}, row {key[:60]!r}, column {column!r}"
    try:
        number = parse_number(text)
    except InvalidInput as error:
        raise Rejected("lookup.bad_number", f"{place}: {error.message}", error.hint) from None
    if not math.isfinite(number):
        raise Rejected("lookup.bad_number", f"{place}: {text[:40]!r} is not a finite number")
    return number


Scalar = str | int | float | bool | None


class TableLookup(msgspec.Struct, frozen=True, tag="table"):
    """Columns of the row whose key the value is; text becomes what the signature says.

    No such row, or an empty field: `otherwise`, or rejected when there is none.
    """

    table: str
    columns: tuple[str, ...]
    key: str = "key"
    attributes: tuple[str, ...] = ()
    """What the columns are called in an object; empty: as they are."""
    otherwise: tuple[Scalar, ...] | msgspec.UnsetType = msgspec.UNSET

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port(self.key, "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return tuple(Port(name, "scalar") for name in self.attributes or self.columns)


class ContextLookup(msgspec.Struct, frozen=True, tag="context"):
    """The present value of an attribute of a concept, for the instance whose key the value is.

    `parts` are what its parts are called: one for numbers, texts and truth values, `x, y` for a
    point. Nothing heard of it yet: `otherwise`, or rejected when there is none.
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


class SiteTables(Lookups, Protocol):
    """The tables of the site; `rapport.tables.Tables` is one."""

    def rows(self, table: str, columns: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """The fields of some columns in every row; raises UnknownName."""


class PresentContext(Protocol):
    """What is so at present."""

    def value(self, concept: str, key: str, attribute: str) -> Sequence[Any] | None:
        """The parts of the present value of an attribute of one instance; None: not known."""


class ConversionEnvironment:
    """What the transformers of a source ask; one object, kept for as long as they are.

    `event_time_ms` is set by the caller before each event and counts where a conversion needs a
    time that the value does not tell.
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
    """The kind as a calculation; `kinds` are those of the results, part by part."""
    if isinstance(how, TableLookup):
        return _in_table(how, name, kinds, surroundings)
    return _in_context(how, name, kinds, surroundings)


def _in_table(
    how: TableLookup, name: str, kinds: Sequence[str], surroundings: ConversionEnvironment
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


def _field(table: str, key: str, column: str, surroundings: ConversionEnvironment) -> str | None:
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
    how: ContextLookup, name: str, kinds: Sequence[str], surroundings: ConversionEnvironment
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
