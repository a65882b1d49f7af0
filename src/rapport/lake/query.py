"""Questions to the lake in SQL, answered by DuckDB; nothing can be written. [PI-3, PI-12]

Every table is a view (`events`, `person_position`, `quarantined`, `deliveries`, ...), made only for
the question that names it, over the files of the table's present version. A condition on `day` or
on times leaves out the files that cannot hold it. DuckDB may read these files and nothing else.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from rapport.core.errors import InvalidInput, RapportError, UnknownName, Unsupported
from rapport.lake.catalogue import LakeTable, lake_tables
from rapport.lake.places import Lake
from rapport.lake.table import Table, TableFile

_MISSING_TABLE = re.compile(r"Table with name \"?([^\s\"!]+)\"? does not exist")
_MISSING_COLUMN = re.compile(r"column \"([^\"]+)\" not found", re.IGNORECASE)
_NO_COLUMN = re.compile(r"does not have a column named \"([^\"]+)\"")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A table as a question sees it."""

    name: str
    table: Table


def ask_duckdb(lake: Lake | Path | str, sql: str) -> pa.Table:
    """Answers one SELECT. Raises InvalidInput for anything else, UnknownName that tells the nearest
    table or column, Unsupported without DuckDB or for a lake that is not on this machine.
    """
    try:
        import duckdb
    except ImportError:
        raise Unsupported(
            "a question to the lake without duckdb",
            hint="add it with: pip install 'rapport[lake]'; or ask Spark: --engine spark",
        ) from None

    lake = Lake.at(lake)
    if lake.path is None:
        raise Unsupported(
            "a question to a lake in an object store", "DuckDB here", hint="use --engine spark"
        )
    _refuse_all_but_select(duckdb, sql)
    tables = lake_tables(lake)
    with tempfile.TemporaryDirectory(prefix="rapport-query-") as folder:
        views = views_for(lake, tables, sql)
        with duckdb.connect(":memory:") as connection:
            _prepare(connection, views, folder)
            try:
                return connection.sql(sql).to_arrow_table()
            except duckdb.Error as error:
                raise _translated(error, views, [one.view for one in tables]) from None


def views_for(lake: Lake, tables: Iterable[LakeTable], sql: str) -> list[View]:
    """The views that a question may mean."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    return [
        View(name=table.view, table=lake.open(table.layer, table.table))
        for table in tables
        if table.view.lower() in words
    ]


def unknown_table(name: str, known: Sequence[str]) -> UnknownName:
    """The error for a table that is not there."""
    return UnknownName("table", name, known, code="lake.unknown_table")


def unknown_column(name: str, views: Sequence[View]) -> UnknownName:
    """The error for a column that is not there."""
    known = [column for view in views for column in view.table.schema.names]
    return UnknownName("column", name, known, code="lake.unknown_column")


def not_a_question(what: str) -> InvalidInput:
    """The error for SQL that would do something else than ask."""
    return InvalidInput(
        f"{what} is no question",
        code="lake.not_a_question",
        hint="the lake is read only: write one SELECT",
    )


def bad_sql(text: str) -> InvalidInput:
    return InvalidInput(text.strip(), code="lake.bad_sql")


def _refuse_all_but_select(duckdb: Any, sql: str) -> None:
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise bad_sql(str(error)) from None
    if len(statements) != 1:
        raise not_a_question(f"{len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise not_a_question(statements[0].type.name)


def _prepare(connection: Any, views: Iterable[View], folder: str) -> None:
    """Makes the views, then closes every other way to files."""
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"SET temp_directory = {_text(folder)}")
    # Nothing of this program can be asked by the name of a variable.
    connection.execute("SET python_enable_replacements = false")
    paths: list[str] = []
    for view in views:
        files = view.table.files()
        connection.execute(f'CREATE VIEW "{view.name}" AS {_select(view.table, files)}')
        paths += [file.uri for file in files]
    listed = ", ".join(map(_text, paths))
    connection.execute(f"SET allowed_paths = [{listed}]")
    connection.execute(f"SET allowed_directories = [{_text(folder)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _select(table: Table, files: Sequence[TableFile]) -> str:
    """The rows of all files by the names of columns; null where a file is older than a column."""
    names = table.schema.names
    columns = ", ".join(map(_quoted, names))
    if not files:
        empty = ", ".join(f"NULL AS {_quoted(name)}" for name in names)
        return f"SELECT {empty} WHERE false"
    listed = ", ".join(_text(file.uri) for file in files)
    hive = ", ".join(f"{_text(name)}: DATE" for name in table.partition_by)
    partitions = f"hive_partitioning = true, hive_types = {{{hive}}}" if hive else ""
    options = ", ".join(one for one in ("union_by_name = true", partitions) if one)
    missing = ", ".join(
        f"NULL AS {_quoted(name)}" for name in names if not _is_in(name, table, files)
    )
    inside = f"SELECT *{', ' + missing if missing else ''} FROM read_parquet([{listed}], {options})"
    return f"SELECT {columns} FROM ({inside})"


def _is_in(name: str, table: Table, files: Sequence[TableFile]) -> bool:
    """Whether some file has the column; its footer says so where the log has no statistics."""
    if name in table.partition_by or any(name in file.low for file in files):
        return True
    import pyarrow.parquet as pq

    return any(name in pq.read_schema(file.uri).names for file in reversed(files))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _translated(error: Exception, views: Sequence[View], known: Sequence[str]) -> RapportError:
    text = str(error)
    if found := _MISSING_TABLE.search(text):
        return unknown_table(found[1], known)
    if found := _MISSING_COLUMN.search(text) or _NO_COLUMN.search(text):
        return unknown_column(found[1], views)
    if "disabled by configuration" in text:
        return InvalidInput(
            "a question reads the tables of the lake, not files",
            code="lake.not_a_question",
            hint="rapport pipeline tables lists them",
        )
    return bad_sql(text)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
