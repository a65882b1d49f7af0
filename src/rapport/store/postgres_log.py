"""Logs in PostgreSQL: a row per event, so that PostgreSQL can evaluate conditions. [CH-4, CH-13]

Several processes may append to one log. An append is one transaction: it first updates the row of
the log, provided that the log ends at the expected position, and the lock on that row makes other
writers wait until the events are committed. So positions have no gaps.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any

import msgspec
from psycopg import sql

from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    READ_BYTES,
    AppendConflict,
    Block,
    LogPiece,
    check_contiguous,
    is_side_log,
    place_blocks,
)
from rapport.store.field_keys import Lookup
from rapport.store.postgres_connections import (
    CONNECTIONS,
    SCHEMA,
    ConnectionLost,
    PostgresConnection,
    PostgresConnections,
    translate_errors,
)
from rapport.store.postgres_rows import (
    BYTES_SQL,
    COLUMNS,
    CONTENT,
    KINDS,
    Row,
    blocks_of_rows,
    row_bytes,
    rows_of_block,
)
from rapport.store.postgres_search import (
    EventQuery,
    IndexedFields,
    PostgresIndexes,
    fetch_events,
    find_matching,
    make_indexes,
)

_log = get_logger(__name__)

LOOK_SECONDS = 1.0
"""Interval of polling, for notifications that got lost."""
_LONGEST_NEWS = 2_000
_LASTS = "SELECT name, last FROM logs WHERE last > 0"

OnAppend = Callable[[str, int], None]


def notification(log: str, last: int) -> str:
    """The payload of a notification; empty, so that listeners poll, when the name is too long."""
    return f"{last} {log}" if len(log) <= _LONGEST_NEWS else ""


class PostgresWatch:
    """A thread that calls `grown(log, last)` until `stop`: by LISTEN, and by polling in case a
    notification was missed. Raises StoreUnavailable when it cannot begin.
    """

    def __init__(self, connections: PostgresConnections, grown: OnAppend) -> None:
        self._connections, self._grown = connections, grown
        found = connections.run(lambda link: link.execute(_LASTS).fetchall())
        self._known: dict[str, int] = dict(found)
        self._stopped = False
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="postgres-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last call has been made."""
        self._stopped = True
        self._waker.send(b"!")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        # Not by the thread: it may end before the byte is sent.
        self._waker.close()
        self._wake.close()

    def _run(self) -> None:
        while not self._stopped:
            try:
                link = self._connections.open_apart()
                try:
                    with translate_errors(link):
                        self._listen(link)
                finally:
                    link.close()
            except StoreUnavailable as error:
                if not self._stopped:
                    _log.warning("not listening", why=error.message, again_in_seconds=LOOK_SECONDS)
                    self._pause()

    def _listen(self, link: PostgresConnection) -> None:
        bell = sql.Identifier(f"rapport_{self._connections.schema}")
        link.execute(sql.SQL("LISTEN {}").format(bell))
        with selectors.DefaultSelector() as selector:
            selector.register(link.fileno(), selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            self._poll(link)
            while not self._stopped:
                selector.select(LOOK_SECONDS)
                payloads = [notify.payload for notify in link.notifies(timeout=0)]
                if not all(map(self._notify_of, payloads)) or not payloads:
                    self._poll(link)

    def _poll(self, link: PostgresConnection) -> None:
        for log, last in link.execute(_LASTS).fetchall():
            self._notify(log, last)

    def _notify_of(self, payload: str) -> bool:
        """Reports the content of a notification; False when it is empty."""
        last, _space, log = payload.partition(" ")
        if not last.isdecimal():
            return False
        self._notify(log, int(last))
        return True

    def _notify(self, log: str, last: int) -> None:
        if self._known.get(log, 0) < last:
            self._known[log] = last
            self._grown(log, last)

    def _pause(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.select(LOOK_SECONDS)


NOTIFY_CHANNEL = "'rapport_' || current_schema()"
"""The channel of LISTEN and NOTIFY for a schema, in SQL."""
FEW_ROWS = 16
"""Up to this many rows one statement is faster than COPY: half a millisecond for a single one."""

_MOVE = f"""
UPDATE logs SET last = last + %s, bytes = bytes + %s WHERE number = %s AND last = %s
RETURNING number, pg_notify({NOTIFY_CHANNEL}, %s)
"""
_ROW = "(" + ", ".join(f"%s::{kind}" for kind in KINDS) + ")"
_COPY = f"COPY events ({COLUMNS}) FROM STDIN (FORMAT BINARY)"


class RowAppend(msgspec.Struct, frozen=True):
    """Rows of `count` records to be appended after position `after` of a log, with the payload for
    listeners.
    """

    log: int
    after: int
    count: int
    rows: Sequence[Row]
    notification: str

    def move_parameters(self) -> tuple[object, ...]:
        size = sum(map(row_bytes, self.rows))
        return (self.count, size, self.log, self.after, self.notification)


def append_rows(connections: PostgresConnections, addition: RowAppend) -> None:
    """Durable when it returns; raises AppendConflict when the log does not end at `after`.

    After a broken connection it checks whether the rows are there and appends them again if not.
    Raises ConnectionLost while the server stays away: then only reading the log shows the outcome.
    """
    try:
        with connections.use() as connection:
            _add(connection, addition)
    except ConnectionLost:
        if not connections.run(lambda connection: _is_there(connection, addition)):
            with connections.use() as connection:
                _add(connection, addition)


def _add(connection: PostgresConnection, addition: RowAppend) -> None:
    if len(addition.rows) <= FEW_ROWS:
        _add_few(connection, addition)
    else:
        _add_many(connection, addition)


def _add_few(connection: PostgresConnection, addition: RowAppend) -> None:
    rows = ", ".join([_ROW] * len(addition.rows))
    query = (
        f"WITH moved AS ({_MOVE}) INSERT INTO events ({COLUMNS}) "
        f"SELECT added.* FROM moved, (VALUES {rows}) AS added"
    )
    values = chain(addition.move_parameters(), *addition.rows)
    added = connection.execute(query, tuple(values), binary=True)
    if added.rowcount == 0:
        raise append_conflict(addition.after)


def _add_many(connection: PostgresConnection, addition: RowAppend) -> None:
    with connection.transaction():
        moved = connection.execute(_MOVE, addition.move_parameters())
        if moved.rowcount == 0:
            raise append_conflict(addition.after)
        with connection.cursor().copy(_COPY) as copy:
            copy.set_types(KINDS)
            for row in addition.rows:
                copy.write_row(row)


def _is_there(connection: PostgresConnection, addition: RowAppend) -> bool:
    """Whether exactly these rows are at their positions. Waits for the lock of the log, so that the
    transaction of the lost connection has ended.
    """
    with connection.transaction():
        connection.execute("SELECT FROM logs WHERE number = %s FOR UPDATE", (addition.log,))
        found = connection.execute(
            f"SELECT {COLUMNS} FROM events WHERE log = %s AND position > %s AND position <= %s "
            "ORDER BY position",
            (addition.log, addition.after, addition.after + addition.count),
        ).fetchall()
    return found == list(addition.rows)


def append_conflict(after: int) -> AppendConflict:
    return AppendConflict(
        f"the log does not end at position {after} any more",
        hint="another process appended first: read on, then append again",
    )


TRIM_RECORDS = 50_000
"""Positions removed in one transaction, unless one block alone has more."""

_DELETE = f"""
WITH gone AS (
  DELETE FROM events WHERE log = %(log)s AND position < %(floor)s RETURNING {BYTES_SQL} AS bytes
)
UPDATE logs SET first = %(floor)s, bytes = bytes - (SELECT COALESCE(sum(bytes), 0) FROM gone)
WHERE number = %(log)s
"""


def trim_some(link: PostgresConnection, log: int, before: int) -> bool:
    """Deletes whole blocks that end before a position, oldest first; True when there are more.

    The lock of the log's row keeps appends out, so that no block is cut in two.
    """
    with link.transaction():
        query = "SELECT first, last FROM logs WHERE number = %s FOR UPDATE"
        row = link.execute(query, (log,)).fetchone()
        if row is None:
            return False
        first, last = int(row[0]), int(row[1])
        near = first + TRIM_RECORDS
        floor = _floor(link, log, min(before, near), last)
        if floor <= first and near < before:
            floor = _floor(link, log, before, last)
        if floor <= first:
            return False
        link.execute(_DELETE, {"log": log, "floor": floor})
        return floor < min(before, last + 1)


def _floor(link: PostgresConnection, log: int, before: int, last: int) -> int:
    """First position of the block that holds `before`."""
    if before > last:
        return last + 1
    query = "SELECT block FROM events WHERE log = %s AND position >= %s ORDER BY position LIMIT 1"
    row = link.execute(query, (log, before)).fetchone()
    return last + 1 if row is None else int(row[0])


_SKIP = """
UPDATE logs SET last = %(last)s, first = CASE WHEN last < first THEN %(last)s + 1 ELSE first END
WHERE number = %(log)s AND last < %(last)s
"""


def move_log_end(link: PostgresConnection, log: int, position: int) -> None:
    """Makes `position` the next one, if it lies after the next."""
    link.execute(_SKIP, {"log": log, "last": position - 1})


def forget_log(link: PostgresConnection, log: int) -> None:
    with link.transaction():
        link.execute("DELETE FROM events WHERE log = %s", (log,))
        link.execute("DELETE FROM logs WHERE number = %s", (log,))


_FEW_TRIES = 100
_PIECE_RECORDS = 10_000
"""Positions of one retention piece."""

# Bounded on both sides by look-ups of the first and the last block, so that with any plan the cost
# does not depend on the length of the log.
_READ = f"""
WITH start AS MATERIALIZED (
  SELECT block FROM events WHERE log = %(log)s AND position > %(after)s::bigint
  ORDER BY position LIMIT 1
)
SELECT {CONTENT} FROM (
  SELECT {CONTENT}, sum({BYTES_SQL}) OVER (ORDER BY position) AS through
  FROM events WHERE log = %(log)s AND position >= (SELECT block FROM start)
  AND position <= COALESCE((
    SELECT block + size - 1 FROM events
    WHERE log = %(log)s AND position >= (SELECT block FROM start) + %(count)s - 1
    ORDER BY position LIMIT 1
  ), (SELECT last FROM logs WHERE number = %(log)s))
) AS found
WHERE through <= {READ_BYTES} OR block = (SELECT block FROM start)
ORDER BY position
"""
"""The first block is whole; of the last one there may be only a part, since the sum is of rows."""
_PIECE = f"""
SELECT min(block), max(position), sum({BYTES_SQL})::bigint, min(received), max(received)
FROM events WHERE log = %(log)s AND position > %(after)s::bigint AND position <= COALESCE((
  SELECT block + size - 1 FROM events
  WHERE log = %(log)s AND position >= %(after)s::bigint + %(count)s ORDER BY position LIMIT 1
), (SELECT last FROM logs WHERE number = %(log)s))
"""


class PostgresLogStore:
    """See SharedLogStore. Thread-safe.

    An append of up to 16 events costs one round trip, more of them five. Raises StoreUnavailable
    when the server cannot be reached or refuses.
    """

    def __init__(self, dsn: str, *, schema: str = SCHEMA, size: int = CONNECTIONS) -> None:
        self.connections = PostgresConnections(dsn, schema=schema, size=size)
        self.indexes = PostgresIndexes(self.connections)
        self._numbers: dict[str, int] = {}
        self._guard = threading.Lock()
        self._watches: list[PostgresWatch] = []

    # --- appending --------------------------------------------------------------------------------

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """See LogStore; behind the appends of other processes."""
        for _try in range(_FEW_TRIES):
            try:
                return self.append_after(log, self.last_position(log), blocks, received)
            except AppendConflict:
                continue
        return self.append_after(log, self.last_position(log), blocks, received)

    def append_after(
        self, log: str, after: int, blocks: Sequence[tuple[int, bytes]], received: int
    ) -> list[Block]:
        placed = place_blocks(blocks, after + 1, received)
        self._append(log, placed)
        return placed

    def _append(self, log: str, blocks: Sequence[Block]) -> None:
        if blocks:
            number, after, last = self._number(log), blocks[0].first - 1, blocks[-1].last
            rows = [row for block in blocks for row in rows_of_block(number, block)]
            payload = notification(log, last)
            append_rows(self.connections, RowAppend(number, after, last - after, rows, payload))

    # --- moving -----------------------------------------------------------------------------------

    def skip_to(self, log: str, position: int) -> None:
        number = self._number(log)
        self.connections.run(lambda link: move_log_end(link, number, position))

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        """See LogStore; raises AppendConflict when the log does not end before the blocks."""
        if blocks:
            check_contiguous(log, blocks[0].first - 1, blocks)
            self._append(log, blocks)

    def remove(self, log: str) -> None:
        """See LogStore; a bounded number of rows per transaction."""
        number = self._known_number(log)
        if number is not None:
            self.trim(log, self.last_position(log) + 1)
            self.connections.run(lambda link: make_indexes(link, number, {}))
            self.connections.run(lambda link: forget_log(link, number))
            del self._numbers[log]

    # --- reading ----------------------------------------------------------------------------------

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        number = self._known_number(log)
        if number is None:
            return []
        values = {"log": number, "after": position, "count": max_records}
        found = self.connections.run(
            lambda link: link.execute(_READ, values, binary=True).fetchall()
        )
        return blocks_of_rows(_whole_blocks(found))

    def last_position(self, log: str) -> int:
        return self._read_column(log, "last", 0)

    def first_position(self, log: str) -> int:
        return self._read_column(log, "first", 1)

    def logs(self) -> list[str]:
        query = "SELECT name FROM logs WHERE last > 0 ORDER BY name"
        found = self.connections.run(lambda link: link.execute(query).fetchall())
        return [name for (name,) in found if not is_side_log(name)]

    def watch(self, grown: Callable[[str, int], None]) -> None:
        """See SharedLogStore; costs a thread and a connection."""
        watch = PostgresWatch(self.connections, grown)
        with self._guard:
            self._watches.append(watch)

    # --- finding ----------------------------------------------------------------------------------

    def index_fields(self, log: str, fields: IndexedFields) -> IndexedFields:
        """Requests indexes on fields of a log, which are created in the background; returns the
        fields that are indexed now. An unknown log has none.
        """
        number = self._known_number(log)
        if number is None:
            return {}
        self.indexes.declare(number, fields)
        return self.indexes.ready(number)

    def find_matching(
        self,
        log: str,
        condition: str,
        parameters: Sequence[Any],
        *,
        after: int,
        until: int,
        limit: int,
        lookup: Lookup | None = None,
    ) -> tuple[list[StoredEvent], int]:
        """Up to `limit` events after a position that may fulfil a condition, and the position up to
        which there are no others (`until` at most).

        The condition is SQL over position, received, time, source, id, type, subject, data (text)
        and headers (jsonb). Events that PostgreSQL cannot evaluate are always included. `lookup` is
        the part of the condition that indexes answer; without one 50,000 positions are tried at a
        time.
        """
        number = self._known_number(log)
        if number is None:
            return [], until
        steps = self.indexes.ready(number)
        wanted = EventQuery(number, condition, tuple(parameters), lookup, steps)
        return self.connections.run(
            lambda link: find_matching(link, wanted, after=after, until=until, limit=limit)
        )

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        number = self._known_number(log)
        if number is None:
            return []
        return self.connections.run(lambda link: fetch_events(link, number, positions))

    # --- retention --------------------------------------------------------------------------------

    def trim(self, log: str, before: int) -> None:
        """See LogStore; whole blocks, a bounded number of rows per transaction."""
        number = self._known_number(log)
        if number is not None:
            while self.connections.run(lambda link: trim_some(link, number, before)):
                continue

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """See LogStore; a piece is the blocks of some ten thousand events."""
        number = self._known_number(log)
        if number is None:
            return []
        return self.connections.run(lambda link: _pieces(link, number, limit))

    def trims_blocks(self, log: str) -> bool:
        return True

    def kept_bytes(self, log: str) -> int:
        """See LogStore; data and an estimate of the rest, counted with every append."""
        return self._read_column(log, "bytes", 0)

    def close_piece(self, log: str) -> None:
        """See LogStore; every block can be removed, so there is nothing to do."""

    def closed_end(self, log: str) -> int:
        return self.last_position(log)

    def close(self) -> None:
        with self._guard:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.stop()
        self.indexes.stop()
        self.connections.close()

    # --- numbers of logs --------------------------------------------------------------------------

    def _read_column(self, log: str, column: str, otherwise: int) -> int:
        query = f"SELECT {column} FROM logs WHERE name = %s"
        row = self.connections.run(lambda link: link.execute(query, (log,)).fetchone())
        return otherwise if row is None else int(row[0])

    def _known_number(self, log: str) -> int | None:
        if log not in self._numbers:
            query = "SELECT number FROM logs WHERE name = %s"
            row = self.connections.run(lambda link: link.execute(query, (log,)).fetchone())
            if row is None:
                return None
            self._numbers[log] = int(row[0])
        return self._numbers[log]

    def _number(self, log: str) -> int:
        if "\x00" in log:
            raise InvalidInput("a log's name cannot hold NUL", code="log.bad_name")
        number = self._known_number(log)
        if number is None:
            query = "INSERT INTO logs (name) VALUES (%s) ON CONFLICT (name) DO NOTHING"
            self.connections.run(lambda link: link.execute(query, (log,)))
            number = self._known_number(log)
            assert number is not None
        return number


def _whole_blocks(rows: list[Row]) -> list[Row]:
    """Without a last block that was cut off by the limit of bytes."""
    if not rows:
        return rows
    position, block, size = rows[-1][:3]
    if position == block + size - 1:
        return rows
    return [row for row in rows if row[1] != block]


def _pieces(link: PostgresConnection, log: int, limit: int) -> list[LogPiece]:
    pieces: list[LogPiece] = []
    row = link.execute("SELECT first - 1 FROM logs WHERE number = %s", (log,)).fetchone()
    after = 0 if row is None else int(row[0])
    while len(pieces) < limit:
        values = {"log": log, "after": after, "count": _PIECE_RECORDS}
        found = link.execute(_PIECE, values).fetchone()
        if found is None or found[0] is None:
            break
        pieces.append(LogPiece(*found))
        after = pieces[-1].last
    return pieces


_FIND = """
SELECT logs.name, events.position FROM events JOIN logs ON logs.number = events.log
WHERE events.id = %s ORDER BY logs.name, events.position
"""


class PostgresHistory:
    """A HistoryIndex that is the log itself: appending feeds it, trimming prunes it."""

    needs_feeding = False

    def __init__(self, store: PostgresLogStore) -> None:
        self._store = store

    def fed(self, log: str) -> int:
        return self._store.last_position(log)

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """Nothing to do: the log is the index."""

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Nothing to do: the log is the index."""

    def forget(self, log: str) -> None:
        """Nothing to do: the log is the index."""

    def find(self, record_id: str) -> list[tuple[str, int]]:
        if "\x00" in record_id:
            return []
        connections = self._store.connections
        return [
            (name, position)
            for name, position in connections.run(
                lambda link: link.execute(_FIND, (record_id,)).fetchall()
            )
        ]

    def close(self) -> None:
        """Nothing to do: the log store closes the connections."""
