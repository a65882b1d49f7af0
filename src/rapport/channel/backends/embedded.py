"""Channels in a directory: segment files for the log, SQLite for cursors, records and the history
index. [CH-13]
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rapport.channel.checking import MAX_DATA_BYTES
from rapport.channel.logged import LoggedChannels
from rapport.channel.seen import DEDUPE_WINDOW
from rapport.channel.shared import Parts
from rapport.channel.writer import QUEUE_BYTES, ThreadWriter
from rapport.core.errors import RapportError, StoreUnavailable
from rapport.kernel.clock import Clock
from rapport.store.files import Files
from rapport.store.history import SqliteHistory
from rapport.store.segments import SEGMENT_BYTES, SegmentLogStore
from rapport.store.sqlite import SqliteRecordStore

_READERS = 4


def open_embedded(
    directory: Path,
    clock: Clock,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    dedupe_window: int = DEDUPE_WINDOW,
    max_data_bytes: int = MAX_DATA_BYTES,
    queue_bytes: int = QUEUE_BYTES,
    files: Files | None = None,
) -> LoggedChannels:
    """Opens (or makes) a directory of channels; this process is then its only writer.

    Blocks while the last segment of each log is checked: at most `segment_bytes` per log after a
    crash, next to nothing after a clean close. Raises StoreUnavailable when another process writes
    it or the disk refuses.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot make {directory}: {error.strerror}") from error
    log = SegmentLogStore(directory, files=files, segment_bytes=segment_bytes)
    try:
        records = SqliteRecordStore(directory / "records.sqlite")
        history = SqliteHistory(directory / "history.sqlite")
    except RapportError:
        log.close()
        raise
    parts = Parts(
        clock=clock,
        log=log,
        records=records,
        history=history,
        writer=ThreadWriter(name="channel-writer", queue_bytes=queue_bytes),
        pool=ThreadPoolExecutor(_READERS, thread_name_prefix="channel-reader"),
        dedupe_window=dedupe_window,
        max_data_bytes=max_data_bytes,
    )
    return LoggedChannels(parts)
