"""Records in PostgreSQL: cursors, leases, takes and other state that changes in transactions.
[CH-13, CO-17]

Keys are stored as UTF-8 bytes: their order is that of code points, and they may hold any character.
A guarded change is one statement where possible, so that a process that is frozen at any point
holds no lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.core.errors import InvalidInput
from rapport.store.base import Change, Delete, Guard, GuardFailed, Put, RecordChanges, check_changes
from rapport.store.postgres_connections import (
    CONNECTIONS,
    SCHEMA,
    PostgresConnection,
    PostgresConnections,
)

_PUT = (
    "INSERT INTO records (in_table, key, value) VALUES (%s, %s, %s) "
    "ON CONFLICT (in_table, key) DO UPDATE SET value = EXCLUDED.value"
)
_DELETE = "DELETE FROM records WHERE in_table = %s AND key = %s"
_GET = "SELECT value FROM records WHERE in_table = %s AND key = %s"
_FIND = (
    "SELECT key, value FROM records WHERE in_table = %s AND key >= %s AND key > %s "
    "ORDER BY key LIMIT %s"
)
_AT_ONCE = """
WITH wanted AS (
  SELECT * FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) AS guards (in_table, key, value)
), held AS MATERIALIZED (
  SELECT kept.in_table, kept.key, kept.value FROM records AS kept
  JOIN wanted ON kept.in_table = wanted.in_table AND kept.key = wanted.key
  ORDER BY kept.in_table, kept.key FOR SHARE OF kept
), fine AS (
  SELECT count(*) = 0 AS is_so FROM wanted LEFT JOIN held
  ON held.in_table = wanted.in_table AND held.key = wanted.key AND held.value = wanted.value
  WHERE held.key IS NULL
), written AS (
  INSERT INTO records (in_table, key, value)
  SELECT added.* FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) AS added, fine WHERE is_so
  ON CONFLICT (in_table, key) DO UPDATE SET value = EXCLUDED.value
), forgotten AS (
  DELETE FROM records AS kept USING unnest(%s::text[], %s::bytea[]) AS gone (in_table, key), fine
  WHERE is_so AND kept.in_table = gone.in_table AND kept.key = gone.key
)
SELECT in_table, key, value FROM held
"""
_LOCK = "SELECT value FROM records WHERE in_table = %s AND key = %s FOR"
_FREEZE_LIMIT = "SET LOCAL idle_in_transaction_session_timeout = '1s'"
"""Disconnects a process that is frozen between two statements, so that others go on."""


def _apply_guarded(
    link: PostgresConnection,
    changes: Sequence[Change],
    guards: Sequence[Guard],
) -> None:
    """See GuardedRecordStore; the changes are in order, one for each key."""
    changed = {(change.table, change.key) for change in changes}
    moves = any((guard.table, guard.key) in changed for guard in guards)
    if moves or any(guard.expected is None for guard in guards):
        _step_by_step(link, changes, guards, changed)
    else:
        _at_once(link, changes, guards)


def _at_once(link: PostgresConnection, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
    """One statement. Transactions that share guards do not wait for each other; a change of a
    guarded record waits for them.
    """
    puts = [change for change in changes if isinstance(change, Put)]
    deletes = [change for change in changes if isinstance(change, Delete)]
    values = (
        [guard.table for guard in guards],
        [guard.key.encode() for guard in guards],
        [guard.expected for guard in guards],
        [put.table for put in puts],
        [put.key.encode() for put in puts],
        [put.value for put in puts],
        [delete.table for delete in deletes],
        [delete.key.encode() for delete in deletes],
    )
    found = link.execute(_AT_ONCE, values, binary=True).fetchall()
    held = {(table, bytes(key).decode()): bytes(value) for table, key, value in found}
    for guard in guards:
        if held.get((guard.table, guard.key)) != guard.expected:
            raise GuardFailed(guard)


def _step_by_step(
    link: PostgresConnection,
    changes: Sequence[Change],
    guards: Sequence[Guard],
    changed: set[tuple[str, str]],
) -> None:
    """A transaction for changes of guarded records, or with guards on absent records."""
    with link.transaction():
        if any(guard.expected is None for guard in guards):
            # An absent row cannot be locked.
            link.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        link.execute(_FREEZE_LIMIT)
        for guard in sorted(guards, key=lambda guard: (guard.table, guard.key)):
            # The stronger lock at once for a row that will change: two transactions with the
            # weaker one would wait for each other.
            strength = "UPDATE" if (guard.table, guard.key) in changed else "SHARE"
            place = (guard.table, guard.key.encode())
            row = link.execute(f"{_LOCK} {strength}", place, binary=True).fetchone()
            if (None if row is None else bytes(row[0])) != guard.expected:
                raise GuardFailed(guard)
        for change in changes:
            _change(link, change)


class PostgresRecordStore(RecordChanges):
    """See RecordStore. A change is one transaction for any number of keys; when a connection
    breaks, it may run twice, which changes nothing.
    """

    def __init__(self, dsn: str, *, schema: str = SCHEMA, size: int = CONNECTIONS) -> None:
        self._connections = PostgresConnections(dsn, schema=schema, size=size)

    def get(self, table: str, key: str) -> bytes | None:
        values = (_table(table), _key(key))
        row = self._connections.run(lambda link: link.execute(_GET, values, binary=True).fetchone())
        return None if row is None else bytes(row[0])

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        ordered = _ordered(changes)
        check_changes([Delete(guard.table, guard.key) for guard in guards])
        for place in (*ordered, *guards):
            _table(place.table)
        if guards:
            self._connections.run(lambda link: _apply_guarded(link, ordered, guards))
        elif ordered:
            self._connections.run(lambda link: _apply(link, ordered))

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        start = _key(prefix)
        values = (_table(table), start, _key(after), limit)
        rows = self._connections.run(
            lambda link: link.execute(_FIND, values, binary=True).fetchall()
        )
        # Keys with the prefix stand together at the front.
        return [(bytes(key).decode(), bytes(value)) for key, value in rows if key.startswith(start)]

    def close(self) -> None:
        self._connections.close()


def _ordered(changes: Sequence[Change]) -> list[Change]:
    """The last change of each key, ordered by key, so that two processes do not deadlock."""
    check_changes(changes)
    last = {(change.table, change.key): change for change in changes}
    return [last[place] for place in sorted(last)]


def _apply(link: PostgresConnection, changes: Sequence[Change]) -> None:
    if len(changes) == 1:
        _change(link, changes[0])
        return
    with link.pipeline(), link.transaction():
        for change in changes:
            _change(link, change)


def _change(link: PostgresConnection, change: Change) -> None:
    if isinstance(change, Put):
        link.execute(_PUT, (_table(change.table), _key(change.key), change.value))
    else:
        link.execute(_DELETE, (_table(change.table), _key(change.key)))


def _table(name: str) -> str:
    if "\x00" in name:
        raise InvalidInput("a table's name cannot hold NUL", code="store.bad_key")
    return name


def _key(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{key[:60]!r} cannot be a key: {error.reason}", code="store.bad_key"
        ) from None
