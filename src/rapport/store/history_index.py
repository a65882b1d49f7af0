"""The history index: the channels and positions at which an event id may stand. [CH-4]

It is fed from the log in the background, with the position fed so far in the same transaction: it
may be late, misses nothing that it was fed, and can be deleted at any time.

Instead of ids it keeps keys of 32 bits, so the caller checks whether the event is really there. A
key is the sum of an id's words, each times a multiplier of its place, computed for many ids
together. Keys are stored, so multipliers do not change without a new version of the index. A feed
is one sorted run of (key, log and position), twelve bytes per event, cut into pieces of some
kilobytes that are found by their first key; eight runs of a size are merged into one.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import mul
from pathlib import Path
from typing import Protocol

import numpy as np

from rapport.core.errors import RapportError
from rapport.store.sqlite import IN_MEMORY, SqliteFile


class HistoryIndex(Protocol):
    """(log, record id) -> position."""

    needs_feeding: bool
    """False when the log itself is the index: then `feed` and `prune` need not be called."""

    def fed(self, log: str) -> int:
        """The position up to which the log is fed; 0 for a new one."""

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """Adds blocks of (first position, ids) and records that `fed` is reached; all or none."""

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Removes blocks of (first position, ids), because retention removes them and all before
        them.
        """

    def forget(self, log: str) -> None:
        """Deletes all entries of a log, to be fed again from the start."""

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """Every (log, position) at which the id may stand, sorted; one entry in a thousand
        million is that of another id.
        """

    def close(self) -> None:
        """Ends; a second call is no error."""


KEY_BITS = 32
_SUM_BITS = 64
_SUM = (1 << _SUM_BITS) - 1
_WORD = 4
_MOST_WORDS = 256
"""Words of the longest id of an event."""
_LONGEST = _MOST_WORDS * _WORD

Keys = np.ndarray


