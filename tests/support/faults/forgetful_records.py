"""Records that share the fate of a forgetful disk: the promise of SQLite, without SQLite. [CH-13]

SQLite (WAL, synchronous=FULL) promises that a change is there whole or not at all, and is there
when the call has returned. This store keeps exactly that and nothing more: a change that was under
way when the power went is there or not, by chance. Its files are SQLite's own; that SQLite keeps
its promise on what it has synced is checked in tests/recovery/test_sqlite_power.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rapport.core.errors import StoreUnavailable
from rapport.kernel.clock import Chance
from rapport.store.base import Change, Delete, Put
from rapport.store.files import disk_error
from rapport.store.memory import MemoryRecordStore
from support.faults.disk import ForgetfulDisk


class ForgetfulRecords:
    """A RecordStore on the power of a ForgetfulDisk: each change takes two of its steps."""

    def __init__(self, disk: ForgetfulDisk) -> None:
        self._disk = disk
        self._guard = threading.Lock()
        self._kept = MemoryRecordStore()
        self._under_way: list[Change] = []
        self._is_dark = False

    def get(self, table: str, key: str) -> bytes | None:
        """See RecordStore."""
        return self._kept.get(table, key)

    def put(self, table: str, key: str, value: bytes) -> None:
        """See RecordStore."""
        self.apply((Put(table, key, value),))

    def delete(self, table: str, key: str) -> None:
        """See RecordStore."""
        self.apply((Delete(table, key),))

    def apply(self, changes: Sequence[Change]) -> None:
        """See RecordStore."""
        with self._guard:
            if self._is_dark:
                raise StoreUnavailable("the power is off", code="store.disk_failed")
            try:
                self._disk.step()
                self._under_way = list(changes)
                self._disk.step()
            except OSError as error:
                self._is_dark = True
                raise disk_error("the records cannot be changed", error) from error
            self._under_way = []
            self._kept.apply(changes)

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See RecordStore."""
        return self._kept.find(table, prefix=prefix, after=after, limit=limit)

    def close(self) -> None:
        """See RecordStore; the records stay for the next start."""

    def cut_power(self, chance: Chance) -> None:
        """What was under way is there or not; the power comes back."""
        with self._guard:
            if self._under_way and chance.randint(0, 1):
                self._kept.apply(self._under_way)
            self._under_way, self._is_dark = [], False
