"""The history index in a SQLite file of its own: sorted runs, merged as they become many. [CH-4]

A feed is one run, cut into pieces of some kilobytes that are found by their first key; eight runs
of a size become one. So an event costs some bytes and a share of a sort, all of it without the
interpreter's lock but for its key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from rapport.core.errors import RapportError
from rapport.store.history_runs import (
    LAST_LEVEL,
    MERGED_AT_ONCE,
    Marks,
    Run,
    level_of,
    made_of,
    read_pieces,
    stretches,
)
from rapport.store.id_keys import KEY_BITS, key_of
from rapport.store.sqlite import SqliteFile

_VERSION = 4
_SCHEMA = """
CREATE TABLE IF NOT EXISTS logs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
  fed INTEGER NOT NULL DEFAULT 0, kept INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS runs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, level INTEGER NOT NULL, size INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS reach (
  run INTEGER NOT NULL, log INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (run, log)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pieces (place INTEGER PRIMARY KEY, entries BLOB NOT NULL);
"""
_OVER = """
SELECT number FROM runs WHERE NOT EXISTS (
  SELECT 1 FROM reach JOIN logs ON logs.number = reach.log
  WHERE reach.run = runs.number AND reach.last >= logs.kept
)
"""
_MERGED_REACH = """
INSERT INTO reach SELECT ?, log, last FROM reach WHERE run = ?
ON CONFLICT (run, log) DO UPDATE SET last = max(last, excluded.last)
"""
_MARKS_BYTES = 32 * 1024 * 1024
"""Of rough pictures in memory; runs beyond are looked into each time."""


class SqliteHistory:
    """A HistoryIndex in a SQLite file of its own. Not synced per feed: after a power cut it is fed
    again. Several processes may feed it.
    """

    needs_feeding = True

    def __init__(self, path: Path) -> None:
        self._database = SqliteFile(path, "", synchronous="NORMAL")
        self._marks: dict[int, Marks] = {}
        try:
            with self._database.change() as connection:
                _make_tables(connection)
        except RapportError:
            self._database.close()
            raise

    def fed(self, log: str) -> int:
        """See HistoryIndex."""
        with self._database.use() as connection:
            row = connection.execute("SELECT fed FROM logs WHERE name = ?", (log,)).fetchone()
        return 0 if row is None else int(row[0])

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """See HistoryIndex; what was fed before, perhaps by another process, is left out."""
        with self._database.change() as connection:
            connection.execute("INSERT OR IGNORE INTO logs (name) VALUES (?)", (log,))
            asked = "SELECT number, fed FROM logs WHERE name = ?"
            number, before = connection.execute(asked, (log,)).fetchone()
            run = made_of(number, blocks, before)
            if len(run):
                added = _begin_run(connection, len(run))
                _keep(connection, added, run)
                last = max(first + len(ids) - 1 for first, ids in blocks)
                connection.execute("INSERT INTO reach VALUES (?, ?, ?)", (added, number, last))
                _merge_where_many(connection)
            reached = max(fed, before)
            connection.execute("UPDATE logs SET fed = ? WHERE number = ?", (reached, number))

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """See HistoryIndex; runs that hold nothing else go, the rest with the next merge."""
        if not blocks:
            return
        kept = max(first + len(ids) for first, ids in blocks)
        with self._database.change() as connection:
            changed = "UPDATE logs SET kept = max(kept, ?) WHERE name = ?"
            connection.execute(changed, (kept, log))
            for (run,) in connection.execute(_OVER).fetchall():
                _remove(connection, run)

    def forget(self, log: str) -> None:
        """See HistoryIndex; fed again it has another number, so that nothing of it is found."""
        with self._database.change() as connection:
            connection.execute("DELETE FROM logs WHERE name = ?", (log,))

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """See HistoryIndex; costs some tenths of a microsecond per run, and a look at one piece of
        a run that may hold it.
        """
        key, found = key_of(record_id), []
        with self._database.use() as connection:
            logs = {
                number: (name, kept)
                for number, name, kept in connection.execute("SELECT number, name, kept FROM logs")
            }
            runs = dict(connection.execute("SELECT number, size FROM runs").fetchall())
            if self._marks.keys() - runs.keys():
                self._marks = {run: self._marks[run] for run in runs if run in self._marks}
            for run, size in runs.items():
                if self._may_hold(connection, run, size, key):
                    found += _look_up(connection, run, key)
        return sorted(
            (logs[log][0], position)
            for log, position in found
            if log in logs and position >= logs[log][1]
        )

    def close(self) -> None:
        """See HistoryIndex."""
        self._database.close()

    def _may_hold(self, connection: sqlite3.Connection, run: int, size: int, key: int) -> bool:
        marks = self._marks.get(run)
        if marks is None:
            if size + sum(map(len, self._marks.values())) > _MARKS_BYTES:
                return True
            marks = self._marks[run] = read_pieces(_bodies(connection, _places(run))).marks()
        return marks.may_hold(key)


def _make_tables(connection: sqlite3.Connection) -> None:
    """Another version's begin anew: they are made again of the log."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        for table in ("places", "logs", "runs", "reach", "pieces"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _begin_run(connection: sqlite3.Connection, size: int) -> int:
    """Makes room for a run of about that many entries; returns its number."""
    added = "INSERT INTO runs (level, size) VALUES (?, ?)"
    number = connection.execute(added, (level_of(size), size)).lastrowid
    assert number is not None, "a row that was inserted has a number"
    return number


def _keep(connection: sqlite3.Connection, run: int, entries: Run) -> None:
    start, _ = _places(run)
    rows = ((start + first, body) for first, body in entries.pieces())
    connection.executemany("INSERT INTO pieces VALUES (?, ?)", rows)


def _merge_where_many(connection: sqlite3.Connection) -> None:
    """Makes one of the runs of a level where there are enough, until there are nowhere."""
    many = "SELECT level FROM runs WHERE level < ? GROUP BY level HAVING count(*) >= ? LIMIT 1"
    while row := connection.execute(many, (LAST_LEVEL, MERGED_AT_ONCE)).fetchone():
        asked = "SELECT number, size FROM runs WHERE level = ?"
        _merge(connection, dict(connection.execute(asked, row).fetchall()))


def _merge(connection: sqlite3.Connection, sizes: dict[int, int]) -> None:
    """Makes one of these runs, a stretch of keys at a time."""
    kept = dict(connection.execute("SELECT number, kept FROM logs").fetchall())
    merged, size = _begin_run(connection, sum(sizes.values())), 0
    for first, end in stretches(sum(sizes.values())):
        bodies = [body for run in sizes for body in _bodies_between(connection, run, first, end)]
        entries = read_pieces(bodies).within(first, end).only_kept(kept)
        _keep(connection, merged, entries)
        size += len(entries)
    connection.execute("UPDATE runs SET size = ? WHERE number = ?", (size, merged))
    for run in sizes:
        connection.execute(_MERGED_REACH, (merged, run))
        _remove(connection, run)


def _remove(connection: sqlite3.Connection, run: int) -> None:
    connection.execute("DELETE FROM pieces WHERE place BETWEEN ? AND ?", _places(run))
    connection.execute("DELETE FROM reach WHERE run = ?", (run,))
    connection.execute("DELETE FROM runs WHERE number = ?", (run,))


def _bodies(connection: sqlite3.Connection, places: tuple[int, int]) -> list[bytes]:
    asked = "SELECT entries FROM pieces WHERE place BETWEEN ? AND ?"
    return [body for (body,) in connection.execute(asked, places).fetchall()]


def _bodies_between(connection: sqlite3.Connection, run: int, first: int, end: int) -> list[bytes]:
    """The pieces of a run that hold keys of a stretch: also the one that begins before it."""
    start, _ = _places(run)
    before = "SELECT max(place) FROM pieces WHERE place BETWEEN ? AND ?"
    (found,) = connection.execute(before, (start, start + first)).fetchone()
    return _bodies(connection, (found or start, start + end - 1))


def _look_up(connection: sqlite3.Connection, run: int, key: int) -> list[tuple[int, int]]:
    return list(read_pieces(_bodies_between(connection, run, key, key + 1)).find(key))


def _places(run: int) -> tuple[int, int]:
    """The first and the last place that pieces of a run may have."""
    return run << KEY_BITS, (run << KEY_BITS) + (1 << KEY_BITS) - 1
