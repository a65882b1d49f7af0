"""The indexes on declared fields of a log: made and dropped in the background. [CH-4]"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress

import psycopg
from psycopg import sql

from rapport.core.errors import StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.postgres.connections import Link, PostgresConnections, translated
from rapport.store.postgres.field_keys import FieldKey, Steps, create_index, field_keys

_log = get_logger(__name__)

_AGAIN_SECONDS = 5.0
_FOUND = """
SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = 'events'::regclass AND starts_with(relname, %s)
"""

Fields = Mapping[str, Steps]
"""The name of a field in queries, and its path."""


class PostgresIndexes:
    """Which fields of which log are indexed by now. Any thread may call; one of its own does the
    work, for as long as it takes, while appending and reading go on.
    """

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._guard = threading.Condition()
        self._wanted: dict[int, Fields] = {}
        self._ready: dict[int, Fields] = {}
        self._link: Link | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def declare(self, log: int, fields: Fields) -> None:
        """Says which fields of a log are to be indexed; others are dropped."""
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

    def ready(self, log: int) -> Fields:
        """The fields that can be looked up."""
        return self._ready.get(log, {})

    def wait(self, seconds: float) -> bool:
        """Returns when all that was declared is made (True), or after a time."""
        with self._guard:
            return self._guard.wait_for(lambda: not self._wanted, seconds)

    def stop(self) -> None:
        """Gives up what is under way: the next start finishes it."""
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

    def _next(self) -> tuple[int, Fields] | None:
        with self._guard:
            self._guard.wait_for(lambda: self._wanted or self._stopped)
            return None if self._stopped else next(iter(self._wanted.items()))

    def _make(self, log: int, fields: Fields) -> None:
        link = self._link = self._connections.open_apart()
        try:
            link.is_patient = True
            with translated(link):
                link.execute("SET statement_timeout = 0")
                # Processes that start together must not take each other's half-made index for one
                # that was left behind.
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


def make_indexes(link: Link, log: int, fields: Fields) -> None:
    """Makes the indexes of fields that lack one and drops what belongs to no field any more."""
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
        link.execute("ANALYZE events")  # the planner knows nothing of an expression before
