"""A query's result as a table: from an SQLite file of the site or from PostgreSQL. [PO-2, ME-4]

Read once, when the site is loaded, on a connection that cannot write. What comes back is treated
as if it had been saved as CSV, so faults, keys and versions are the same for both.
"""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.kernel.settings import read_secret
from rapport.tables.csv_file import CsvFile, parse_csv

MOST_ROWS = 1_000_000
_STEPS_PER_LOOK = 1_000_000
_MOST_LOOKS = 3_000
"""A query that needs more steps of SQLite's machine than the product, a minute or so, is ended."""
_SECONDS = 60
_POSTGRES = ("postgresql://", "postgres://", "host=", "dbname=", "service=")

Rows = tuple[Sequence[str], Iterable[Sequence[Any]]]


def read_query(database: str, query: str, directory: Path, *, name: str) -> CsvFile:
    """The rows of a query; raises SiteError. `database` is an SQLite file, or a secret
    (`env:NAME`, `file:PATH`) with the address of a PostgreSQL database.
    """
    try:
        is_secret = database.startswith(("env:", "file:"))
        address = read_secret(database, directory) if is_secret else database
    except InvalidInput as error:
        raise _refused(name, error.code, error.message, error.hint) from None
    if address.startswith(_POSTGRES):
        header, rows = _from_postgres(address, query, name)
    else:
        header, rows = _from_sqlite(directory / address, query, name)
    return parse_csv(name, _as_csv(header, rows))


def _from_sqlite(path: Path, query: str, name: str) -> Rows:
    if not path.is_file():
        hint = "the path is relative to the site directory; PostgreSQL is named by env: or file:"
        raise _refused(name, "tables.no_database", f"there is no database {path.name!r}", hint)
    looks = iter(range(_MOST_LOOKS))
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise _failed(name, error) from None
    try:
        connection.set_progress_handler(lambda: int(next(looks, None) is None), _STEPS_PER_LOOK)
        cursor = connection.execute(query)
        return _heading(cursor.description, name), _limited(cursor.fetchmany, name)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        raise _failed(name, error) from None
    finally:
        connection.close()


def _from_postgres(address: str, query: str, name: str) -> Rows:
    try:
        import psycopg
    except ModuleNotFoundError:
        hint = "install rapport[postgres]"
        raise _refused(
            name, "tables.no_driver", "the driver of PostgreSQL is missing", hint
        ) from None
    options = f"-c default_transaction_read_only=on -c statement_timeout={_SECONDS * 1_000}"
    try:
        with (
            psycopg.connect(address, connect_timeout=5, options=options) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query.encode())
            return _heading(cursor.description, name), _limited(cursor.fetchmany, name)
    except psycopg.Error as error:
        raise _failed(name, error) from None


def _heading(description: Sequence[Any] | None, name: str) -> list[str]:
    if description is None:
        raise _refused(name, "tables.bad_query", "the query gives no rows", "write a SELECT")
    return [str(column[0]) for column in description]


def _limited(fetch: Callable[[int], list[Any]], name: str) -> list[Sequence[Any]]:
    rows = list(fetch(MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        message = f"the query gives more than {MOST_ROWS:,} rows"
        raise _refused(name, "tables.too_many_rows", message, "let it choose fewer")
    return rows


def _as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(header)
    writer.writerows([_field(value) for value in row] for row in rows)
    return text.getvalue()


def _field(value: Any) -> str:
    """As a person would write it in the file; nothing for NULL."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return str(value)


def _failed(name: str, error: Exception) -> SiteError:
    message = str(error).strip().splitlines()
    hint = "try the query by hand; is the database there and of the right kind?"
    shown = message[0][:200] if message else type(error).__name__
    return _refused(name, "tables.bad_query", f"the query failed: {shown}", hint)


def _refused(name: str, code: str, message: str, hint: str = "") -> SiteError:
    return SiteError([Problem(file=name, code=code, message=message, hint=hint)])
