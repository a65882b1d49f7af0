"""Rows of a query: from an SQLite file of the site or from PostgreSQL. [PO-2, ME-4]

The connection is read-only. Values are converted to the text that a person would write into a CSV
file, so faults, keys and versions are the same for both.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rapport.core.errors import InvalidInput, SiteError
from rapport.kernel.files import is_file
from rapport.kernel.settings import read_secret
from rapport.tables.rows import (
    MOST_ROWS,
    RowFile,
    check_size,
    repeated_headings,
    rows_digest,
    unusable_table,
)

_STEPS_PER_LOOK = 1_000_000
_MOST_LOOKS = 3_000
"""A query that needs more steps of SQLite's machine than the product, a minute or so, is ended."""
_SECONDS = 60
_POSTGRES = re.compile(
    r"\s*(postgres(ql)?://"
    r"|(host|hostaddr|port|dbname|user|password|passfile|service|sslmode|options)\s*=)",
    re.IGNORECASE,
)

Rows = tuple[list[str], Sequence[Sequence[Any]]]


def read_query(
    database: str,
    query: str,
    directory: Path,
    *,
    name: str,
    login: Mapping[str, str] | None = None,
) -> RowFile:
    """The rows of a query; raises SiteError. `database` is an SQLite file, or a secret
    (`env:NAME`, `file:PATH`) with the address of a PostgreSQL database; with `login` it is the
    PostgreSQL server that this describes.
    """
    try:
        address = secret_or_plain(database, directory)
        known = {key: secret_or_plain(value, directory) for key, value in (login or {}).items()}
    except InvalidInput as error:
        raise unusable_table(name, error.code, error.message, error.hint) from None
    if known or _POSTGRES.match(address):
        header, rows = _from_postgres(address, known, query, name)
    else:
        header, rows = _from_sqlite(directory / address, query, name, shown=database)
    check_size(name, len(rows))
    if faults := repeated_headings(name, header):
        raise SiteError(faults)
    fields = [[_field(value) for value in row] for row in rows]
    return RowFile(name, header, fields, rows_digest(header, fields))


def secret_or_plain(text: str, directory: Path) -> str:
    """What `env:NAME` or `file:PATH` holds, anything else as it stands; raises InvalidInput."""
    return read_secret(text, directory) if text.startswith(("env:", "file:")) else text


def _from_sqlite(path: Path, query: str, name: str, *, shown: str) -> Rows:
    """`shown`: the name of the database in the site file; secrets are never shown."""
    if not is_file(path):
        hint = "the path is relative to the site directory; PostgreSQL is named by env: or file:"
        raise unusable_table(
            name, "tables.no_database", f"there is no database {shown[:60]!r}", hint
        )
    looks = iter(range(_MOST_LOOKS))
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise _failed(name, error) from None
    try:
        connection.set_progress_handler(lambda: int(next(looks, None) is None), _STEPS_PER_LOOK)
        cursor = connection.execute(query)
        return _heading(cursor.description, name), _limited(cursor.fetchmany)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        raise _failed(name, error) from None
    finally:
        connection.close()


def _from_postgres(address: str, login: Mapping[str, str], query: str, name: str) -> Rows:
    try:
        import psycopg
    except ModuleNotFoundError:
        hint = "pip install 'rapport[postgres]'"
        raise unusable_table(
            name, "tables.no_driver", "the driver of PostgreSQL is missing", hint
        ) from None
    described = _described(address, login, name)
    options = f"-c default_transaction_read_only=on -c statement_timeout={_SECONDS * 1_000}"
    try:
        with (
            psycopg.connect(described, connect_timeout=5, options=options) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query.encode())
            return _heading(cursor.description, name), _limited(cursor.fetchmany)
    except psycopg.Error as error:
        raise _failed(name, error) from None


def _described(address: str, login: Mapping[str, str], name: str) -> str:
    """The connection string; raises SiteError for one that the driver cannot read, without the
    driver's message, which would show the password.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        described = make_conninfo(address, **login)
        known = conninfo_to_dict(described)
    except psycopg.Error:
        known = {"host": "@"}
    host, port = str(known.get("host") or ""), str(known.get("port") or "0")
    if "@" in host or not port.replace(",", "").isdigit():
        message = "the address of the database cannot be read"
        hint = "write signs such as @ / % : of a password as %40 %2F %25 %3A"
        raise unusable_table(name, "tables.bad_address", message, hint)
    return described


def _heading(description: Sequence[Any] | None, name: str) -> list[str]:
    if description is None:
        raise unusable_table(name, "tables.bad_query", "the query gives no rows", "write a SELECT")
    return [str(column[0]) for column in description]


def _limited(fetch: Callable[[int], list[Any]]) -> list[Sequence[Any]]:
    """One more than are held, so that too many are noticed and not read."""
    return list(fetch(MOST_ROWS + 1))


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
    return unusable_table(name, "tables.bad_query", f"the query failed: {shown}", hint)
