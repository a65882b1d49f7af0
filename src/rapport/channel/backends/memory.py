"""Channels in memory: tests, and channels that need not outlive the process. [CH-13]"""

from __future__ import annotations

from rapport.channel.checking import MAX_DATA_BYTES
from rapport.channel.logged.channels import LoggedChannels
from rapport.channel.logged.seen import DEDUPE_WINDOW
from rapport.channel.logged.shared import Parts
from rapport.channel.logged.writer import InlineWriter
from rapport.kernel.clock import Clock
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore


def open_memory(
    clock: Clock,
    *,
    dedupe_window: int = DEDUPE_WINDOW,
    max_data_bytes: int = MAX_DATA_BYTES,
) -> LoggedChannels:
    """Channels that live as long as the process. No threads: every call is done when its await
    returns.
    """
    parts = Parts(
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
