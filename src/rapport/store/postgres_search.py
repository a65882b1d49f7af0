"""Queries for events in PostgreSQL: conditions in SQL, and indexes on declared fields. [CH-4]

The keys of indexes are those of `field_keys.py`: a text is cut, a number is a double, a boolean one
of the smallest doubles. They over-approximate, so a query always evaluates the condition too.
Indexes are created and dropped in the background, while appending and reading go on.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from rapport.core.errors import StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.store.field_keys import (
    PARTITION_BITS,
    TEXT_LENGTH,
    Key,
    Lookup,
    Range,
    RangeLookup,
    number_of_key,
)
from rapport.store.field_keys import AllOf as _Both
from rapport.store.postgres_connections import (
    PostgresConnection,
    PostgresConnections,
    translate_errors,
)
from rapport.store.postgres_rows import BYTES_SQL, CONTENT, events_of_row

_TEXTS = ("id", "source", "type", "subject")
_TRUE = "'5e-324'::float8"  # the key of TRUE, as a double

Steps = tuple[str | int, ...]


class FieldKey(msgspec.Struct, frozen=True):
    """One indexed expression: the texts or the numbers of a field."""

    name: str
    is_text: bool
    expression: sql.Composed | sql.SQL


def field_keys(log: int, steps: Steps) -> tuple[FieldKey, ...]:
    """The indexed expressions of a field; `steps` begin with `data`, `headers` or a column."""
    root = str(steps[0])
    if root in _TEXTS:
        return (_key(log, steps, True, sql.SQL("{}").format(sql.Identifier(root))),)
    if root == "headers":
        value = sql.SQL("(headers::jsonb ->> {})").format(sql.Literal(str(steps[1])))
        return (_key(log, steps, True, value),)
    if root != "data":
        return (_key(log, steps, False, sql.SQL("{}::float8").format(sql.Identifier(root))),)
    path = sql.Literal([str(step) for step in steps[1:]])
    value, text = (
        sql.SQL(f"(data::jsonb {sign} {{}}::text[])").format(path) for sign in ("#>", "#>>")
    )
    texts = sql.SQL("CASE jsonb_typeof({}) WHEN 'string' THEN {} END").format(value, text)
    numbers = sql.SQL(
        "CASE jsonb_typeof({0}) WHEN 'number' THEN {1}::float8 "
        f"WHEN 'boolean' THEN CASE {{1}} WHEN 'true' THEN {_TRUE} ELSE '0'::float8 END END"
    ).format(value, text)
    return (_key(log, steps, True, texts), _key(log, steps, False, numbers))


def _key(log: int, steps: Steps, is_text: bool, value: sql.Composed) -> FieldKey:
    if is_text:
        value = sql.SQL('(left({}, {}) COLLATE "C")').format(value, sql.Literal(TEXT_LENGTH))
    else:
        value = sql.SQL("({})").format(value)
    digest = hashlib.blake2b(repr(steps).encode(), digest_size=8).hexdigest()
    return FieldKey(f"field_{log}_{digest}_{'text' if is_text else 'number'}", is_text, value)


def create_index(log: int, key: FieldKey) -> sql.Composed:
    """Creates an index without blocking appends; not inside a transaction."""
    return sql.SQL(
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON events "
        "((position >> {bits}), {key}, position) WHERE log = {log} AND {key} IS NOT NULL"
    ).format(
        name=sql.Identifier(key.name),
        bits=sql.Literal(PARTITION_BITS),
        key=key.expression,
        log=sql.Literal(log),
    )


def lookup_sql(log: int, lookup: Lookup, steps_of: Mapping[str, Steps]) -> sql.Composed:
    """A condition that includes all matches of the lookup, in terms of the indexes."""
    if isinstance(lookup, RangeLookup):
        keys = {key.is_text: key for key in field_keys(log, steps_of[lookup.path])}
        parts = [_range_sql(keys, wanted, lookup.text) for wanted in lookup.ranges]
        return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))
    word = " AND " if isinstance(lookup, _Both) else " OR "
    parts = [lookup_sql(log, part, steps_of) for part in lookup.parts]
    return sql.SQL("({})").format(sql.SQL(word).join(parts))


def _range_sql(keys: Mapping[bool, FieldKey], wanted: Range, text: bool) -> sql.Composed:
    ends = [end for end in (wanted.low, wanted.high) if end is not None]
    is_text = isinstance(ends[0], str) if ends else text
    if is_text not in keys:
        return sql.SQL("{}").format(sql.SQL("FALSE"))  # a text column is never a number
    key = keys[is_text].expression
    return sql.SQL("({})").format(sql.SQL(" AND ").join(_tests(key, wanted)))


def _tests(key: sql.Composed | sql.SQL, wanted: Range) -> Sequence[sql.Composed]:
    if wanted.is_point and wanted.low is not None:
        return [sql.SQL("{} = {}").format(key, _value(wanted.low))]
    tests = [sql.SQL("{} IS NOT NULL").format(key)]
    if wanted.low is not None:
        tests.append(sql.SQL("{} >= {}").format(key, _value(wanted.low)))
    if wanted.high is not None:
        tests.append(sql.SQL("{} <= {}").format(key, _value(wanted.high)))
    return tests


def _value(key: Key) -> sql.Composable:
    if isinstance(key, str):
        return sql.SQL("{}::text").format(sql.Literal(key))
    return sql.SQL("{}::float8").format(sql.Literal(repr(number_of_key(key))))


_log = get_logger(__name__)

_AGAIN_SECONDS = 5.0
_FOUND = """
SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = 'events'::regclass AND starts_with(relname, %s)
"""

IndexedFields = Mapping[str, Steps]
"""From the name of a field in queries to its path."""


class PostgresIndexes:
    """The indexed fields of logs. Thread-safe; a background thread creates and drops indexes."""

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._guard = threading.Condition()
        self._wanted: dict[int, IndexedFields] = {}
        self._ready: dict[int, IndexedFields] = {}
        self._link: PostgresConnection | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def declare(self, log: int, fields: IndexedFields) -> None:
        """Sets the fields of a log to be indexed; other indexes are dropped."""
        with self._guard:
            if self._ready.get(log) == fields or self._wanted.get(log) == fields:
                return
            self._wanted[log] = dict(fields)
            self._guard.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="postgres-indexes", daemon=True
                )
                self._thread.start()

    def ready(self, log: int) -> IndexedFields:
        return self._ready.get(log, {})

    def wait(self, seconds: float) -> bool:
        """Waits until all declared indexes are complete; False after a time-out."""
        with self._guard:
            return self._guard.wait_for(lambda: not self._wanted, seconds)

    def stop(self) -> None:
        """Cancels the work in progress; the next start finishes it."""
        with self._guard:
            self._stopped = True
            self._guard.notify_all()
        while self._thread is not None and self._thread.is_alive():
            if (link := self._link) is not None:
                with suppress(psycopg.Error):  # a server that is gone ends the work without us
                    link.cancel_safe(timeout=2)
            self._thread.join(0.1)

    def _run(self) -> None:
        while task := self._next():
            try:
                self._make(*task)
            except StoreUnavailable as error:
                if not self._stopped:
                    _log.warning("fields not indexed yet", why=error.message)
                    with self._guard:
                        self._guard.wait_for(lambda: self._stopped, _AGAIN_SECONDS)

    def _next(self) -> tuple[int, IndexedFields] | None:
        with self._guard:
            self._guard.wait_for(lambda: self._wanted or self._stopped)
            return None if self._stopped else next(iter(self._wanted.items()))

    def _make(self, log: int, fields: IndexedFields) -> None:
        link = self._link = self._connections.open_apart()
        try:
            link.is_patient = True
            with translate_errors(link):
                link.execute("SET statement_timeout = 0")
                # Processes that start together must not drop each other's incomplete index as one
                # that a crash left behind.
                link.execute("SELECT pg_advisory_lock(hashtext(current_schema()), %s)", (log,))
                make_indexes(link, log, fields)
        finally:
            self._link = None
            link.close()
        with self._guard:
            self._ready[log] = fields
            if self._wanted.get(log) == fields:
                del self._wanted[log]
            self._guard.notify_all()


def make_indexes(link: PostgresConnection, log: int, fields: IndexedFields) -> None:
    """Creates missing indexes of fields and drops indexes of other fields."""
    wanted: dict[str, FieldKey] = {
        key.name: key for steps in fields.values() for key in field_keys(log, steps)
    }
    found = dict(link.execute(_FOUND, (f"field_{log}_",)).fetchall())
    for name, is_valid in found.items():
        if not is_valid or name not in wanted:
            link.execute(
                sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(name))
            )
    for name, key in wanted.items():
        if not found.get(name, False):
            link.execute(create_index(log, key))
    if wanted:
        link.execute("ANALYZE events")  # the planner has no statistics of the expressions before


READ_POSITIONS = 50_000
"""Positions that one call tests a condition without an index on: some 0.1 s."""
_MOST_PARTITIONS = 64
_PAGE_BYTES = 4 * 1024 * 1024

# Events that PostgreSQL cannot evaluate (packed events, XML) are always included. The bytes of the
# events before one decide whether it still belongs to this page; the first one always does.
_FIND = """
WITH found AS (
  (SELECT position FROM (
    SELECT position, received, time, source, id, type, subject, data, headers::jsonb AS headers
    FROM events WHERE log = {log} AND position > {after} AND position <= {until} AND {lookup}
  ) AS event WHERE source IS NOT NULL AND {condition} ORDER BY position LIMIT {limit})
  UNION
  (SELECT position FROM events WHERE log = {log} AND position > {after} AND position <= {until}
  AND (packed IS NOT NULL OR headers ILIKE '%%xml%%') ORDER BY position LIMIT {limit})
  ORDER BY position LIMIT {limit}
), sized AS (
  SELECT {content}, {bytes} AS bytes FROM found JOIN events USING (position) WHERE log = {log}
), counted AS (
  SELECT *, count(*) OVER () AS found, sum(bytes) OVER (ORDER BY position) - bytes AS before
  FROM sized
)
SELECT {content}, found FROM counted WHERE before < {page} ORDER BY position
"""


class EventQuery(msgspec.Struct, frozen=True):
    """A condition on the events of a log: SQL with `%s` placeholders, and the part of it that
    indexes answer.
    """

    log: int
    condition: str
    parameters: Sequence[Any] = ()
    lookup: Lookup | None = None
    steps_of: Mapping[str, Steps] = {}


def find_matching(
    link: PostgresConnection, wanted: EventQuery, *, after: int, until: int, limit: int
) -> tuple[list[StoredEvent], int]:
    """Events after a position that may fulfil the condition, and the position up to which there are
    no others. Some megabytes at most, but at least one event if one was found.
    """
    if wanted.lookup is None:
        return _find(link, wanted, after, min(until, after + READ_POSITIONS), limit)
    found: list[StoredEvent] = []
    for _partition in range(_MOST_PARTITIONS):
        end = (((after + 1) >> PARTITION_BITS) + 1 << PARTITION_BITS) - 1
        found, after = _find(link, wanted, after, min(until, end), limit)
        if found or after >= until:
            break
    return found, after


def fetch_events(
    link: PostgresConnection, log: int, positions: Collection[int]
) -> list[StoredEvent]:
    """The existing events at positions, in order."""
    ordered = sorted(positions)
    query = f"SELECT {CONTENT} FROM events WHERE log = %s AND position = ANY(%s) ORDER BY position"
    rows = link.execute(query, (log, ordered), binary=True).fetchall()
    wanted = frozenset(ordered)
    return [found for row in rows for found in events_of_row(row) if found.position in wanted]


def _find(
    link: PostgresConnection, wanted: EventQuery, after: int, until: int, limit: int
) -> tuple[list[StoredEvent], int]:
    rows = link.execute(
        _query(link, wanted, after, until, limit), wanted.parameters, binary=True, prepare=False
    ).fetchall()
    events = [
        stored for row in rows for stored in events_of_row(row[:-1]) if stored.position > after
    ]
    is_all = len(rows) < limit and (not rows or len(rows) == rows[0][-1])
    return events, until if is_all else rows[-1][0]


def _query(
    link: PostgresConnection, wanted: EventQuery, after: int, until: int, limit: int
) -> sql.Composed:
    """Numbers are literals, not parameters: the planner uses the index of a single log only when it
    sees the number of the log.
    """
    lookup = "TRUE"
    if wanted.lookup is not None:
        looked_up = lookup_sql(wanted.log, wanted.lookup, wanted.steps_of).as_string(link)
        lookup = f"(position >> {PARTITION_BITS}) = {after + 1 >> PARTITION_BITS} AND {looked_up}"
    return sql.SQL(_FIND).format(
        log=sql.Literal(wanted.log),
        after=sql.Literal(after),
        until=sql.Literal(until),
        limit=sql.Literal(limit),
        page=sql.Literal(_PAGE_BYTES),
        lookup=sql.SQL(lookup.replace("%", "%%")),  # a percent sign would ask for a parameter
        condition=sql.SQL(wanted.condition),
        content=sql.SQL(CONTENT),
        bytes=sql.SQL(BYTES_SQL),
    )
