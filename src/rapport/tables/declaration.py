"""One table as it is declared, wherever that was written. [PO-2]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rapport.core.schema import AttributeType

AreaForm = Literal["polygon", "circle", "rectangle"]
AreaColumns = dict[AreaForm, tuple[str, ...]]
"""The columns of an area in each form that rows may have; a row fills those of one form."""
AREA_PARTS: dict[AreaForm, tuple[str, ...]] = {
    "polygon": ("outline",),
    "circle": ("x", "y", "radius"),
    "rectangle": ("x1", "y1", "x2", "y2"),
}
Concepts = Mapping[str, Mapping[str, AttributeType]]
Kind = Literal["csv", "sql", "xml", "url", "context"]

DEFAULT_TIMEOUT_MS = 10_000
DEFAULT_RECORD_ROWS = 200_000


class TableDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """One source of rows: a CSV file, a query, elements of an XML file, a list in a JSON document,
    or a context broker. Without a concept it serves look-ups only.
    """

    name: str
    concept: str = ""
    csv: str = ""
    sql: str = ""
    """Instead of a file: a query of `database`."""
    database: str = ""
    """An SQLite file, or `env:NAME` or `file:PATH` with the address of a PostgreSQL database."""
    login: dict[str, str] = {}
    """Instead of `database`: host, dbname, user and password of a PostgreSQL server."""
    xml: str = ""
    xpath: str = ""
    """Selects the elements of `xml` that are the rows; key and columns are relative to them."""
    namespaces: dict[str, str] = {}
    """Namespaces by the prefix that expressions use."""
    url: str = ""
    rows: str = ""
    """Where in the JSON document the list of rows is, such as `data.items`."""
    headers: dict[str, str] = {}
    """Request headers; secrets are named as `env:NAME` or `file:PATH`."""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    context: str = ""
    """Type and scope of the entities to query a context broker for: `room status`."""
    ids: tuple[str, ...] = ()
    """Ids of the entities,"""
    ids_from: str = ""
    """or the table whose keys they are."""
    values: tuple[str, ...] = ()
    """Values of the scope that are columns for look-ups, besides those of attributes."""
    key: str
    further_keys: tuple[str, ...] = ()
    """Further key columns, such as the day from which a rate is valid; a look-up then joins the
    fields by `/`.
    """
    columns: dict[str, tuple[str, ...]] = {}
    """Of each attribute the columns that hold its parts, or the one that holds them all."""
    areas: dict[str, AreaColumns] = {}
    """Of each area the columns by form; `columns` has them too, in the same order."""
    decimal: str = "."
    lifetime_ms: int = 0
    """The source is read again after this time; 0: never."""
    record_rows: int = DEFAULT_RECORD_ROWS
    """With more rows than this only their digest and number are put on record, so an explanation
    or a replay has to use the rows of today; each change costs a look at all rows, and each base
    writes them.
    """

    @property
    def kind(self) -> Kind:
        for kind in _KINDS:
            if getattr(self, kind):
                return kind
        return "sql"

    @property
    def fields(self) -> tuple[str, ...]:
        """Every column that is named, each once."""
        named = [self.key, *self.further_keys]
        named += [name for names in self.columns.values() for name in names]
        named += self.values
        return tuple(dict.fromkeys(named))

    def content(self) -> bytes:
        """The declaration as bytes, which identify it; unchanged for one without areas."""
        encoded = msgspec.to_builtins(self)
        if not self.areas:
            del encoded["areas"]
        return msgspec.json.encode(encoded)

    @property
    def shown(self) -> str:
        """What faults name as the place: the file, or the declaration."""
        return self.csv or self.xml or f"[tables.{self.name}]"


class PairDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the site that is looked up: key columns and a number in a table."""

    function: str
    table: str
    keys: tuple[str, ...]
    value: str
    symmetric: bool = False


_KINDS: tuple[Kind, ...] = ("csv", "sql", "xml", "url", "context")
