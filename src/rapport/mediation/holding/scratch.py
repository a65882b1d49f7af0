"""Records that can be made anew from the log: in memory while they are few, beyond that in a file
that nobody else sees. [ME-11]
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.store.base import Change, Put, RecordStore
from rapport.store.memory import MemoryRecordStore

MOST_IN_MEMORY = 10_000
_PAGE = 1_000


class Scratch:
    """Tables of key to bytes, keys in order; holds memory for `most` records, however many there
    are. Beyond that a look costs some microseconds. The file has no name: it is gone when this is
    closed or forgotten, or the process ends, also by a kill.
    """

    def __init__(self, most: int = MOST_IN_MEMORY) -> None:
        self._most, self._count = most, 0
        self._tables: dict[str, None] = {}
        self._store: RecordStore = MemoryRecordStore()
        self.is_in_file = False
        """Whether there are, or were, too many for memory."""

    def get(self, table: str, key: str) -> bytes | None:
        """The value, or None."""
        return self._store.get(table, key)

    def apply(self, changes: Sequence[Change]) -> None:
        """All changes, in order; who deletes knows that it is there."""
        if not changes:
            return
        self._tables |= dict.fromkeys(each.table for each in changes)
        self._count += sum(1 if isinstance(each, Put) else -1 for each in changes)
        if self._count > self._most and not self.is_in_file:
            self._move_to_file()
        self._store.apply(changes)

    def page(self, table: str, after: str, limit: int = _PAGE) -> list[tuple[str, bytes]]:
        """The next records after a key, in order; may be called from another thread."""
        return self._store.find(table, after=after, limit=limit)

    def close(self) -> None:
        """Forgets everything."""
        self._store.close()

    def _move_to_file(self) -> None:
        # Here, since who has little to hold needs no database.
        from rapport.store.sqlite import SqliteRecordStore

        in_memory, self._store = self._store, SqliteRecordStore(None)
        self.is_in_file = True
        for table in self._tables:
            after = ""
            while found := in_memory.find(table, after=after, limit=_PAGE):
                self._store.apply([Put(table, key, value) for key, value in found])
                after = found[-1][0]
        in_memory.close()
