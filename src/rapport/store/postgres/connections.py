"""Connections to one PostgreSQL database: few, reused, never waited for without end. [CH-13]

psycopg's own exceptions end here: what a caller sees is StoreUnavailable with a hint, or
InvalidInput for values that PostgreSQL cannot keep.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rapport.core.errors import InvalidInput, RapportError, StoreUnavailable
from rapport.store.postgres.schema import SCHEMA, check_schema_name, prepare_schema

T = TypeVar("T")

CONNECT_SECONDS = 5
"""Longest time until the server has answered a new connection."""
STATEMENT_SECONDS = 30
"""Longest time that the server works on one statement, waiting for others included."""
CONNECTIONS = 4
"""Most connections of one store; they are opened when needed."""

_GRACE_SECONDS = 5
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.005
_SESSION = """
SELECT set_config('search_path', %s, false), set_config('statement_timeout', %s, false),
  set_config('application_name', 'rapport', false),
  set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit')
    IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a server that is there but does not answer."""

    is_patient = False
    """Whether it waits for as long as it takes, as for the making of an index."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """See psycopg; without a time-out of the caller's, ours holds."""
        if timeout is not None or self.is_patient:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, STATEMENT_SECONDS + _GRACE_SECONDS)
        except errors._WaitTimeout as error:
            self.close()
            raise psycopg.OperationalError("the server does not answer") from error


class ConnectionLost(StoreUnavailable):
    """The connection broke: whether the last change was done is not known."""

    code = "store.connection_lost"


class Deadlocked(StoreUnavailable):
    """Two changes waited for each other; this one was taken back."""

    code = "store.deadlocked"


class PostgresConnections:
    """Up to `size` connections with the tables of one schema in view. Any thread may call.

    Opening makes the tables when they are not there yet; raises StoreUnavailable when the server
    cannot be reached.
    """

    def __init__(self, dsn: str, *, schema: str = SCHEMA, size: int = CONNECTIONS) -> None:
        check_schema_name(schema)
        self.schema = schema
        self._dsn = _with_limits(dsn)
        self._free = threading.BoundedSemaphore(size)
        self._guard = threading.Lock()
        self._idle: list[Link] = []
        self._closed = False
        self._ended = threading.Event()
        try:
            with self.use() as connection:
                prepare_schema(connection, schema)
        except RapportError:
            self.close()
            raise

    @contextmanager
    def use(self) -> Iterator[Link]:
        """A connection in autocommit mode, for this thread alone; waits while all are in use.

        Raises ConnectionLost when it breaks meanwhile, StoreUnavailable and InvalidInput for what
        else PostgreSQL says.
        """
        if not self._free.acquire(timeout=STATEMENT_SECONDS):
            raise StoreUnavailable("all connections to PostgreSQL are busy", code="store.busy")
        try:
            connection = self._take()
            try:
                with translated(connection):
                    yield connection
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    def run(self, work: Callable[[Link], T]) -> T:
        """Does work that may be done twice: a connection found broken is replaced once, and who
        stood in another's way tries again, each time after a longer pause.
        """
        for attempt in range(_ATTEMPTS):
            try:
                with self.use() as connection:
                    return work(connection)
            except ConnectionLost:
                if attempt:
                    raise
            except Deadlocked:
                # The longer the more they are: who comes back at once meets the same others.
                self._ended.wait(secrets.randbelow(1 + attempt) * _PAUSE_SECONDS)
        with self.use() as connection:
            return work(connection)

    def open_apart(self) -> Link:
        """A connection outside the number of the others; the caller closes it."""
        self._check_open()
        try:
            connection = Link.connect(self._dsn, autocommit=True)
        except psycopg.Error as error:
            raise unreachable(error) from error
        try:
            with translated(connection):
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

    def _take(self) -> Link:
        with self._guard:
            self._check_open()
            if self._idle:
                return self._idle.pop()
        return self.open_apart()

    def _give_back(self, connection: Link) -> None:
        broken = connection.closed or connection.info.transaction_status.name != "IDLE"
        with self._guard:
            if not broken and not self._closed:
                self._idle.append(connection)
                return
        connection.close()
        if broken:
            self._drop_idle()  # what broke one connection mostly broke all

    def _drop_idle(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", code="store.closed")


@contextmanager
def translated(connection: Link) -> Iterator[None]:
    """Turns what psycopg raises into Rapport's errors."""
    try:
        yield
    except psycopg.Error as error:
        if connection.closed:
            raise ConnectionLost(
                f"the connection to PostgreSQL broke: {_first_line(error)}",
                hint="it is opened again with the next call; is the server running?",
            ) from error
        raise _translate(error) from error


def _translate(error: psycopg.Error) -> RapportError:
    told = _first_line(error)
    match error:
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return Deadlocked(f"PostgreSQL took a change back: {told}", hint="try again")
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return StoreUnavailable(
                f"PostgreSQL took too long: {told}",
                code="store.timed_out",
                hint="look for long transactions in pg_stat_activity",
            )
        case errors.DiskFull():
            return StoreUnavailable(
                f"PostgreSQL has no room: {told}", code="store.disk_full", hint="free some space"
            )
        case errors.InsufficientPrivilege():
            return StoreUnavailable(
                f"PostgreSQL does not permit it: {told}",
                code="store.not_permitted",
                hint="the role needs CREATE in the database, or its own schema",
            )
        case psycopg.DataError():
            return InvalidInput(f"PostgreSQL cannot keep this: {told}", code="store.bad_record")
        case _:
            return StoreUnavailable(f"PostgreSQL refuses: {told}", code="store.unavailable")


def unreachable(error: psycopg.Error) -> StoreUnavailable:
    """The error for a server that could not be connected to."""
    return StoreUnavailable(
        f"cannot reach PostgreSQL: {_first_line(error)}",
        code="store.unreachable",
        hint="is the server running, and does the address name the right host, user and database?",
    )


def _with_limits(dsn: str) -> str:
    """The address with a time-out and UTF-8, unless it says something about the time-out itself."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise InvalidInput(
            f"this is no address of PostgreSQL: {_first_line(error)}",
            code="store.bad_address",
            hint="postgresql://user@host/database, or host=... dbname=...",
        ) from None
    limits: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 30_000}
    return make_conninfo("", **{**limits, **given, "client_encoding": "utf8"})


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
