"""The catalogue of the lake that a person can read: tables, rows, days, columns, units.
[PI-3, LK-9]

Made from the tables' logs alone: no file is opened.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import msgspec
import pyarrow as pa

from rapport.core.errors import Problem, RapportError, UnknownName
from rapport.lake.places import BRONZE, GAPS, LAYERS, Lake, view_name
from rapport.lake.table import Table


class LakeTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table's name: `bronze/events`, `silver/person.position`; and the one it has in SQL:
    `events`, `person_position`.
    """

    layer: str
    table: str
    view: str

    @property
    def name(self) -> str:
        return f"{self.layer}/{self.table}" if self.table else self.layer


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a table."""

    name: str
    type: str
    unit: str = ""
    meaning: str = ""


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the catalogue."""

    name: str
    view: str
    version: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    first_day: str = ""
    last_day: str = ""
    meaning: str = ""
    columns: tuple[Column, ...] = ()
    problems: tuple[Problem, ...] = ()


def lake_tables(lake: Lake | Path | str) -> list[LakeTable]:
    """Every table of the lake, bronze first."""
    lake = Lake.at(lake)
    lake.refuse_former_format()
    found = [(layer, name) for layer in LAYERS for name in lake.names(layer)]
    found += [(GAPS, "")] if lake.has(GAPS) else []
    taken: set[str] = set()
    tables: list[LakeTable] = []
    for layer, name in found:
        own = view_name(name or layer)
        if layer == BRONZE and name != "events":
            own = f"bronze_{own}"
        # Tables of one name in SQL: the later ones get their layer before it, or a number.
        names = [own, view_name(f"{layer}/{name}"), *(f"{own}_{number}" for number in range(2, 99))]
        view = next(one for one in names if one.lower() not in taken)
        taken.add(view.lower())
        tables.append(LakeTable(layer=layer, table=name, view=view))
    return tables


def table_named(lake: Lake | Path | str, name: str) -> LakeTable:
    """The table of that name, or of that name in SQL; raises UnknownName with the nearest."""
    tables = lake_tables(lake)
    for table in tables:
        if name in (table.name, table.view):
            return table
    known = [text for table in tables for text in (table.name, table.view)]
    raise UnknownName("table", name, known, code="lake.unknown_table")


def describe(lake: Lake | Path | str, table: LakeTable) -> TableInfo:
    """What a table holds; of one that cannot be opened the reason."""
    lake = Lake.at(lake)
    try:
        opened = lake.open(table.layer, table.table)
        return _info(table, opened)
    except RapportError as error:
        problem = Problem(
            file=lake.table_uri(table.layer, table.table),
            severity="warning",
            code=error.code,
            message=error.message,
            hint=error.hint,
        )
        return TableInfo(name=table.name, view=table.view, problems=(problem,))


def _info(table: LakeTable, opened: Table) -> TableInfo:
    files = opened.files()
    days = sorted(
        day.isoformat() for file in files if isinstance(day := file.partition.get("day"), date)
    )
    return TableInfo(
        name=table.name,
        view=table.view,
        version=opened.version,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.size for file in files),
        first_day=days[0] if days else "",
        last_day=days[-1] if days else "",
        meaning=opened.description,
        columns=tuple(_column(field) for field in opened.schema),
    )


def _column(field: pa.Field) -> Column:
    notes = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    return Column(
        name=field.name,
        type=str(field.type),
        unit=notes.get("unit", ""),
        meaning=notes.get("comment", ""),
    )
