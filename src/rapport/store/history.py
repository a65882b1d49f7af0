"""The history index: in which channels, at which positions, an event id may stand. [CH-4]

Fed from the log behind the writers' backs, with the position fed so far in the same transaction: it
may be late, misses nothing it was fed, and can be deleted at any time. Ids are not in it but their
keys (`history_runs.py`): whoever asks looks whether the event is really there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol


class HistoryIndex(Protocol):
    """(log, record id) -> position."""

    needs_feeding: bool
    """False when the log itself is the index: then `feed` and `prune` need not be called."""

    def fed(self, log: str) -> int:
        """The position up to which the log has been fed; 0 for a new one."""

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """Takes in blocks of (first position, ids) and remembers that `fed` is reached; all or
        none.
        """

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Takes blocks of (first position, ids) off again, because the log lets go of them and of
        what is before.
        """

    def forget(self, log: str) -> None:
        """Drops everything of a log, to be fed again from the start."""

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """Every (log, position) at which the id may stand, sorted; once in a thousand million
        entries another one stands there.
        """

    def close(self) -> None:
        """Ends; a second call is no error."""


class MemoryHistory:
    """A HistoryIndex that forgets at the end of the process."""

    needs_feeding = True

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._places: dict[str, list[tuple[str, int]]] = {}
        self._fed: dict[str, int] = {}

    def fed(self, log: str) -> int:
        """See HistoryIndex."""
        return self._fed.get(log, 0)

    def feed(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]], fed: int) -> None:
        """See HistoryIndex."""
        with self._guard:
            for first, ids in blocks:
                for number, record_id in enumerate(ids):
                    places = self._places.setdefault(record_id, [])
                    if (log, first + number) not in places:
                        places.append((log, first + number))
            self._fed[log] = fed

    def prune(self, log: str, blocks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """See HistoryIndex."""
        with self._guard:
            for first, ids in blocks:
                for number, record_id in enumerate(ids):
                    places = self._places.get(record_id, [])
                    if (log, first + number) in places:
                        places.remove((log, first + number))
                    if not places:
                        self._places.pop(record_id, None)

    def forget(self, log: str) -> None:
        """See HistoryIndex."""
        with self._guard:
            for places in self._places.values():
                places[:] = [place for place in places if place[0] != log]
            self._fed.pop(log, None)

    def find(self, record_id: str) -> list[tuple[str, int]]:
        """See HistoryIndex."""
        with self._guard:
            return sorted(self._places.get(record_id, []))

    def close(self) -> None:
        """See HistoryIndex."""
