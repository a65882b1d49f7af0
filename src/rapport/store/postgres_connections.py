"""Connections to one PostgreSQL database, its schema, and errors as Rapport's. [CH-13]

Connections are few and reused, and no call waits for ever. psycopg's exceptions end here: callers
get StoreUnavailable with a hint, or InvalidInput for values that PostgreSQL cannot store. All
tables stand in one schema, so that several sites can share a database; the rest of the code names
tables without the schema, which is the session's `search_path`.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rapport.core.errors import InvalidInput, RapportError, StoreUnavailable, Unsupported
from rapport.kernel.telemetry import get_logger
from rapport.store.base import closed_error

_log = get_logger(__name__)

SCHEMA = "rapport"
"""Default schema of the database."""
OLDEST_SERVER = 14
"""Oldest supported major version of PostgreSQL."""

_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}\Z")

# One row per event. `block` is the first position and `size` the number of events that were
# appended together: a block is read as it was written. `data` and `headers` are JSON texts, kept to
# the byte. An event whose JSON PostgreSQL does not accept has only its packed form. A block that
# does not hold events is one row at its last position, with `source` NULL and its bytes in
# `packed`. `events_undecided` finds the rows whose payload PostgreSQL cannot evaluate.
# Conditions use the two functions (channel/query/postgres_sql.py). Here `data` is known to be JSON,
# so they are plain SQL that the planner can inline.
_TABLES = """
CREATE TABLE logs (
  number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  first bigint NOT NULL DEFAULT 1,
  last bigint NOT NULL DEFAULT 0,
  bytes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE events (
  log integer NOT NULL,
  position bigint NOT NULL,
  block bigint NOT NULL,
  size integer NOT NULL,
  received bigint NOT NULL,
  time bigint,
  source text COLLATE "C",
  id text COLLATE "C",
  type text COLLATE "C",
  subject text COLLATE "C",
  data text COLLATE "C",
  headers text COLLATE "C",
  packed bytea,
  PRIMARY KEY (log, position)
);
CREATE INDEX events_by_id ON events (id);
CREATE INDEX events_undecided ON events (log, position)
WHERE packed IS NOT NULL OR headers ILIKE '%xml%';

CREATE FUNCTION rapport_payload(data text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT data::jsonb $$;
CREATE FUNCTION rapport_element(list jsonb, place integer) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE jsonb_typeof(list) WHEN 'array' THEN list -> place END
$$;

CREATE TABLE records (
  in_table text COLLATE "C" NOT NULL,
  key bytea NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (in_table, key)
);
"""
_STEPS = (_TABLES,)
"""The n-th step leads from version n to n + 1; steps are only ever added."""
VERSION = len(_STEPS)


def check_schema_name(name: str) -> None:
    """Raises InvalidInput unless the name can be a schema's without quoting."""
    if not _NAME.match(name):
        raise InvalidInput(
            f"{name[:60]!r} cannot be the name of a schema",
            code="store.bad_schema",
            hint="1 to 48 of a-z, 0-9 and '_', not beginning with a digit or with pg_",
        )


def prepare_schema(connection: psycopg.Connection[tuple[Any, ...]], schema: str) -> None:
    """Creates or upgrades the tables; does nothing when they are up to date.

    Processes that start together wait for each other. Raises Unsupported for a server that is too
    old, StoreUnavailable for tables of a newer version.
    """
    _check_server(connection)
    if _version(connection) == VERSION:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (schema,))
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        version = _version(connection)
        if version > VERSION:
            raise StoreUnavailable(
                f"the schema {schema!r} has version {version}; this Rapport knows {VERSION}",
                code="store.newer_schema",
                hint="a newer Rapport made it: use that one, or another schema",
            )
        if version == 0:
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version integer)")
            connection.execute("INSERT INTO schema_version VALUES (0)")
        for step in _STEPS[version:]:
            connection.execute(step)
        connection.execute("UPDATE schema_version SET version = %s", (VERSION,))


