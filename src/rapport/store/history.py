"""The history index: in which channels, at which positions, an event id stands. [CH-4]

Fed from the log behind the writers' backs, with the position fed so far in the same transaction: it
may be late, never wrong, and can be deleted at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from rapport.store.sqlite import SqliteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS logs (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, fed INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS places (
  id TEXT NOT NULL, log INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (id, log, position)
) WITHOUT ROWID;
"""
# One statement for a whole block: SQLite walks the JSON array without holding the interpreter's
# lock, so feeding
# runs beside the writers. A statement per row would hand the lock back and forth a million times.
_FEED = """
INSERT OR IGNORE INTO places (id, log, position)
SELECT value, :log, :first + key FROM json_each(:ids)
"""
_PRUNE = """
DELETE FROM places WHERE (id, log, position) IN (
  SELECT value, :log, :first + key FROM json_each(:ids)
)
"""


class HistoryIndex(Protocol):
    """(log, record id) -> position."""

    needs_feeding: bool
    """False when the log itself is the index: then `feed` and `prune` need not be called."""

    def fed(self, log: str) -> int:
        """The position up to which the log has been fed; 0 for a new one."""

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """Takes in blocks of (first position, ids) and remembers that `fed` is reached; all or
        none.
        """

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Takes blocks of (first position, ids) off again, because the log lets go of them."""

    def forget(self, log: str) -> None:
        """Drops everything of a log, to be fed again from the start."""

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """Every (log, position) of the id, sorted."""

    def close(self) -> None:
        """Ends; a second call is no error."""


class SqliteHistory:
    """A HistoryIndex in a SQLite file of its own. Not synced per feed: after a power cut it is fed
    again.
    """

    needs_feeding = True

    def __init__(self, path: Path) -> None:
        self._database = SqliteFile(path, _SCHEMA, synchronous="NORMAL")

    def fed(self, log: str) -> int:
        """See HistoryIndex."""
        with self._database.use() as connection:
            row = connection.execute("SELECT fed FROM logs WHERE name = ?", (log,)).fetchone()
        return 0 if row is None else int(row[0])

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """See HistoryIndex; one statement per block."""
        with self._database.change() as connection:
            connection.execute("INSERT OR IGNORE INTO logs (name, fed) VALUES (?, 0)", (log,))
            (number,) = connection.execute(
                "SELECT number FROM logs WHERE name = ?", (log,)
            ).fetchone()
            for first, ids in blocks:
                encoded = msgspec.json.encode(ids).decode()
                connection.execute(_FEED, {"log": number, "first": first, "ids": encoded})
            connection.execute("UPDATE logs SET fed = ? WHERE number = ?", (fed, number))

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """See HistoryIndex; by primary key, so the cost is that of the blocks."""
        with self._database.change() as connection:
            row = connection.execute("SELECT number FROM logs WHERE name = ?", (log,)).fetchone()
            for first, ids in blocks if row is not None else ():
                encoded = msgspec.json.encode(ids).decode()
                connection.execute(_PRUNE, {"log": row[0], "first": first, "ids": encoded})

    def forget(self, log: str) -> None:
        """See HistoryIndex."""
        with self._database.change() as connection:
            connection.execute(
                "DELETE FROM places WHERE log = (SELECT number FROM logs WHERE name = ?)", (log,)
            )
            connection.execute("UPDATE logs SET fed = 0 WHERE name = ?", (log,))

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """See HistoryIndex."""
        query = (
            "SELECT logs.name, places.position FROM places JOIN logs ON logs.number = places.log "
            "WHERE places.id = ? ORDER BY logs.name, places.position"
        )
        with self._database.use() as connection:
            return [(name, position) for name, position in connection.execute(query, (record_id,))]

    def close(self) -> None:
        """See HistoryIndex."""
        self._database.close()


class MemoryHistory:
    """A HistoryIndex that forgets at the end of the process."""

    needs_feeding = True

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._places: dict[str, list[tuple[str, int]]] = {}
        self._fed: dict[str, int] = {}

    def fed(self, log: str) -> int:
        """See HistoryIndex."""
        return self._fed.get(log, 0)

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """See HistoryIndex."""
        with self._guard:
            for first, ids in blocks:
                for number, record_id in enumerate(ids):
                    places = self._places.setdefault(record_id, [])
                    if (log, first + number) not in places:
                        places.append((log, first + number))
            self._fed[log] = fed

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """See HistoryIndex."""
        with self._guard:
            for first, ids in blocks:
                for number, record_id in enumerate(ids):
                    places = self._places.get(record_id, [])
                    if (log, first + number) in places:
                        places.remove((log, first + number))
                    if not places:
                        self._places.pop(record_id, None)

    def forget(self, log: str) -> None:
        """See HistoryIndex."""
        with self._guard:
            for places in self._places.values():
                places[:] = [place for place in places if place[0] != log]
            self._fed.pop(log, None)

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """See HistoryIndex."""
        with self._guard:
            return sorted(self._places.get(record_id, []))

    def close(self) -> None:
        """See HistoryIndex."""
