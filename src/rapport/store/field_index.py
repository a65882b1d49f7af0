"""The field index: the positions of a log at which a field has a value. [CH-4]

It is fed from the log in the background, with the position fed so far in the same transaction: it
may be late, is never wrong, and can be deleted at any time. Every field has its own position, so a
field that is declared later catches up while the others go on.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rapport.store.event_locations import EventLocation, PackedLocations
from rapport.store.field_keys import PARTITION_BITS, Key, Lookup
from rapport.store.field_search import (
    DENSE_SCHEMA,
    PARTITION_SIZE,
    Candidates,
    Search,
    completed_partitions,
    drop_dense,
    keep_dense,
)
from rapport.store.location_files import LocationFiles
from rapport.store.sqlite import SqliteFile

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS logs (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  spotted INTEGER NOT NULL DEFAULT 0, pruned INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS fields (
  number INTEGER PRIMARY KEY, log INTEGER NOT NULL, path TEXT NOT NULL, fed INTEGER NOT NULL,
  UNIQUE (log, path)
);
CREATE TABLE IF NOT EXISTS entries (
  field INTEGER NOT NULL, stretch INTEGER NOT NULL, value, position INTEGER NOT NULL,
  PRIMARY KEY (field, stretch, value, position)
) WITHOUT ROWID;
{DENSE_SCHEMA}
"""
# One statement per field and block: SQLite reads the JSON array without the interpreter's lock.
# Keys are texts and whole numbers, which its JSON keeps exactly.
_FEED = f"""
INSERT OR IGNORE INTO entries (field, stretch, value, position)
SELECT :field, (:first + key) >> {PARTITION_BITS}, value, :first + key FROM json_each(:keys)
WHERE type <> 'null'
"""
_FEED_ONE = "INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)"
_IS_OLDER = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'spots'"
"""Older indexes kept event locations within the file."""
_EMPTY_OLDER = (
    *("DELETE FROM entries", "DELETE FROM dense", "DROP TABLE spots", "UPDATE fields SET fed = 0"),
    "UPDATE logs SET spotted = 0, pruned = 0",
)
_CACHE_KIB = 32 * 1024
_MAPPED_BYTES = 2**31 - 2**16
"""The most that SQLite maps: a search touches a page per match, and a system call for each page
would cost more than the search itself.
"""


class Column(msgspec.Struct, frozen=True):
    """The keys of one field at positions `first`, `first + 1`, ...; None where it has no value."""

    path: str
    first: int
    keys: Sequence[Key | None]
    more: Sequence[tuple[int, Key]] = ()
    """(position, key) of values with a second key."""

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.first + len(self.keys) - 1


class _Log(msgspec.Struct):
    number: int
    spotted: int
    pruned: int
    fields: dict[str, tuple[int, int]]
    """By path: number and position fed so far."""


