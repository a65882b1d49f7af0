"""The catalogue of the lake that a person can read: tables, rows, days, columns, units. [PI-3]

Made from the files' footers and the notes beside each table. A file that cannot be read, or is not
of the lake, is named and left out; it never stops the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.channel.export.parquet_files import BRONZE
from rapport.core.errors import Corrupt, Problem, UnknownName
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA
from rapport.pipeline.lake.bronze_files import FileFault, bad_file, foreign_file
from rapport.pipeline.lake.places import (
    DETECTED,
    GOLD,
    GRID,
    QUARANTINED,
    SIDECAR,
    SILVER,
    data_files,
    day_number,
    folder_day,
    grid_folders,
    point_id,
    position_range,
    stream_folders,
)
from rapport.pipeline.lake.sidecars import MEANINGS, UNITS, Column, TableNotes, read_notes

_NEEDED = {
    BRONZE: set(CHANNEL_SCHEMA.names),
    SILVER: {"time", "id", "position", "status"},
    QUARANTINED: {"reason", "position"},
    DETECTED: {"policy", "position"},
}


class LakeTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where a table lies and what it is called in SQL."""

    name: str
    """`bronze/events`, `silver/person.position`, `gold/deliveries`."""
    view: str
    """`events`, `person_position`, `deliveries`."""
    path: Path
    kind: str
    """Which columns its files must have: a layer, or a table with columns of its own."""


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a table that can be read."""

    path: Path
    rows: int
    bytes: int
    schema: pa.Schema


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the catalogue."""

    name: str
    view: str
    rows: int
    files: int
    bytes: int
    first_day: str = ""
    last_day: str = ""
    meaning: str = ""
    columns: tuple[Column, ...] = ()
    problems: tuple[Problem, ...] = ()


def lake_tables(lake: Path) -> list[LakeTable]:
    """Every table of the lake, without looking into files."""
    found = [_bronze_table(folder) for folder in sorted((lake / BRONZE).glob("channel=*"))]
    for folder in stream_folders(lake):
        name = folder.name.removeprefix("stream=")
        found.append(
            LakeTable(name=f"{SILVER}/{name}", view=view_name(name), path=folder, kind=SILVER)
        )
    for layer, name in ((SILVER, QUARANTINED), (GOLD, DETECTED)):
        if (lake / layer / name).is_dir():
            path = lake / layer / name
            found.append(LakeTable(name=f"{layer}/{name}", view=name, path=path, kind=name))
    for folder in grid_folders(lake):
        name = folder.name.removeprefix(f"{GRID}=")
        found.append(LakeTable(name=f"{GOLD}/{name}", view=view_name(name), path=folder, kind=GRID))
    found += [
        LakeTable(name=f"{GOLD}/{path.stem}", view=view_name(path.stem), path=path, kind=GOLD)
        for path in sorted((lake / GOLD).glob("*.parquet"))
    ]
    return _with_own_names(found)


def table_named(lake: Path, name: str) -> LakeTable:
    """The table of that name, or of that name in SQL; raises UnknownName with the nearest."""
    tables = lake_tables(lake)
    for table in tables:
        if name in (table.name, table.view):
            return table
    known = [text for table in tables for text in (table.name, table.view)]
    raise UnknownName("table", name, known, code="lake.unknown_table")


def view_name(text: str) -> str:
    """A name as SQL takes it without quotes.

    >>> view_name("person.position"), view_name("raw.tür-1")
    ('person_position', 'raw_tür_1')
    """
    return re.sub(r"\W", "_", text)


def table_files(table: LakeTable) -> tuple[list[TableFile], list[Problem]]:
    """The files of a table that can be read, and what is wrong with the others."""
    files: list[TableFile] = []
    problems: list[Problem] = []
    for path in [table.path] if table.path.is_file() else data_files(table.path):
        try:
            files.append(_look(path, table.kind))
        except FileFault as fault:
            problems.append(
                Problem(
                    file=str(path),
                    severity="warning",
                    code=fault.code,
                    message=fault.message,
                    hint=fault.hint,
                )
            )
    return files, problems


