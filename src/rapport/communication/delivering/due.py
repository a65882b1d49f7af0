"""When the engine has to look at a message or a member again: records ordered by time. [CO-8, CO-9]

Unlike the kernel's timers these are not held in memory: a hundred thousand people may be held over
night. An entry is written in the transaction that changes what it is about.
"""

from __future__ import annotations

import msgspec

from rapport.communication.delivering.transaction import Transaction

TABLE = "communication.due"
_BETWEEN = "\x1f"


class DueEntry(msgspec.Struct, frozen=True):
    """A key (of a case or a member) and when it is due."""

    due_ms: int
    key: str


class Due:
    """All entries. Setting costs one record; looking costs what is found."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.next_ms = 0
        """When the first is due, or earlier; 0 = there is none."""

    def move(self, key: str, before_ms: int, due_ms: int) -> None:
        """Due at another time than before; 0 = not at all."""
        if before_ms == due_ms:
            return
        if before_ms:
            self._transaction.delete(TABLE, _record_key(before_ms, key))
        if due_ms:
            self.set(key, due_ms)

    def set(self, key: str, due_ms: int) -> None:
        """Due then too, whatever else was said."""
        self._transaction.put(TABLE, _record_key(due_ms, key), b"")
        self.next_ms = min(self.next_ms, due_ms) if self.next_ms else due_ms

    def take(self, now_ms: int, limit: int) -> list[DueEntry]:
        """Those due by `now_ms`, the earliest first; each is forgotten at commit. For the beginning
        of a transaction.
        """
        found = [_entry(key) for key, _ in self._transaction.find(TABLE, limit=limit)]
        due = [entry for entry in found if entry.due_ms <= now_ms]
        for entry in due:
            self._transaction.delete(TABLE, _record_key(entry.due_ms, entry.key))
        return due

    def look(self) -> None:
        """Reads anew when the first is due; for the end of a transaction."""
        first = self._transaction.find(TABLE, limit=1)
        self.next_ms = _entry(first[0][0]).due_ms if first else 0


def _record_key(due_ms: int, key: str) -> str:
    return f"{max(due_ms, 0):016d}{_BETWEEN}{key}"


def _entry(record_key: str) -> DueEntry:
    moment, _, key = record_key.partition(_BETWEEN)
    return DueEntry(int(moment), key)
