"""Channels in a PostgreSQL database, which several processes may share; it evaluates conditions
itself. [CH-4, CH-13]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial

from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.dedupe import DEDUPE_WINDOW
from rapport.channel.log.writer import QUEUE_BYTES, ThreadWriter
from rapport.channel.query.index_plan import IndexMatches, plan_lookup
from rapport.channel.query.parser import TokenCursor, parse_field
from rapport.channel.query.postgres_sql import to_sql
from rapport.channel.query.query_kinds import Query
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.postgres_connections import SCHEMA
from rapport.store.postgres_log import PostgresHistory, PostgresLogStore
from rapport.store.postgres_records import PostgresRecordStore

_log = get_logger(__name__)

_NEAR = 256
"""So few events are rather read: they are mostly in memory, where trying them costs less."""
_READERS = 4


class PostgresFinder:
    """See Finder. `indexed` returns the indexed fields of a channel: their indexes are made in the
    background from the first query on, and used when complete.
    """

    def __init__(self, store: PostgresLogStore, indexed: Callable[[str], Sequence[str]]) -> None:
        self._store, self._indexed = store, indexed

    def find(
        self,
        log: str,
        query: Query,
        *,
        after: int,
        until: int,
        limit: int,
        read: int | None = None,
    ) -> IndexMatches | None:
        """See Finder; reads the log where PostgreSQL refuses to evaluate. Events come with their
        positions, so all of them are read.
        """
        condition = to_sql(query)
        if condition.text == "TRUE":
            return None
        ready = self._store.index_fields(log, _steps(tuple(self._indexed(log))))
        if until - after <= _NEAR:
            return IndexMatches(None, until)
        try:
            events, through = self._store.find_matching(
                log,
                condition.text,
                condition.parameters,
                after=after,
                until=until,
                limit=limit,
                lookup=plan_lookup(query.condition, ready),
            )
        except InvalidInput as error:
            _log.warning("condition not evaluated by PostgreSQL", log=log, why=error.message)
            return None
        return IndexMatches(events, through)

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        return self._store.fetch(log, positions)


@lru_cache(maxsize=64)
def _steps(paths: tuple[str, ...]) -> dict[str, tuple[str | int, ...]]:
    return {path: parse_field(TokenCursor(path)).path for path in paths}


def open_postgres(
    dsn: str,
    clock: Clock,
    *,
    schema: str = SCHEMA,
    dedupe_window: int = DEDUPE_WINDOW,
    max_data_bytes: int = MAX_DATA_BYTES,
    queue_bytes: int = QUEUE_BYTES,
) -> LoggedChannels:
    """Opens the channels in one schema of a database; makes its tables on first use.

    Keeps at most 5 connections for the log, 4 for the records and one to listen. Raises
    StoreUnavailable when the server cannot be reached, Unsupported for an unusable database.
    """
    with ExitStack() as undo:
        log = PostgresLogStore(dsn, schema=schema, size=_READERS + 1)
        undo.callback(log.close)
        records = PostgresRecordStore(dsn, schema=schema, size=_READERS)
        undo.callback(records.close)
        writer = ThreadWriter(name="channel-writer", queue_bytes=queue_bytes)
        undo.callback(writer.stop)
        parts = LogParts(
            clock=clock,
            log=log,
            records=records,
            history=PostgresHistory(log),
            writer=writer,
            finder=partial(PostgresFinder, log),
            pool=ThreadPoolExecutor(_READERS, thread_name_prefix="channel-reader"),
            dedupe_window=dedupe_window,
            max_data_bytes=max_data_bytes,
        )
        channels = LoggedChannels(parts)
        undo.pop_all()
    return channels
