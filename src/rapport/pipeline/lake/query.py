"""Questions to the lake in SQL, answered by DuckDB; nothing can be written. [PI-3, PI-12]

Every table is a view (`events`, `person_position`, `quarantined`, `deliveries`, ...), made only for
the question that names it. DuckDB may read the files of these views and nothing else.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from rapport.core.errors import InvalidInput, Problem, RapportError, UnknownName, Unsupported
from rapport.pipeline.lake.catalogue import (
    LakeTable,
    TableFile,
    common_schema,
    lake_tables,
    table_files,
)
from rapport.pipeline.lake.locks import reading

_MISSING_TABLE = re.compile(r"Table with name \"?([^\s\"!]+)\"? does not exist")
_MISSING_COLUMN = re.compile(r"column \"([^\"]+)\" not found", re.IGNORECASE)
_NO_COLUMN = re.compile(r"does not have a column named \"([^\"]+)\"")
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000, 253_402_300_799_999


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, and files that were left out."""

    table: pa.Table
    problems: tuple[Problem, ...] = ()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A table as a question sees it."""

    name: str
    files: list[TableFile]
    schema: pa.Schema

    @property
    def columns(self) -> list[str]:
        """What a question may name."""
        return [*self.schema.names, *(["moment"] if self.has_time else [])]

    @property
    def has_time(self) -> bool:
        """Whether there is a time that people can be shown as one."""
        is_number = "time" in self.schema.names and pa.types.is_int64(
            self.schema.field("time").type
        )
        return is_number and "moment" not in self.schema.names


def ask_duckdb(lake: Path, sql: str) -> Answer:
    """Answers one SELECT. Raises InvalidInput for anything else, UnknownName that tells the nearest
    table or column, Unsupported without DuckDB.
    """
    try:
        import duckdb
    except ImportError:
        raise Unsupported(
            "a question to the lake without duckdb",
            hint="add it with: pip install 'rapport[lake]'; or ask Spark: --engine spark",
        ) from None

    _refuse_all_but_select(duckdb, sql)
    with reading(lake), tempfile.TemporaryDirectory(prefix="rapport-query-") as folder:
        views, problems = views_for(lake, sql)
        with duckdb.connect(":memory:") as connection:
            _prepare(connection, views, folder)
            try:
                table = connection.sql(sql).to_arrow_table()
            except duckdb.Error as error:
                raise _translated(error, views, [one.view for one in lake_tables(lake)]) from None
    return Answer(table=table, problems=tuple(problems))


def views_for(lake: Path, sql: str) -> tuple[list[View], list[Problem]]:
    """The views that a question may mean, and what is wrong with files of theirs."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    views: list[View] = []
    problems: list[Problem] = []
    for table in lake_tables(lake):
        if table.view.lower() in words:
            view, faults = _view(table)
            views.append(view)
            problems += faults
    return views, problems


def unknown_table(name: str, known: Sequence[str]) -> UnknownName:
    """The error for a table that is not there."""
    return UnknownName("table", name, known, code="lake.unknown_table")


def unknown_column(name: str, known: Sequence[str]) -> UnknownName:
    """The error for a column that is not there."""
    return UnknownName("column", name, known, code="lake.unknown_column")


def not_a_question(what: str) -> InvalidInput:
    """The error for SQL that would do something else than ask."""
    return InvalidInput(
        f"{what} is no question",
        code="lake.not_a_question",
        hint="the lake is read only: write one SELECT",
    )


def _view(table: LakeTable) -> tuple[View, list[Problem]]:
    files, problems = table_files(table)
    return View(name=table.view, files=files, schema=common_schema(files)), problems


def _refuse_all_but_select(duckdb: Any, sql: str) -> None:
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise _bad_sql(error) from None
    if len(statements) != 1:
        raise not_a_question(f"{len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise not_a_question(statements[0].type.name)


def _prepare(connection: Any, views: Iterable[View], folder: str) -> None:
    """Makes the views, then closes every other way to files."""
    connection.execute(f"SET temp_directory = {_text(folder)}")
    # Nothing of this program can be asked by the name of a variable.
    connection.execute("SET python_enable_replacements = false")
    paths: list[str] = []
    for view in views:
        connection.execute(f'CREATE VIEW "{view.name}" AS {_select(view)}')
        paths += [str(file.path) for file in view.files]
    listed = ", ".join(map(_text, paths))
    connection.execute(f"SET allowed_paths = [{listed}]")
    connection.execute(f"SET allowed_directories = [{_text(folder)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _select(view: View) -> str:
    """The rows of all files by the names of columns; null where a file has none."""
    if not view.files:
        return "SELECT 1 AS nothing WHERE false"
    listed = ", ".join(_text(str(file.path)) for file in view.files)
    columns = [_column(field) for field in view.schema]
    if view.has_time:
        known = f"time BETWEEN {_FIRST_TIME} AND {_LAST_TIME}"
        columns.append(f"CASE WHEN {known} THEN epoch_ms(time) END AS moment")
    return (
        f"SELECT {', '.join(columns)} FROM read_parquet([{listed}], union_by_name = true, "
        "hive_partitioning = false)"
    )


def _column(field: pa.Field) -> str:
    name: str = '"' + field.name.replace('"', '""') + '"'
    if pa.types.is_binary(field.type):
        return f"TRY(decode({name})) AS {name}"
    if pa.types.is_uint64(field.type):
        return f"CAST({name} AS BIGINT) AS {name}"
    return name


def _translated(error: Exception, views: Sequence[View], known: Sequence[str]) -> RapportError:
    text = str(error)
    if found := _MISSING_TABLE.search(text):
        return unknown_table(found[1], known)
    if found := _MISSING_COLUMN.search(text) or _NO_COLUMN.search(text):
        return unknown_column(found[1], [name for view in views for name in view.columns])
    if "disabled by configuration" in text:
        return InvalidInput(
            "a question reads the tables of the lake, not files",
            code="lake.not_a_question",
            hint="rapport pipeline tables lists them",
        )
    return _bad_sql(error)


def _bad_sql(error: Exception) -> InvalidInput:
    return InvalidInput(str(error).strip(), code="lake.bad_sql")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
