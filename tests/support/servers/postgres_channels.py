"""Channels in one schema of a PostgreSQL database, without a site."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from rapport.channel.backends.postgres import PostgresFinder
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.dedupe import DEDUPE_WINDOW
from rapport.channel.log.writer import QUEUE_BYTES, ThreadWriter
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.kernel.clock import Clock
from rapport.store.postgres_connections import SCHEMA
from rapport.store.postgres_log import PostgresHistory, PostgresLogStore
from rapport.store.postgres_records import PostgresRecordStore

_READERS = 4


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