def id_key(id: str) -> int:
    body = _body(id)
    count = -(-len(body) // _WORD)
    words = struct.unpack(f"<{count}I", body.ljust(count * _WORD, b"\0"))
    total: int = sum(map(mul, (len(body), *words), _MULTIPLIERS))
    return (total & _SUM) >> _SUM_BITS - KEY_BITS


def id_keys(ids: Sequence[str]) -> Keys:
    """Keys of many ids: the sum of an id is a difference of running sums over all of them."""
    bodies = list(map(_body, ids))
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    counts = -(-lengths // _WORD)
    ends = counts.cumsum()
    starts = ends - counts
    row = b"".join([body + _PADDING[len(body) % _WORD] for body in bodies])
    words = np.frombuffer(row, "<u4").astype(np.uint64)
    places = np.arange(1, len(words) + 1) - np.repeat(starts, counts)
    running = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words * _COLUMN[places], out=running[1:])
    return _as_keys(running[ends] - running[starts] + lengths.astype(np.uint64) * _COLUMN[0])


def _as_keys(sums: np.ndarray) -> Keys:
    keys: Keys = (sums >> np.uint64(_SUM_BITS - KEY_BITS)).astype(np.uint32)
    return keys


def _body(id: str) -> bytes:
    """The bytes of an id; a digest of one that is longer than any event's."""
    body = id.encode("utf-8", "surrogatepass")
    return body if len(body) <= _LONGEST else hashlib.blake2b(body).digest()


def _drawn(place: int) -> int:
    """A multiplier: constant and without a pattern."""
    digest = hashlib.blake2b(b"%d" % place, digest_size=_SUM_BITS // 8).digest()
    return int.from_bytes(digest, "little") | 1


_MULTIPLIERS = [_drawn(place) for place in range(1 + _MOST_WORDS)]
"""The first is for the length."""
_COLUMN = np.array(_MULTIPLIERS, np.uint64)
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
"""By the number of bytes in the last word."""


_POSITION_BITS = 44
_POSITION = (1 << _POSITION_BITS) - 1
_ENTRY_BYTES = 12
_PIECE_ENTRIES = 1_360
"""Some 16 kB."""
_FILTER_BITS_PER_KEY = 8
MERGED_AT_ONCE = 8
"""Runs of a level that are merged into one of the next."""
_LEVEL_BITS = 3
LAST_LEVEL = 6
"""Runs of 131,072 entries and more are not merged."""
_MERGED_ENTRIES = 65_536
"""Entries that a merge sorts at a time, to bound its memory."""

_Entries = np.ndarray


def level_of(size: int) -> int:
    """The level of a run; runs of a level have about the same size."""
    return min(size.bit_length() // _LEVEL_BITS, LAST_LEVEL)


class SortedRun:
    __slots__ = ("keys", "places")

    def __init__(self, keys: Keys, places: _Entries, *, in_order: bool = False) -> None:
        """`in_order`: they are sorted already."""
        if in_order:
            self.keys, self.places = keys, places
            return
        order = np.argsort(keys, kind="stable")
        self.keys, self.places = keys[order], places[order]

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, key: int) -> Iterator[tuple[int, int]]:
        """(number of the log, position) of all entries with a key."""
        wanted = np.uint32(key)
        first, end = self.keys.searchsorted(wanted), self.keys.searchsorted(wanted, "right")
        for place in self.places[first:end].tolist():
            yield place >> _POSITION_BITS, place & _POSITION

    def only_kept(self, kept: Mapping[int, int]) -> SortedRun:
        """The entries of the named logs from the named positions on."""
        logs = self.places >> _POSITION_BITS
        first = np.full(int(logs.max(initial=0)) + 1, _POSITION, np.int64)
        for log, position in kept.items():
            if log < len(first):
                first[log] = position
        return self._only((self.places & _POSITION) >= first[logs])

    def within(self, first: int, end: int) -> SortedRun:
        """The entries with a key from `first` to before `end`."""
        places = self.keys.searchsorted(np.array((first, end), np.uint64))
        here = slice(*places.tolist())
        return SortedRun(self.keys[here], self.places[here], in_order=True)

    def _only(self, stays: np.ndarray) -> SortedRun:
        if stays.all():
            return self
        return SortedRun(self.keys[stays], self.places[stays], in_order=True)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Pieces with their first key; no key is in two pieces."""
        start = 0
        while start < len(self.keys):
            end = min(start + _PIECE_ENTRIES, len(self.keys))
            end = int(self.keys.searchsorted(self.keys[end - 1], "right"))
            body = self.places[start:end].tobytes() + self.keys[start:end].tobytes()
            yield int(self.keys[start]), body
            start = end


def key_ranges(entries: int) -> list[tuple[int, int]]:
    """Ranges of all keys, each with at most _MERGED_ENTRIES of the entries on average."""
    count = entries // _MERGED_ENTRIES + 1
    ends = [(number << KEY_BITS) // count for number in range(count + 1)]
    return list(pairwise(ends))


def build_run(log: int, blocks: Sequence[tuple[int, Sequence[str]]], after: int) -> SortedRun:
    """A run of the ids of blocks of (first position, ids) after a position."""
    found: list[str] = []
    places: list[int] = []
    for first, ids in blocks:
        known = max(after - first + 1, 0)
        found += ids[known:]
        places += range(
            (log << _POSITION_BITS) + first + known, (log << _POSITION_BITS) + first + len(ids)
        )
    return SortedRun(id_keys(found), np.array(places, np.int64))


def read_pieces(bodies: Sequence[bytes]) -> SortedRun:
    keys, places = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
    for body in bodies:
        count = len(body) // _ENTRY_BYTES
        places.append(np.frombuffer(body, np.int64, count))
        keys.append(np.frombuffer(body, np.uint32, count, 8 * count))
    return SortedRun(np.concatenate(keys), np.concatenate(places))


class KeyFilter:
    """A bitmap of one byte per entry that rules out most keys that are not in a run."""

    __slots__ = ("_bits", "_shift")

    def __init__(self, keys: Keys) -> None:
        bits = min(max(len(keys) * _FILTER_BITS_PER_KEY - 1, 7).bit_length(), KEY_BITS)
        self._shift = KEY_BITS - bits
        marks = np.zeros(1 << bits, np.bool_)
        marks[keys >> np.uint32(self._shift)] = True
        self._bits = np.packbits(marks, bitorder="little").tobytes()

    def may_hold(self, key: int) -> bool:
        """False when no entry has the key."""
        place = key >> self._shift
        return bool(self._bits[place >> 3] >> (place & 7) & 1)

    def __len__(self) -> int:
        return len(self._bits)


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
_FILTER_BYTES = 32 * 1024 * 1024
"""Bytes of key filters in memory; further runs are searched each time."""


class SqliteHistory:
    """A HistoryIndex in a SQLite file of its own. Not synced per feed: after a power cut it is fed
    again. Several processes may feed it.
    """

    needs_feeding = True

    def __init__(self, path: Path) -> None:
        self._database = SqliteFile(path, "", synchronous="NORMAL")
        self._filters: dict[int, KeyFilter] = {}
        try:
            with self._database.change() as connection:
                _make_tables(connection)
        except RapportError:
            self._database.close()
            raise

    def fed(self, log: str) -> int:
        with self._database.use() as connection:
            row = connection.execute("SELECT fed FROM logs WHERE name = ?", (log,)).fetchone()
        return 0 if row is None else int(row[0])

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """See HistoryIndex; skips positions that were fed before, perhaps by another process."""
        with self._database.change() as connection:
            connection.execute("INSERT OR IGNORE INTO logs (name) VALUES (?)", (log,))
            select = "SELECT number, fed FROM logs WHERE name = ?"
            number, before = connection.execute(select, (log,)).fetchone()
            run = build_run(number, blocks, before)
            if len(run):
                added = _begin_run(connection, len(run))
                _write_run(connection, added, run)
                last = max(first + len(ids) - 1 for first, ids in blocks)
                connection.execute("INSERT INTO reach VALUES (?, ?, ?)", (added, number, last))
                _merge_where_many(connection)
            reached = max(fed, before)
            connection.execute("UPDATE logs SET fed = ? WHERE number = ?", (reached, number))

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """See HistoryIndex; removes whole runs now, other entries with the next merge."""
        if not blocks:
            return
        kept = max(first + len(ids) for first, ids in blocks)
        with self._database.change() as connection:
            changed = "UPDATE logs SET kept = max(kept, ?) WHERE name = ?"
            connection.execute(changed, (kept, log))
            for (run,) in connection.execute(_OVER).fetchall():
                _remove(connection, run)

    def forget(self, log: str) -> None:
        """See HistoryIndex; fed again the log has another number, so old entries are not found."""
        with self._database.change() as connection:
            connection.execute("DELETE FROM logs WHERE name = ?", (log,))

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """See HistoryIndex; costs some tenths of a microsecond per run, and reading one piece of
        each run that may hold the key.
        """
        key, found = id_key(record_id), []
        with self._database.use() as connection:
            logs = {
                number: (name, kept)
                for number, name, kept in connection.execute("SELECT number, name, kept FROM logs")
            }
            runs = dict(connection.execute("SELECT number, size FROM runs").fetchall())
            if self._filters.keys() - runs.keys():
                self._filters = {run: self._filters[run] for run in runs if run in self._filters}
            for run, size in runs.items():
                if self._may_hold(connection, run, size, key):
                    found += _look_up(connection, run, key)
        return sorted(
            (logs[log][0], position)
            for log, position in found
            if log in logs and position >= logs[log][1]
        )

    def close(self) -> None:
        self._database.close()

    def _may_hold(self, connection: sqlite3.Connection, run: int, size: int, key: int) -> bool:
        found = self._filters.get(run)
        if found is None:
            if size + sum(map(len, self._filters.values())) > _FILTER_BYTES:
                return True
            found = self._filters[run] = KeyFilter(
                read_pieces(_bodies(connection, _places(run))).keys
            )
        return found.may_hold(key)


class MemoryHistory(SqliteHistory):
    """A HistoryIndex that is lost at the end of the process."""

    def __init__(self) -> None:
        super().__init__(Path(IN_MEMORY))


def _make_tables(connection: sqlite3.Connection) -> None:
    """Creates the tables; those of another version are dropped and fed again from the log."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        for table in ("places", "logs", "runs", "reach", "pieces"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _begin_run(connection: sqlite3.Connection, size: int) -> int:
    added = "INSERT INTO runs (level, size) VALUES (?, ?)"
    number = connection.execute(added, (level_of(size), size)).lastrowid
    assert number is not None, "a row that was inserted has a number"
    return number


def _write_run(connection: sqlite3.Connection, run: int, entries: SortedRun) -> None:
    start, _ = _places(run)
    rows = ((start + first, body) for first, body in entries.pieces())
    connection.executemany("INSERT INTO pieces VALUES (?, ?)", rows)


def _merge_where_many(connection: sqlite3.Connection) -> None:
    many = "SELECT level FROM runs WHERE level < ? GROUP BY level HAVING count(*) >= ? LIMIT 1"
    while row := connection.execute(many, (LAST_LEVEL, MERGED_AT_ONCE)).fetchone():
        select = "SELECT number, size FROM runs WHERE level = ?"
        _merge(connection, dict(connection.execute(select, row).fetchall()))


def _merge(connection: sqlite3.Connection, sizes: dict[int, int]) -> None:
    kept = dict(connection.execute("SELECT number, kept FROM logs").fetchall())
    merged, size = _begin_run(connection, sum(sizes.values())), 0
    for first, end in key_ranges(sum(sizes.values())):
        bodies = [body for run in sizes for body in _bodies_between(connection, run, first, end)]
        entries = read_pieces(bodies).within(first, end).only_kept(kept)
        _write_run(connection, merged, entries)
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
    select = "SELECT entries FROM pieces WHERE place BETWEEN ? AND ?"
    return [body for (body,) in connection.execute(select, places).fetchall()]


def _bodies_between(connection: sqlite3.Connection, run: int, first: int, end: int) -> list[bytes]:
    """The pieces of a run with keys of a range, including the one that begins before it."""
    start, _ = _places(run)
    before = "SELECT max(place) FROM pieces WHERE place BETWEEN ? AND ?"
    (found,) = connection.execute(before, (start, start + first)).fetchone()
    return _bodies(connection, (found or start, start + end - 1))


def _look_up(connection: sqlite3.Connection, run: int, key: int) -> list[tuple[int, int]]:
    return list(read_pieces(_bodies_between(connection, run, key, key + 1)).find(key))


def _places(run: int) -> tuple[int, int]:
    """The first and the last row number of the pieces of a run."""
    return run << KEY_BITS, (run << KEY_BITS) + (1 << KEY_BITS) - 1
