"""Tables derived from a log: rows found by key and by column, with the position read so far.
[CH-4, CO-10]

They stand in a SQLite file of their own, or in memory. Rows and position change in one transaction,
so rows may be late but never wrong; the file can be deleted at any time and is rebuilt. Several
processes may feed it: `ingest` returns False to one that was overtaken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from rapport.core.event import content_id
from rapport.store.sqlite import SqliteFile, open_or_recreate

IN_MEMORY = Path(":memory:")
_FED = "CREATE TABLE IF NOT EXISTS fed (log TEXT PRIMARY KEY, position INTEGER NOT NULL);"
_VERSION_BITS = 31

DerivedRow = tuple[Any, ...]
Comparison = Literal["=", "<", "<=", ">", ">="]


class TableShape(msgspec.Struct, frozen=True):
    """One table: its columns in order, those of its key, and its indexes.

    Each of `orders` is an index: a query whose equal columns begin one of them, and whose order
    continues it, costs only the rows it finds.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...] = ()


class RowCondition(msgspec.Struct, frozen=True):
    """One condition of a query; several columns are compared as a tuple."""

    columns: tuple[str, ...]
    is_: Comparison
    values: tuple[Any, ...]


class DerivedRows:
    """Tables of one log. Names of tables and columns come from the program, values from anybody."""

    def __init__(self, path: Path, shapes: Mapping[str, TableShape]) -> None:
        """Opens or creates them; tables of another version, or a damaged file, are recreated."""
        self._shapes = dict(shapes)
        self._version = int(content_id(repr(sorted(shapes.items()))), 16) % (1 << _VERSION_BITS)
        self._database = open_or_recreate(self._open, path)

    def fed(self, log: str) -> int:
        with self._database.use() as connection:
            row = connection.execute("SELECT position FROM fed WHERE log = ?", (log,)).fetchone()
        return 0 if row is None else int(row[0])

    def ingest(
        self,
        log: str,
        before: int,
        through: int,
        writes: Mapping[str, Sequence[DerivedRow]],
        gone: Mapping[str, Sequence[DerivedRow]] | None = None,
    ) -> bool:
        """Writes whole rows by table, deletes those with the keys `gone`, and records that the log
        is read `through` a position; False, and nothing written, unless it was read up to `before`.
        """
        with self._database.change() as connection:
            row = connection.execute("SELECT position FROM fed WHERE log = ?", (log,)).fetchone()
            if (0 if row is None else int(row[0])) != before:
                return False
            for table, rows in writes.items():
                marks = ", ".join("?" for _ in self._shapes[table].columns)
                connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)
            for table, keys in (gone or {}).items():
                same = " AND ".join(f"{column} = ?" for column in self._shapes[table].key)
                connection.executemany(f"DELETE FROM {table} WHERE {same}", keys)
            connection.execute("INSERT OR REPLACE INTO fed VALUES (?, ?)", (log, through))
        return True

    def by_key(self, table: str, keys: Sequence[Sequence[str]]) -> list[DerivedRow]:
        """The rows with these keys; a key shorter than the table's finds all rows whose key begins
        with it. All keys have one length.
        """
        if not keys:
            return []
        columns = self._shapes[table].key[: len(keys[0])]
        same = " AND ".join(
            f"{table}.{column} = json_extract(wanted.value, '$[{number}]')"
            for number, column in enumerate(columns)
        )
        names = ", ".join(f"{table}.{column}" for column in self._shapes[table].columns)
        query = f"SELECT {names} FROM json_each(?) wanted CROSS JOIN {table} ON {same}"
        with self._database.use() as connection:
            return connection.execute(query, (msgspec.json.encode(keys).decode(),)).fetchall()

    def find(
        self,
        table: str,
        where: Sequence[RowCondition] = (),
        *,
        newest_by: Sequence[str],
        limit: int,
    ) -> list[DerivedRow]:
        """The matching rows, greatest first by `newest_by`."""
        text, values = self._query(table, where, newest_by)
        with self._database.use() as connection:
            return connection.execute(text, (*values, limit)).fetchall()

    def plan(
        self, table: str, where: Sequence[RowCondition], *, newest_by: Sequence[str]
    ) -> list[str]:
        """SQLite's plan for `find`, for tests of the cost of a query."""
        text, values = self._query(table, where, newest_by)
        with self._database.use() as connection:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {text}", (*values, 1)).fetchall()
        return [str(row[3]) for row in rows]

    def counts(self, table: str, where: Sequence[RowCondition], by: str) -> dict[str, int]:
        """Number of matching rows by the values of a column; scans all of them."""
        condition, values = _condition(where)
        text = f"SELECT {by}, count(*) FROM {table}{condition} GROUP BY {by}"
        with self._database.use() as connection:
            return {str(value): int(count) for value, count in connection.execute(text, values)}

    def prune(self, table: str, column: str, below: int, *, beside: Sequence[str] = ()) -> None:
        """Deletes rows whose column is smaller, and rows of other tables whose key begins with the
        same value; scans the whole table.
        """
        key = self._shapes[table].key[0]
        gone = f"SELECT {key} FROM {table} WHERE {column} < ?"
        with self._database.change() as connection:
            for other in (*beside, table):
                first = self._shapes[other].key[0]
                connection.execute(f"DELETE FROM {other} WHERE {first} IN ({gone})", (below,))

    def reset(self, log: str) -> None:
        """Deletes everything; the log is read again from its start."""
        with self._database.change() as connection:
            for table in self._shapes:
                connection.execute(f"DELETE FROM {table}")
            connection.execute("DELETE FROM fed WHERE log = ?", (log,))

    def close(self) -> None:
        """Ends; a second call is no error."""
        self._database.close()

    def _query(
        self, table: str, where: Sequence[RowCondition], newest_by: Sequence[str]
    ) -> tuple[str, list[Any]]:
        condition, values = _condition(where)
        order = ", ".join(f"{column} DESC" for column in newest_by)
        return f"SELECT * FROM {table}{condition} ORDER BY {order} LIMIT ?", values

    def _open(self, path: Path) -> SqliteFile:
        database = SqliteFile(path, _FED, synchronous="NORMAL")
        with database.change() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != self._version:
                for name, shape in self._shapes.items():
                    connection.execute(f"DROP TABLE IF EXISTS {name}")
                    for statement in _statements(name, shape):
                        connection.execute(statement)
                connection.execute("DELETE FROM fed")
                connection.execute(f"PRAGMA user_version = {self._version}")
        return database


def _condition(where: Sequence[RowCondition]) -> tuple[str, list[Any]]:
    parts, values = [], list[Any]()
    for each in where:
        marks = ", ".join("?" for _ in each.values)
        parts.append(f"({', '.join(each.columns)}) {each.is_} ({marks})")
        values += each.values
    return (f" WHERE {' AND '.join(parts)}" if parts else ""), values


def _statements(table: str, shape: TableShape) -> list[str]:
    key = ", ".join(shape.key)
    made = [f"CREATE TABLE {table} ({', '.join(shape.columns)}, PRIMARY KEY ({key})) WITHOUT ROWID"]
    for number, order in enumerate(shape.orders):
        made.append(f"CREATE INDEX {table}_order_{number} ON {table} ({', '.join(order)})")
    return made
