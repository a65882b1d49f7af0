"""Logs in PostgreSQL: a row per event, so that conditions can be evaluated where the events are.
[CH-4, CH-13]

Several processes may append to the same log at the same time: see SharedLogStore.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.store.base import READ_BYTES, Block, LogPiece, Overtaken, check_places
from rapport.store.fields.keys import Lookup
from rapport.store.postgres.appending import Addition, add
from rapport.store.postgres.connections import CONNECTIONS, Link, PostgresConnections
from rapport.store.postgres.indexes import Fields, PostgresIndexes, make_indexes
from rapport.store.postgres.matching import Wanted, fetch_events, find_matching
from rapport.store.postgres.moving import forget_log, skip_to
from rapport.store.postgres.rows import BYTES_SQL, CONTENT, Row, blocks_of_rows, rows_of_block
from rapport.store.postgres.schema import SCHEMA
from rapport.store.postgres.trimming import trim_some
from rapport.store.postgres.watch import PostgresWatch, news
from rapport.store.side_logs import is_side_log

_FEW_TRIES = 100
_PIECE_RECORDS = 10_000
"""Positions that retention looks at as one piece."""

# Bounded on both sides by look-ups of the first and the last block: whatever the planner makes of
# it, the cost does not depend on the length of the log.
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
    """See SharedLogStore, PiecedLogStore and MovableLogStore. Any thread may call.

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
        """See LogStore; goes behind whatever others append meanwhile."""
        for _try in range(_FEW_TRIES):
            try:
                return self.append_after(log, self.last_position(log), blocks, received)
            except Overtaken:
                continue
        return self.append_after(log, self.last_position(log), blocks, received)

    def append_after(
        self, log: str, after: int, blocks: Sequence[tuple[int, bytes]], received: int
    ) -> list[Block]:
        """See SharedLogStore."""
        if any(count < 1 for count, _body in blocks):
            raise InvalidInput("a block without records cannot be kept", code="log.bad_block_size")
        placed, last = [], after
        for count, body in blocks:
            placed.append(Block(last + 1, count, received, body))
            last += count
        if placed:
            number = self._number(log)
            rows = [row for block in placed for row in rows_of_block(number, block)]
            told = news(log, last)
            add(self.connections, Addition(number, after, last - after, rows, told))
        return placed

    # --- moving -----------------------------------------------------------------------------------

    def skip_to(self, log: str, position: int) -> None:
        """See MovableLogStore."""
        number = self._number(log)
        self.connections.run(lambda link: skip_to(link, number, position))

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        """See MovableLogStore; raises Overtaken when the log does not end before the blocks."""
        if blocks:
            after = blocks[0].first - 1
            check_places(log, after, blocks)
            number, last = self._number(log), blocks[-1].last
            rows = [row for block in blocks for row in rows_of_block(number, block)]
            add(self.connections, Addition(number, after, last - after, rows, news(log, last)))

    def remove(self, log: str) -> None:
        """See MovableLogStore; a bounded number of rows per transaction."""
        number = self._known_number(log)
        if number is not None:
            self.trim(log, self.last_position(log) + 1)
            self.connections.run(lambda link: make_indexes(link, number, {}))
            self.connections.run(lambda link: forget_log(link, number))
            del self._numbers[log]

    # --- reading ----------------------------------------------------------------------------------

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        """See LogStore."""
        number = self._known_number(log)
        if number is None:
            return []
        values = {"log": number, "after": position, "count": max_records}
        found = self.connections.run(
            lambda link: link.execute(_READ, values, binary=True).fetchall()
        )
        return blocks_of_rows(_whole_blocks(found))

    def last_position(self, log: str) -> int:
        """See LogStore."""
        return self._ask(log, "last", 0)

    def first_position(self, log: str) -> int:
        """See LogStore."""
        return self._ask(log, "first", 1)

    def logs(self) -> list[str]:
        """See LogStore."""
        query = "SELECT name FROM logs WHERE last > 0 ORDER BY name"
        found = self.connections.run(lambda link: link.execute(query).fetchall())
        return [name for (name,) in found if not is_side_log(name)]

    def watch(self, grown: Callable[[str, int], None]) -> None:
        """See SharedLogStore; costs a thread and a connection."""
        watch = PostgresWatch(self.connections, grown)
        with self._guard:
            self._watches.append(watch)

    # --- finding ----------------------------------------------------------------------------------

    def index_fields(self, log: str, fields: Fields) -> Fields:
        """Sees to it that fields of a log are indexed, in the background; returns those that are by
        now. A log that is not there has none.
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
        and headers (jsonb). What PostgreSQL cannot look into is always among the found. `lookup`
        says what of the condition is in indexes; without one, 50,000 positions are tried at a time.
        """
        number = self._known_number(log)
        if number is None:
            return [], until
        steps = self.indexes.ready(number)
        wanted = Wanted(number, condition, tuple(parameters), lookup, steps)
        return self.connections.run(
            lambda link: find_matching(link, wanted, after=after, until=until, limit=limit)
        )

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        """The events at positions, in order, as far as they are there."""
        number = self._known_number(log)
        if number is None:
            return []
        return self.connections.run(lambda link: fetch_events(link, number, positions))

    # --- keeping house ----------------------------------------------------------------------------

    def trim(self, log: str, before: int) -> None:
        """See LogStore; blocks are the pieces. A bounded number of rows per transaction."""
        number = self._known_number(log)
        if number is not None:
            while self.connections.run(lambda link: trim_some(link, number, before)):
                continue

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """See PiecedLogStore; a piece is the blocks of some ten thousand events."""
        number = self._known_number(log)
        if number is None:
            return []
        return self.connections.run(lambda link: _pieces(link, number, limit))

    def trims_blocks(self, log: str) -> bool:
        """See PiecedLogStore."""
        return True

    def kept_bytes(self, log: str) -> int:
        """See PiecedLogStore; data and an estimate of the rest, counted along with every append."""
        return self._ask(log, "bytes", 0)

    def close_piece(self, log: str) -> None:
        """See PiecedLogStore; every block may go at any time, so there is nothing to end."""

    def closed_end(self, log: str) -> int:
        """See PiecedLogStore."""
        return self.last_position(log)

    def close(self) -> None:
        """See LogStore."""
        with self._guard:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.stop()
        self.indexes.stop()
        self.connections.close()

    # --- numbers of logs --------------------------------------------------------------------------

    def _ask(self, log: str, column: str, otherwise: int) -> int:
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
        """The log's number, given to it now if it is new."""
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
    """Without the rows of a last block that were cut off by their bytes."""
    if not rows:
        return rows
    position, block, size = rows[-1][:3]
    if position == block + size - 1:
        return rows
    return [row for row in rows if row[1] != block]


def _pieces(link: Link, log: int, limit: int) -> list[LogPiece]:
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
