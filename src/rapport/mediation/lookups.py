"""Looking things up in the site's tables while mediating: tag to person, reader to place. [ME-4]"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from rapport.core.errors import InvalidInput, UnknownName
from rapport.mediation.rejection import Rejected
from rapport.units.quantities import Affine, parse_number


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