class SqliteFieldIndex:
    """(log, field, value) -> positions, in a SQLite file of its own with a directory of event
    locations beside it. One connection feeds while another one searches. Entries are not synced per
    feed: after a power cut they are fed again.
    """

    def __init__(self, path: Path) -> None:
        self._feeding = SqliteFile(path, _SCHEMA, synchronous="NORMAL")
        self._searching = SqliteFile(path, "", synchronous="NORMAL")
        self._locations = LocationFiles(path.with_suffix(".spots"))
        self._guard = threading.Lock()
        self._logs: dict[str, _Log] = {}
        self._empty_older()
        for database in (self._feeding, self._searching):
            with database.use() as connection:
                connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        with self._searching.use() as connection:
            connection.execute(f"PRAGMA mmap_size = {_MAPPED_BYTES}")

    def declare(self, log: str, paths: Sequence[str]) -> None:
        """Sets the indexed fields of a log; new ones begin at 0, others are dropped at the cost of
        one pass over their entries.
        """
        with self._guard, self._feeding.change() as connection:
            connection.execute("INSERT OR IGNORE INTO logs (name) VALUES (?)", (log,))
            number, spotted, pruned = connection.execute(
                "SELECT number, spotted, pruned FROM logs WHERE name = ?", (log,)
            ).fetchone()
            for path in paths:
                connection.execute(
                    "INSERT OR IGNORE INTO fields (log, path, fed) VALUES (?, ?, 0)",
                    (number, path),
                )
            rows = connection.execute(
                "SELECT path, number, fed FROM fields WHERE log = ?", (number,)
            ).fetchall()
            for path, field, _fed in rows:
                if path not in paths:
                    connection.execute("DELETE FROM entries WHERE field = ?", (field,))
                    drop_dense(connection, field)
                    connection.execute("DELETE FROM fields WHERE number = ?", (field,))
        if spotted == 0:
            self._locations.drop(number)  # of an index that was deleted
        fields = {path: (field, fed) for path, field, fed in rows if path in paths}
        self._logs[log] = _Log(number, spotted, pruned, fields)

    def fed(self, log: str) -> dict[str, int]:
        """By declared field the position up to which it is fed."""
        known = self._logs.get(log)
        return {} if known is None else {path: fed for path, (_n, fed) in known.fields.items()}

    def feed(
        self,
        log: str,
        columns: Sequence[Column],
        spots: Sequence[PackedLocations],
        fed: dict[str, int],
    ) -> None:
        """Adds columns and event locations, and records how far each field is fed; all or none."""
        known = self._logs[log]
        with self._guard:
            fields = dict(known.fields)
            fresh = [piece for piece in spots if piece.first > known.spotted]
            spotted = max([known.spotted, *(piece.last for piece in fresh)])
            with self._feeding.change() as connection:
                for column in columns:
                    number = fields[column.path][0]
                    if any(key is not None for key in column.keys):
                        keys = msgspec.json.encode(column.keys).decode()
                        connection.execute(
                            _FEED, {"field": number, "first": column.first, "keys": keys}
                        )
                    for position, key in column.more:
                        place = (number, position >> PARTITION_BITS, key, position)
                        connection.execute(_FEED_ONE, place)
                self._locations.write(known.number, fresh)
                for path, reached in fed.items():
                    number, before = fields[path]
                    pieces = [column.span for column in columns if column.path == path]
                    keep_dense(connection, number, completed_partitions(before, reached, pieces))
                    fields[path] = (number, reached)
                    connection.execute(
                        "UPDATE fields SET fed = ? WHERE number = ?", (reached, number)
                    )
                connection.execute(
                    "UPDATE logs SET spotted = ? WHERE number = ?", (spotted, known.number)
                )
            known.fields, known.spotted = fields, spotted

    def forget(self, log: str) -> None:
        """Deletes all entries of a log, to be fed again from the start."""
        known = self._logs[log]
        with self._guard:
            known.fields = {path: (number, 0) for path, (number, _fed) in known.fields.items()}
            known.spotted = known.pruned = 0
            with self._feeding.change() as connection:
                for number, _fed in known.fields.values():
                    connection.execute("DELETE FROM entries WHERE field = ?", (number,))
                    drop_dense(connection, number)
                connection.execute("UPDATE fields SET fed = 0 WHERE log = ?", (known.number,))
                connection.execute(
                    "UPDATE logs SET spotted = 0, pruned = 0 WHERE number = ?", (known.number,)
                )
            self._locations.drop(known.number)

    def prune(self, log: str, before: int) -> bool:
        """Deletes entries before a position that retention has reached: one partition (131,072
        positions) of every field per call; True when there are more.
        """
        known = self._logs.get(log)
        if known is None or (before >> PARTITION_BITS) <= (known.pruned >> PARTITION_BITS):
            return False
        partition = known.pruned >> PARTITION_BITS
        with self._guard:
            known.pruned = (partition + 1) * PARTITION_SIZE
            with self._feeding.change() as connection:
                for number, _fed in known.fields.values():
                    connection.execute(
                        "DELETE FROM entries WHERE field = ? AND stretch <= ?", (number, partition)
                    )
                    drop_dense(connection, number, through=partition)
                connection.execute(
                    "UPDATE logs SET pruned = ? WHERE number = ?", (known.pruned, known.number)
                )
            self._locations.drop(known.number, before=known.pruned)
        return (before >> PARTITION_BITS) > partition + 1

    def search(self, log: str, lookup: Lookup, *, after: int, until: int, limit: int) -> Candidates:
        """Candidates after a position up to `until`; about `limit` of them, or fewer."""
        field_of = self._field_of(log)
        with self._one_view() as connection:
            return Search(connection, field_of, limit).run(lookup, after, until)

    def locations(self, log: str, positions: Sequence[int]) -> list[EventLocation]:
        """The known locations of events in the log's files, in order."""
        known = self._logs.get(log)
        return (
            [] if known is None or not positions else self._locations.find(known.number, positions)
        )

    def close(self) -> None:
        self._locations.close()
        self._searching.close()
        self._feeding.close()

    def _empty_older(self) -> None:
        """Empties an index of an older version, which is then fed again from the start."""
        with self._feeding.use() as connection:
            is_older = connection.execute(_IS_OLDER).fetchone() is not None
        if is_older:
            with self._feeding.change() as connection:
                for statement in _EMPTY_OLDER:
                    connection.execute(statement)

    @contextmanager
    def _one_view(self) -> Iterator[sqlite3.Connection]:
        """The searching connection inside one transaction: beginning one per statement costs as
        much as the statement, and a search has one per partition.
        """
        with self._searching.use() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _field_of(self, log: str) -> Callable[[str], tuple[int, int, int] | None]:
        known = self._logs.get(log)

        def field_of(path: str) -> tuple[int, int, int] | None:
            field = None if known is None else known.fields.get(path)
            return None if known is None or field is None else (field[0], begins, field[1])

        # Read before the fields are: pruning moves it first and deletes afterwards.
        begins = 0 if known is None else max(known.pruned - 1, 0)
        return field_of
