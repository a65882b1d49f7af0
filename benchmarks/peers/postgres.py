"""PostgreSQL with synchronous commits: a table with a unique key, filled by COPY. [CH-13]"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.peer import BATCH
from rapport.core.event import Event
from support.servers.postgres import LocalPostgres

_TABLE = """
CREATE TABLE events (
  position bigserial PRIMARY KEY, source text NOT NULL, id text NOT NULL, type text NOT NULL,
  subject text NOT NULL, time bigint NOT NULL, data text NOT NULL, UNIQUE (source, id)
)"""


class PostgresPeer:
    """See Peer. COPY is its fastest way in; the unique key is its duplicate check and id index."""

    how = "PostgreSQL, fsync and synchronous_commit on, COPY, unique (source, id)"

    def __init__(self, dsn: str) -> None:
        import psycopg

        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(_TABLE)

    def publish(self, events: list[Event]) -> None:
        """One transaction."""
        with (
            self._connection.cursor() as cursor,
            cursor.copy("COPY events (source, id, type, subject, time, data) FROM STDIN") as copy,
        ):
            for event in events:
                copy.write_row(
                    (event.source, event.id, event.type, event.subject, event.time, event.data)
                )

    def read_all(self) -> int:
        """By position, 1,000 rows a query, as a reader of a log does."""
        found, position = 0, 0
        query = "SELECT * FROM events WHERE position > %s ORDER BY position LIMIT %s"
        while rows := self._connection.execute(query, (position, BATCH)).fetchall():
            found += len(rows)
            position = rows[-1][0]
        return found

    def close(self) -> None:
        """Hangs up."""
        self._connection.close()


@contextmanager
def postgres_peer() -> Iterator[PostgresPeer]:
    """A server of its own in a temporary directory."""
    server = LocalPostgres()
    try:
        server.start()
        peer = PostgresPeer(server.new_database())
        try:
            yield peer
        finally:
            peer.close()
    finally:
        server.remove()