def describe(table: LakeTable) -> TableInfo:
    """What a table holds, from the footers of its files."""
    files, problems = table_files(table)
    days = sorted(
        (number, day)
        for day in {folder_day(file.path) for file in files}
        if (number := day_number(day)) is not None
    )
    notes, faults = _notes(table)
    noted = {column.name: column for column in notes.columns}
    return TableInfo(
        name=table.name,
        view=table.view,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        first_day=days[0][1] if days else "",
        last_day=days[-1][1] if days else "",
        meaning=notes.meaning,
        columns=tuple(_columns(files, noted)),
        problems=(*problems, *faults),
    )


def common_schema(files: Sequence[TableFile]) -> pa.Schema:
    """The columns of all files together, the wider type where they differ; columns that do not fit
    are text.
    """
    types: dict[str, list[pa.DataType]] = {}
    for file in files:
        for field in file.schema:
            known = types.setdefault(field.name, [])
            if field.type not in known:
                known.append(field.type)
    return pa.schema([(name, _widest(known)) for name, known in types.items()])


def _notes(table: LakeTable) -> tuple[TableNotes, list[Problem]]:
    """What stands beside a table, nothing beside a file; and what is wrong with it."""
    nothing = TableNotes(table=table.name)
    if not table.path.is_dir():
        return nothing, []
    try:
        return read_notes(table.path, table.name), []
    except Corrupt as error:
        file = str(table.path / SIDECAR)
        told = Problem(
            file=file, severity="warning", code=error.code, message=error.message, hint=error.hint
        )
        return nothing, [told]


def _widest(types: Sequence[pa.DataType]) -> pa.DataType:
    try:
        schemas = [pa.schema([("c", one)]) for one in types]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()


def _bronze_table(folder: Path) -> LakeTable:
    channel = folder.name.removeprefix("channel=")
    view = channel if channel == "events" else f"bronze_{view_name(channel)}"
    return LakeTable(name=f"{BRONZE}/{channel}", view=view, path=folder, kind=BRONZE)


def _with_own_names(tables: list[LakeTable]) -> list[LakeTable]:
    """Tables of one name in SQL: the later ones get their layer before it, or a number."""
    taken: set[str] = set()
    found: list[LakeTable] = []
    for table in tables:
        names = [table.view, view_name(table.name), *(f"{table.view}_{n}" for n in range(2, 99))]
        view = next(name for name in names if name.lower() not in taken)
        taken.add(view.lower())
        found.append(msgspec.structs.replace(table, view=view))
    return found


def _look(path: Path, kind: str) -> TableFile:
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow.remove_metadata(), int(file.metadata.num_rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError) as error:
        raise bad_file(path, error) from None
    missing = sorted(_NEEDED.get(kind, set()) - set(schema.names))
    if missing:
        raise foreign_file(path, f"it has no column {missing[0]!r}")
    if kind == GRID and point_id(path) is None:
        raise foreign_file(path, "its name tells no point")
    if kind not in (GOLD, GRID) and position_range(path) is None:
        raise foreign_file(path, "its name tells no positions")
    return TableFile(path=path, rows=rows, bytes=path.stat().st_size, schema=schema)


def _columns(files: Sequence[TableFile], noted: dict[str, Column]) -> list[Column]:
    """The columns of the files with what the notes say; where there are none, what is known."""
    found = []
    for field in common_schema(files):
        plain = Column(
            name=field.name,
            type=_plain_type(field.type),
            unit=UNITS.get(field.name, ""),
            meaning=MEANINGS.get(field.name, ""),
        )
        note = noted.get(field.name, plain)
        found.append(msgspec.structs.replace(note, type=_plain_type(field.type)))
    return found


def _plain_type(kind: pa.DataType) -> str:
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)
