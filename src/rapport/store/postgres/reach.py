"""Whether a PostgreSQL server answers at an address; changes nothing there. [CH-13, UX-3]"""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo

from rapport.core.errors import InvalidInput
from rapport.store.postgres.connections import Link, translated, unreachable


def server_version(dsn: str, *, seconds: int) -> str:
    """The version of the server; raises InvalidInput for no address, StoreUnavailable when it does
    not answer in time (of each host that the address names).
    """
    try:
        limited = make_conninfo(dsn, connect_timeout=seconds)
    except psycopg.ProgrammingError:
        raise InvalidInput(
            "this is no address of PostgreSQL",
            code="store.bad_address",
            hint="postgresql://user@host/database, or host=... dbname=...",
        ) from None
    try:
        connection = Link.connect(limited, autocommit=True)
    except psycopg.Error as error:
        raise unreachable(error) from error
    with connection, translated(connection):
        row = connection.execute("SHOW server_version").fetchone()
        return str(row[0]) if row else ""
