"""Channels in memory, and in a directory: segment files, and SQLite for the rest. [CH-13]"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.dedupe import DEDUPE_WINDOW
from rapport.channel.log.writer import InlineWriter, StorePace, ThreadWriter
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.core.errors import StoreUnavailable
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory
from rapport.store.field_index import SqliteFieldIndex
from rapport.store.files import Files
from rapport.store.history_index import MemoryHistory, SqliteHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from rapport.store.segment_store import SEGMENT_BYTES, SegmentLogStore
from rapport.store.sqlite import SqliteRecordStore, open_or_recreate

_READERS = 4


def open_embedded(
    directory: Path,
    clock: Clock,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    dedupe_window: int = DEDUPE_WINDOW,
    files: Files | None = None,
) -> LoggedChannels:
    """Opens (or makes) a directory of channels; this process is then its only writer.

    Blocks while the last segment of each log is checked: at most `segment_bytes` per log after a
    crash, next to nothing after a clean close. Raises StoreUnavailable when another process writes
    it or the disk fails.
    """
    make_log_directory(directory)
    with ExitStack() as undo:
        log = SegmentLogStore(directory, files=files, segment_bytes=segment_bytes)
        undo.callback(log.close)
        records = SqliteRecordStore(directory / "records.sqlite")
        undo.callback(records.close)
        history = open_or_recreate(SqliteHistory, directory / "history.sqlite")
        undo.callback(history.close)
        fields = open_or_recreate(SqliteFieldIndex, directory / "fields.sqlite")
        undo.callback(fields.close)
        writer = ThreadWriter(name="channel-writer", lone=StorePace(clock))
        undo.callback(writer.stop)
        parts = LogParts(
            clock=clock,
            log=log,
            records=records,
            history=history,
            fields=fields,
            writer=writer,
            pool=ThreadPoolExecutor(_READERS, thread_name_prefix="channel-reader"),
            dedupe_window=dedupe_window,
        )
        channels = LoggedChannels(parts)
        undo.pop_all()
    return channels


def make_log_directory(directory: Path) -> None:
    """Makes the directory of the logs if there is none; raises StoreUnavailable."""
    try:
        make_private_directory(directory)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot make {directory}: {error.strerror}",
            code="store.disk_failed",
            hint="name another directory, or look at the rights of the one above it",
        ) from error


def open_memory(
    clock: Clock,
    *,
    dedupe_window: int = DEDUPE_WINDOW,
    max_data_bytes: int = MAX_DATA_BYTES,
) -> LoggedChannels:
    """Channels that live as long as the process; without threads."""
    parts = LogParts(
        clock=clock,
        log=MemoryLogStore(),
        records=MemoryRecordStore(),
        history=MemoryHistory(),
        writer=InlineWriter(),
        pool=None,
        dedupe_window=dedupe_window,
        max_data_bytes=max_data_bytes,
    )
    return LoggedChannels(parts)
