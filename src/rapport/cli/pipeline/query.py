"""`rapport pipeline tables|query`: what the lake holds, and questions to it. [PI-3, PI-12]"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rapport.cli.pipeline.lake import (
    JsonOption,
    MasterOption,
    lake_directory,
    show_problems,
    spark_for,
)
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_bytes, write_json, write_table
from rapport.core.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from rapport.pipeline.lake.catalogue import TableInfo
    from rapport.pipeline.lake.query import Answer


LakeOption = Annotated[
    Path | None,
    Parameter(help="A lake without a site, such as that of experiments."),
]


def tables(
    name: str | None = None,
    /,
    *,
    site: SiteOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
) -> int:
    """List the tables of the lake, or the columns of one."""
    from rapport.pipeline.lake.catalogue import describe, lake_tables, table_named

    lake = _chosen(lake, site)
    chosen = lake_tables(lake) if name is None else [table_named(lake, name)]
    found = [describe(table) for table in chosen]
    if json:
        write_json(found)
    elif name is None:
        _write_tables(found)
    else:
        _write_columns(found[0])
    return show_problems(tuple(problem for table in found for problem in table.problems))


def query(
    sql: str,
    /,
    *,
    site: SiteOption = None,
    engine: Annotated[Literal["duckdb", "spark"], Parameter(help="Who answers.")] = "duckdb",
    format: Annotated[Literal["table", "csv", "json"], Parameter(help="How.")] = "table",
    master: MasterOption = None,
    lake: LakeOption = None,
) -> int:
    """Ask the lake a question in SQL; `rapport pipeline tables` lists what can be named."""
    chosen = _chosen(lake, site)
    directory = site_directory(site) if lake is None else None
    answer = _ask(sql, engine, chosen, directory, master)
    _write_answer(answer.table, format)
    return show_problems(answer.problems)


def _chosen(lake: Path | None, site: Path | None) -> Path:
    if lake is None:
        return lake_directory(site_directory(site))
    if not lake.is_dir():
        raise InvalidInput(
            f"{lake} is no lake",
            code="cli.wrong_use",
            hint="name the folder that has bronze, silver or gold in it",
        )
    return lake


def _ask(sql: str, engine: str, lake: Path, site: Path | None, master: str | None) -> Answer:
    if engine == "duckdb":
        from rapport.pipeline.lake.query import ask_duckdb

        return ask_duckdb(lake, sql)
    from rapport.pipeline.lake.query_spark import ask_spark

    with spark_for(site, engine, master) as spark:
        assert spark is not None
        return ask_spark(spark, lake, sql)


def _write_tables(found: Sequence[TableInfo]) -> None:
    rows = [
        (
            table.name,
            table.view,
            str(table.rows),
            str(table.files),
            _size(table.bytes),
            table.first_day,
            table.last_day,
        )
        for table in found
    ]
    write_table("lake", ("table", "in SQL", "rows", "files", "size", "from", "to"), rows)


def _write_columns(table: TableInfo) -> None:
    rows = [
        (one.name, one.type, one.unit, one.meaning, one.since, one.until) for one in table.columns
    ]
    title = f"{table.name} ({table.view} in SQL): {table.rows} rows, {table.files} files, "
    title += f"{_size(table.bytes)}, {table.first_day} to {table.last_day}"
    write_table(title, ("column", "type", "unit", "meaning", "since", "until"), rows)


def _write_answer(table: pa.Table, format: str) -> None:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    if format == "json":
        write_json([dict(zip(table.column_names, map(_plain, row), strict=True)) for row in rows])
        return
    texts = [[_text(value) for value in row] for row in rows]
    if format == "csv":
        # On a terminal and in a file alike: a question may give cells with anything in them.
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(texts)
        write_bytes(out.getvalue().encode())
        return
    flat = [[cell.replace("\t", " ").replace("\n", " ") for cell in row] for row in texts]
    write_table("answer", table.column_names, flat)
    sys.stdout.flush()


def _plain(value: object) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        pairs = all(isinstance(one, tuple) and len(one) == 2 for one in value)
        if value and pairs:
            return {str(key): _plain(one) for key, one in value}
        return [_plain(one) for one in value]
    return value


def _text(value: object) -> str:
    import msgspec

    if value is None:
        return ""
    if isinstance(value, list | dict | tuple):
        return msgspec.json.encode(_plain(value)).decode()
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "")
    return str(_plain(value))


def _size(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
