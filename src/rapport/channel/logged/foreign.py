"""A log that other processes write too: how far it reaches, and what they wrote. [CH-6, CH-13]"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

from rapport.store.base import Block, LogStore, SharedLogStore

ATTEMPTS = 200
"""How often an append is planned anew before it gives up: each time, somebody else got on."""
_READ_RECORDS = 50_000


def as_shared(log: LogStore) -> SharedLogStore | None:
    """The store as one that several processes may write; None when it is not."""
    return cast(SharedLogStore, log) if hasattr(log, "append_after") else None


def shared_log_of(log: LogStore, channel: str) -> SharedLogStore | None:
    """The store, when several processes may write the log of this channel in it; else None."""
    home = log.store_of(channel) if hasattr(log, "store_of") else log
    return as_shared(log) if hasattr(home, "append_after") else None


class Horizon:
    """The last position that readers of a channel see. The writing thread moves it, and so does
    the thread that hears what other processes append.

    While this process writes, what is heard is held back: it may be our own append, which readers
    shall find in memory.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self._guard = threading.Lock()
        self._heard = last
        self._is_writing = False

    def begin(self) -> None:
        """This process begins to append."""
        with self._guard:
            self._is_writing = True

    def end(self, last: int) -> bool:
        """The append is over, and the log is known up to `last`; True when readers see more."""
        with self._guard:
            self._is_writing = False
            return self._move(max(last, self._heard))

    def hear(self, last: int) -> bool:
        """The log was heard to reach `last`; True when readers see more."""
        with self._guard:
            self._heard = max(self._heard, last)
            return not self._is_writing and self._move(self._heard)

    def _move(self, last: int) -> bool:
        is_further = last > self.last
        self.last = max(last, self.last)
        return is_further


def read_on(log: LogStore, name: str, known: int, take_in: Callable[[Block], None]) -> int:
    """Hands over every block after `known`, in order; returns the position reached."""
    last = log.last_position(name)
    while known < last:
        blocks = log.read_after(name, known, max_records=_READ_RECORDS)
        for block in blocks:
            take_in(block)
        known = blocks[-1].last if blocks else last
    return known
