"""Records in one SQLite file: cursors, timers and other low-rate state. [CH-13]

WAL with `synchronous=FULL`: a change is on disk when the call returns. One connection behind a
lock, so any thread may call. sqlite3's own exceptions end here.

Indexes that can be made again from the log: a damaged one is put aside, not trusted and not
asked to be repaired by hand. [CH-13]
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
from rapport.store.base import Change, Delete, Guard, Put, check_changes, check_guards
from rapport.store.files import disk_error

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
  in_table TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (in_table, key)
) WITHOUT ROWID
"""
_GET = "SELECT value FROM records WHERE in_table = ? AND key = ?"
_PUT = "INSERT OR REPLACE INTO records VALUES (?, ?, ?)"
_DELETE = "DELETE FROM records WHERE in_table = ? AND key = ?"
_BUSY_SECONDS = 5.0


class SqliteRecordStore:
    """A RecordStore in one SQLite file. A change costs one sync of the write-ahead log, however
    many keys it has.
    """

    def __init__(self, path: Path | None) -> None:
        """Without a path: in a file that has no name and is gone with the store, or the process."""
        self._database = SqliteFile(path, _SCHEMA, synchronous="FULL")

    def get(self, table: str, key: str) -> bytes | None:
        """See RecordStore."""
        with self._database.use() as connection:
            return _get(connection, table, key)

    def put(self, table: str, key: str, value: bytes) -> None:
        """See RecordStore."""
        self.apply((Put(table, key, value),))

    def delete(self, table: str, key: str) -> None:
        """See RecordStore."""
        self.apply((Delete(table, key),))

    def apply(self, changes: Sequence[Change]) -> None:
        """See RecordStore."""
        self.apply_guarded(changes, ())

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        """See GuardedRecordStore."""
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
        """See RecordStore; keys are kept as UTF-8, whose byte order is that of code points."""
        query = (
            "SELECT key, value FROM records WHERE in_table = ? AND key >= ? AND key > ? "
            "ORDER BY key LIMIT ?"
        )
        with self._database.use() as connection:
            rows = connection.execute(query, (table, prefix, after, limit)).fetchall()
        # Keys with the prefix stand together at the front, so the rest can be cut off here.
        return [(key, bytes(value)) for key, value in rows if key.startswith(prefix)]

    def close(self) -> None:
        """See RecordStore."""
        self._database.close()


def _get(connection: sqlite3.Connection, table: str, key: str) -> bytes | None:
    row = connection.execute(_GET, (table, key)).fetchone()
    return None if row is None else bytes(row[0])


IN_MEMORY = ":memory:"
"""What SQLite calls a database without a file."""


def _make_private_file(path: Path) -> None:
    """Makes the file before SQLite does, which would let everybody read it and the files beside
    it; one that is there keeps its rights. What is wrong with the path, SQLite reports.
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
        """The connection, for reading; raises StoreUnavailable or Corrupt for what SQLite says."""
        with self._guard, self._translated():
            if self._connection is None:
                raise StoreUnavailable("the record store is closed", code="store.closed")
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


_log = get_logger(__name__)
T = TypeVar("T")

DAMAGED_ENDING = ".damaged"
_PARTS = ("", "-wal", "-shm")


def open_or_recreate(make: Callable[[Path], T], path: Path) -> T:
    """What `make` opens at a path; when the file there is no index, a new one beside it.

    The damaged file is kept as `<name>.damaged`, in place of an earlier one. Raises
    StoreUnavailable.
    """
    try:
        return make(path)
    except Corrupt as error:
        _log.warning("index begins anew", path=str(path), why=error.message)
    try:
        for part in _PARTS:
            file = path.with_name(f"{path.name}{part}")
            if file.exists():
                file.replace(file.with_name(f"{file.name}{DAMAGED_ENDING}"))
    except OSError as error:
        raise disk_error(f"cannot put {path} aside", error) from error
    return make(path)
