"""Records in PostgreSQL: cursors, leases, takes and other state that moves in transactions. [CH-13]

Keys are kept as UTF-8 bytes: their order is that of code points, and any character may stand in
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.core.errors import InvalidInput
from rapport.store.base import Change, Delete, Put
from rapport.store.guarding import Guard
from rapport.store.postgres.connections import CONNECTIONS, Link, PostgresConnections
from rapport.store.postgres.guarding import apply_guarded
from rapport.store.postgres.schema import SCHEMA
from rapport.store.records import check_changes

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


class PostgresRecordStore:
    """See RecordStore. A change is one transaction and one commit, however many keys it has; it may
    be done a second time when the connection breaks, which changes nothing.
    """

    def __init__(self, dsn: str, *, schema: str = SCHEMA, size: int = CONNECTIONS) -> None:
        self._connections = PostgresConnections(dsn, schema=schema, size=size)

    def get(self, table: str, key: str) -> bytes | None:
        """See RecordStore."""
        values = (_table(table), _key(key))
        row = self._connections.run(lambda link: link.execute(_GET, values, binary=True).fetchone())
        return None if row is None else bytes(row[0])

    def put(self, table: str, key: str, value: bytes) -> None:
        """See RecordStore."""
        self.apply((Put(table, key, value),))

    def delete(self, table: str, key: str) -> None:
        """See RecordStore."""
        self.apply((Delete(table, key),))

    def apply(self, changes: Sequence[Change]) -> None:
        """See RecordStore."""
        ordered = _ordered(changes)
        if ordered:
            self._connections.run(lambda link: _apply(link, ordered))

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        """See GuardedRecordStore."""
        ordered = _ordered(changes)
        check_changes([Delete(guard.table, guard.key) for guard in guards])
        for place in (*ordered, *guards):
            _table(place.table)
        if ordered or guards:
            self._connections.run(lambda link: apply_guarded(link, ordered, guards, _change))

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See RecordStore."""
        start = _key(prefix)
        values = (_table(table), start, _key(after), limit)
        rows = self._connections.run(
            lambda link: link.execute(_FIND, values, binary=True).fetchall()
        )
        # Keys with the prefix stand together at the front, so the rest can be cut off here.
        return [(bytes(key).decode(), bytes(value)) for key, value in rows if key.startswith(start)]

    def close(self) -> None:
        """See RecordStore."""
        self._connections.close()


def _ordered(changes: Sequence[Change]) -> list[Change]:
    """The last change of each key, the one that counts; in the order of keys, so that two
    processes never wait for each other.
    """
    check_changes(changes)
    last = {(change.table, change.key): change for change in changes}
    return [last[place] for place in sorted(last)]


def _apply(link: Link, changes: Sequence[Change]) -> None:
    if len(changes) == 1:
        _change(link, changes[0])
        return
    with link.pipeline(), link.transaction():
        for change in changes:
            _change(link, change)


def _change(link: Link, change: Change) -> None:
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
