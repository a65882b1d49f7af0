"""The history index where the log is in PostgreSQL: the rows themselves, by their ids. [CH-4]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.store.postgres.log import PostgresLogStore

_FIND = """
SELECT logs.name, events.position FROM events JOIN logs ON logs.number = events.log
WHERE events.id = %s ORDER BY logs.name, events.position
"""


class PostgresHistory:
    """See HistoryIndex. It is fed by appending and pruned by trimming, so it is never behind."""

    needs_feeding = False

    def __init__(self, store: PostgresLogStore) -> None:
        self._store = store

    def fed(self, log: str) -> int:
        """See HistoryIndex; always the log's last position."""
        return self._store.last_position(log)

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """See HistoryIndex; what is in the log is in the index."""

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """See HistoryIndex; what leaves the log leaves the index."""

    def forget(self, log: str) -> None:
        """See HistoryIndex; there is nothing that could belong to another log."""

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """See HistoryIndex."""
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
        """See HistoryIndex; the log store closes the connections."""