def _version(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    found = connection.execute("SELECT to_regclass('schema_version') IS NOT NULL").fetchone()
    if found is None or not found[0]:
        return 0
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    return 0 if row is None else int(row[0])


def _check_server(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    query = "SELECT current_setting('server_encoding'), current_setting('fsync')"
    encoding, fsync = connection.execute(query).fetchone() or ("", "")
    if encoding != "UTF8":
        raise Unsupported(
            f"a database with the encoding {encoding}",
            "the PostgreSQL store",
            hint="make one with: createdb --encoding=UTF8 --template=template0 NAME",
        )
    if connection.info.server_version < OLDEST_SERVER * 10_000:
        raise Unsupported(
            f"PostgreSQL {connection.info.server_version // 10_000}",
            "the PostgreSQL store",
            hint=f"use version {OLDEST_SERVER} or newer",
        )
    if fsync != "on":
        _log.warning("PostgreSQL runs with fsync off: a power cut may lose what was acknowledged")


T = TypeVar("T")

CONNECT_SECONDS = 5
"""Time-out of a new connection."""
STATEMENT_SECONDS = 30
"""Time-out of one statement, including waiting for locks."""
CONNECTIONS = 4
"""Most connections of one store; opened when needed."""

_GRACE_SECONDS = 5
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.005
_SESSION = """
SELECT set_config('search_path', %s, false), set_config('statement_timeout', %s, false),
  set_config('application_name', 'rapport', false),
  set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit')
    IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with a time-out for a server that does not answer."""

    is_patient = False
    """Whether it waits without a time-out, as for the creation of an index."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        if timeout is not None or self.is_patient:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, STATEMENT_SECONDS + _GRACE_SECONDS)
        except errors._WaitTimeout as error:
            self.close()
            raise psycopg.OperationalError("the server does not answer") from error


class ConnectionLost(StoreUnavailable):
    """The connection broke: the last change may have been committed or not."""

    code = "store.connection_lost"


class TransactionConflict(StoreUnavailable):
    """A deadlock or serialization failure: this change was rolled back."""

    code = "store.deadlocked"


class PostgresConnections:
    """Up to `size` connections to the tables of one schema. Thread-safe.

    Opening creates the tables; raises StoreUnavailable when the server cannot be reached.
    """

    def __init__(self, dsn: str, *, schema: str = SCHEMA, size: int = CONNECTIONS) -> None:
        check_schema_name(schema)
        self.schema = schema
        self._dsn = _with_limits(dsn)
        self._free = threading.BoundedSemaphore(size)
        self._guard = threading.Lock()
        self._idle: list[PostgresConnection] = []
        self._closed = False
        self._ended = threading.Event()
        try:
            with self.use() as connection:
                prepare_schema(connection, schema)
        except RapportError:
            self.close()
            raise

    @contextmanager
    def use(self) -> Iterator[PostgresConnection]:
        """A connection in autocommit mode for this thread; waits while all are in use.

        Raises ConnectionLost when it breaks, StoreUnavailable and InvalidInput for other errors of
        PostgreSQL.
        """
        if not self._free.acquire(timeout=STATEMENT_SECONDS):
            raise StoreUnavailable("all connections to PostgreSQL are busy", code="store.busy")
        try:
            connection = self._take()
            try:
                with translate_errors(connection):
                    yield connection
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    def run(self, work: Callable[[PostgresConnection], T]) -> T:
        """Runs idempotent work: a broken connection is replaced once, and a conflicting transaction
        repeated, each time after a longer pause.
        """
        for attempt in range(_ATTEMPTS):
            try:
                with self.use() as connection:
                    return work(connection)
            except ConnectionLost:
                if attempt:
                    raise
            except TransactionConflict:
                # Random and growing: an immediate retry would meet the same transactions again.
                self._ended.wait(secrets.randbelow(1 + attempt) * _PAUSE_SECONDS)
        with self.use() as connection:
            return work(connection)

    def open_apart(self) -> PostgresConnection:
        """A connection beyond the limit of the pool; the caller closes it."""
        self._check_open()
        try:
            connection = PostgresConnection.connect(self._dsn, autocommit=True)
        except psycopg.Error as error:
            raise unreachable(error) from error
        try:
            with translate_errors(connection):
                connection.execute(_SESSION, (self.schema, f"{STATEMENT_SECONDS}s"))
        except RapportError:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Ends; a second call is no error."""
        with self._guard:
            self._closed = True
        self._ended.set()
        self._drop_idle()

    def _take(self) -> PostgresConnection:
        with self._guard:
            self._check_open()
            if self._idle:
                return self._idle.pop()
        return self.open_apart()

    def _give_back(self, connection: PostgresConnection) -> None:
        broken = connection.closed or connection.info.transaction_status.name != "IDLE"
        with self._guard:
            if not broken and not self._closed:
                self._idle.append(connection)
                return
        connection.close()
        if broken:
            self._drop_idle()  # the others are probably broken too

    def _drop_idle(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()


@contextmanager
def translate_errors(connection: PostgresConnection) -> Iterator[None]:
    """Raises psycopg's errors as Rapport's."""
    try:
        yield
    except psycopg.Error as error:
        if connection.closed:
            raise ConnectionLost(
                f"the connection to PostgreSQL broke: {_first_line(error)}",
                hint="the next call opens it again; is the server running?",
            ) from error
        raise _translate(error) from error


def _translate(error: psycopg.Error) -> RapportError:
    shown = _first_line(error)
    match error:
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return TransactionConflict(
                f"PostgreSQL rolled a change back: {shown}", hint="try again"
            )
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return StoreUnavailable(
                f"PostgreSQL took too long: {shown}",
                code="store.timed_out",
                hint="look for long transactions in pg_stat_activity",
            )
        case errors.DiskFull():
            return StoreUnavailable(
                f"PostgreSQL has no room: {shown}", code="store.disk_full", hint="free some space"
            )
        case errors.InsufficientPrivilege():
            return StoreUnavailable(
                f"PostgreSQL does not permit it: {shown}",
                code="store.not_permitted",
                hint="the role needs CREATE in the database, or its own schema",
            )
        case psycopg.DataError():
            return InvalidInput(f"PostgreSQL cannot store this: {shown}", code="store.bad_record")
        case _:
            return StoreUnavailable(f"PostgreSQL refuses: {shown}", code="store.unavailable")


def unreachable(error: psycopg.Error) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot reach PostgreSQL: {_first_line(error)}",
        code="store.unreachable",
        hint="is the server running, and does the address name the right host, user and database?",
    )


def _with_limits(dsn: str) -> str:
    """The address with time-outs, unless it has its own, and UTF-8."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise _bad_address(f": {_first_line(error)}") from None
    limits: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 30_000}
    return make_conninfo("", **{**limits, **given, "client_encoding": "utf8"})


def _bad_address(reason: str) -> InvalidInput:
    return InvalidInput(
        f"this is no address of PostgreSQL{reason}",
        code="store.bad_address",
        hint="postgresql://user@host/database, or host=... dbname=...",
    )


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def server_version(dsn: str, *, seconds: int) -> str:
    """The version of the server, without changing anything there; raises InvalidInput for a wrong
    address, StoreUnavailable when no host of it answers in time. [UX-3]
    """
    try:
        limited = make_conninfo(dsn, connect_timeout=seconds)
    except psycopg.ProgrammingError:
        raise _bad_address("") from None  # without psycopg's words, which may show the password
    try:
        connection = PostgresConnection.connect(limited, autocommit=True)
    except psycopg.Error as error:
        raise unreachable(error) from error
    with connection, translate_errors(connection):
        row = connection.execute("SHOW server_version").fetchone()
        return str(row[0]) if row else ""
