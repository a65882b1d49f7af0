"""SQLite files: one connection for all threads, Rapport's errors, and records in one file. [CH-13]

Records are cursors, timers and other low-rate state: WAL with `synchronous=FULL`, so a change is
on disk when the call returns. Indexes that can be rebuilt from the log are opened with
`open_or_recreate`: a damaged one is moved away and made again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from rapport.core.errors import Corrupt, InvalidInput, RapportError, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    Change,
    Guard,
    Put,
    RecordChanges,
    check_changes,
    check_guards,
    closed_error,
)
from rapport.store.files import disk_error

SQLITE_VERSION = sqlite3.sqlite_version

_log = get_logger(__name__)
T = TypeVar("T")

DAMAGED_ENDING = ".damaged"
_FILE_ENDINGS = ("", "-wal", "-shm")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
  in_table TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (in_table, key)
) WITHOUT ROWID
"""
_GET = "SELECT value FROM records WHERE in_table = ? AND key = ?"
_PUT = "INSERT OR REPLACE INTO records VALUES (?, ?, ?)"
_DELETE = "DELETE FROM records WHERE in_table = ? AND key = ?"
_BUSY_SECONDS = 5.0


class SqliteRecordStore(RecordChanges):
    """A RecordStore in one SQLite file. A change costs one sync of the write-ahead log for any
    number of keys.
    """

    def __init__(self, path: Path | None) -> None:
        """Without a path: in an unnamed file that is gone with the store or the process."""
        self._database = SqliteFile(path, _SCHEMA, synchronous="FULL")

    def get(self, table: str, key: str) -> bytes | None:
        with self._database.use() as connection:
            return _get(connection, table, key)

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        check_changes(changes)
        with self._database.change() as connection:
            check_guards(guards, partial(_get, connection))
            for change in changes:
                if isinstance(change, Put):
                    connection.execute(_PUT, (change.table, change.key, change.value))
                else:
                    connection.execute(_DELETE, (change.table, change.key))

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        query = (
            "SELECT key, value FROM records WHERE in_table = ? AND key >= ? AND key > ? "
            "ORDER BY key LIMIT ?"
        )
        with self._database.use() as connection:
            rows = connection.execute(query, (table, prefix, after, limit)).fetchall()
        # SQLite compares UTF-8 bytes, whose order is that of code points, so keys with the prefix
        # stand together at the front.
        return [(key, bytes(value)) for key, value in rows if key.startswith(prefix)]

    def close(self) -> None:
        self._database.close()


def _get(connection: sqlite3.Connection, table: str, key: str) -> bytes | None:
    row = connection.execute(_GET, (table, key)).fetchone()
    return None if row is None else bytes(row[0])


IN_MEMORY = ":memory:"
"""SQLite's name for a database without a file."""


def _make_private_file(path: Path) -> None:
    """Creates the file before SQLite does, which would let everybody read it and the files beside
    it; an existing file keeps its rights. SQLite reports the faults of the path.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


class SqliteFile:
    """One SQLite connection for all threads, one at a time; errors come out as Rapport's."""

    def __init__(self, path: Path | None, schema: str, *, synchronous: str) -> None:
        self._shown = "a temporary file" if path is None else str(path)
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        with self._translated():
            if path is not None and str(path) != IN_MEMORY:
                _make_private_file(path)
            connection = sqlite3.connect(
                "" if path is None else path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA synchronous = {synchronous}")
                connection.executescript(schema)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """The connection, for reading; raises SQLite's errors as StoreUnavailable or Corrupt."""
        with self._guard, self._translated():
            if self._connection is None:
                raise closed_error()
            yield self._connection

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """The connection inside one transaction: all of it or, after any exception, nothing."""
        with self.use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Ends; a second call is no error."""
        with self._guard, self._translated():
            if self._connection is not None:
                connection, self._connection = self._connection, None
                connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, self._shown) from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidInput(f"a key cannot be kept: {error}", code="store.bad_key") from error


def _translate(error: sqlite3.Error, path: str) -> RapportError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Corrupt(
            f"{path} is damaged: {error}",
            code="store.damaged",
            hint="restore the file from a copy; the log beside it is not touched",
        )
    if name.startswith("SQLITE_FULL"):
        return StoreUnavailable(
            f"{path}: the disk is full", code="store.disk_full", hint="free some space, try again"
        )
    if isinstance(error, (sqlite3.InterfaceError, sqlite3.ProgrammingError)):
        return InvalidInput(f"a record cannot be kept: {error}", code="store.bad_record")
    return StoreUnavailable(f"{path}: {error}", code="store.unavailable")


def open_or_recreate(make: Callable[[Path], T], path: Path) -> T:
    """Opens an index that can be rebuilt; a damaged file is renamed to `<name>.damaged`, replacing
    an earlier one, and a new index made. Raises StoreUnavailable.
    """
    try:
        return make(path)
    except Corrupt as error:
        _log.warning("damaged index recreated", path=str(path), why=error.message)
    try:
        for ending in _FILE_ENDINGS:
            file = path.with_name(f"{path.name}{ending}")
            if file.exists():
                file.replace(file.with_name(f"{file.name}{DAMAGED_ENDING}"))
    except OSError as error:
        raise disk_error(f"cannot set {path} aside", error) from error
    return make(path)
