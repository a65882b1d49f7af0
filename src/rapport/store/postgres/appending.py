"""Appending to a log in PostgreSQL: one transaction, decided by the log's last position. [CH-13]

The row of the log is changed first and only if nobody else was faster; its lock keeps other writers
waiting until the events behind it are committed. So positions have no gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from rapport.store.base import Overtaken
from rapport.store.postgres.connections import ConnectionLost, Link, PostgresConnections
from rapport.store.postgres.rows import COLUMNS, KINDS, Row, row_bytes

BELL = "'rapport_' || current_schema()"
"""What listeners of a schema listen to, in SQL."""
FEW_ROWS = 16
"""Up to this many rows one statement is faster than COPY: half a millisecond for a single one."""

_MOVE = f"""
UPDATE logs SET last = last + %s, bytes = bytes + %s WHERE number = %s AND last = %s
RETURNING number, pg_notify({BELL}, %s)
"""
_ROW = "(" + ", ".join(f"%s::{kind}" for kind in KINDS) + ")"
_COPY = f"COPY events ({COLUMNS}) FROM STDIN (FORMAT BINARY)"


class Addition(msgspec.Struct, frozen=True):
    """Rows of `count` records that are to follow position `after` of a log; `news` is what
    listeners are told.
    """

    log: int
    after: int
    count: int
    rows: Sequence[Row]
    news: str

    def move(self) -> tuple[object, ...]:
        """The parameters of _MOVE."""
        size = sum(map(row_bytes, self.rows))
        return (self.count, size, self.log, self.after, self.news)


def add(connections: PostgresConnections, addition: Addition) -> None:
    """Durable when it returns; raises Overtaken when the log does not end at `after`.

    When the connection breaks it is found out whether the rows got there; if not they are added
    once more. Raises ConnectionLost while the server stays away: then only the next look at the
    log tells.
    """
    try:
        with connections.use() as connection:
            _add(connection, addition)
    except ConnectionLost:
        if not connections.run(lambda connection: _is_there(connection, addition)):
            with connections.use() as connection:
                _add(connection, addition)


def _add(connection: Link, addition: Addition) -> None:
    if len(addition.rows) <= FEW_ROWS:
        _add_few(connection, addition)
    else:
        _add_many(connection, addition)


def _add_few(connection: Link, addition: Addition) -> None:
    rows = ", ".join([_ROW] * len(addition.rows))
    query = (
        f"WITH moved AS ({_MOVE}) INSERT INTO events ({COLUMNS}) "
        f"SELECT added.* FROM moved, (VALUES {rows}) AS added"
    )
    values = chain(addition.move(), *addition.rows)
    added = connection.execute(query, tuple(values), binary=True)
    if added.rowcount == 0:
        raise overtaken(addition.after)


def _add_many(connection: Link, addition: Addition) -> None:
    with connection.transaction():
        moved = connection.execute(_MOVE, addition.move())
        if moved.rowcount == 0:
            raise overtaken(addition.after)
        with connection.cursor().copy(_COPY) as copy:
            copy.set_types(KINDS)
            for row in addition.rows:
                copy.write_row(row)


def _is_there(connection: Link, addition: Addition) -> bool:
    """Whether exactly these rows stand where they were to stand. Waits for the lock of the log, so
    that a transaction whose connection we lost has ended before we look.
    """
    with connection.transaction():
        connection.execute("SELECT FROM logs WHERE number = %s FOR UPDATE", (addition.log,))
        found = connection.execute(
            f"SELECT {COLUMNS} FROM events WHERE log = %s AND position > %s AND position <= %s "
            "ORDER BY position",
            (addition.log, addition.after, addition.after + addition.count),
        ).fetchall()
    return found == list(addition.rows)


def overtaken(after: int) -> Overtaken:
    """The error of an append that came too late."""
    return Overtaken(
        f"the log has not ended at position {after} any more",
        hint="another process appended first: read on, then append again",
    )
