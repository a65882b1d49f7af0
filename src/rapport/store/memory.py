"""Logs and records in memory: for tests, and for state that a restart may lose. [CH-13]"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Sequence

from rapport.store.base import (
    READ_BYTES,
    Block,
    Change,
    Guard,
    LogPiece,
    Put,
    RecordChanges,
    check_changes,
    check_contiguous,
    check_guards,
    closed_error,
    place_blocks,
)


class MemoryLogStore:
    """A LogStore that forgets at the end of the process; a segment is one block."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._blocks: dict[str, list[Block]] = {}
        self._last: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._pieces_closed: dict[str, int] = {}
        self._closed = False

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        with self._guard:
            self._check_open()
            placed = place_blocks(blocks, self._last.get(log, 0) + 1, received)
            if placed:
                self._blocks.setdefault(log, []).extend(placed)
                self._last[log] = placed[-1].last
                grown = sum(len(block.body) for block in placed)
                self._bytes[log] = self._bytes.get(log, 0) + grown
        return placed

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        with self._guard:
            self._check_open()
            blocks = self._blocks.get(log, [])
            start = bisect_right(blocks, position, key=lambda block: block.last)
            found: list[Block] = []
            wanted, room = max_records, READ_BYTES
            for number in range(start, len(blocks)):
                if wanted <= 0 or room <= 0:
                    break
                found.append(blocks[number])
                wanted -= blocks[number].count
                room -= len(blocks[number].body)
        return found

    def last_position(self, log: str) -> int:
        self._check_open()
        return self._last.get(log, 0)

    def first_position(self, log: str) -> int:
        with self._guard:
            self._check_open()
            blocks = self._blocks.get(log)
            return blocks[0].first if blocks else self._last.get(log, 0) + 1

    def trim(self, log: str, before: int) -> None:
        """See LogStore; the last block stays unless its piece was closed, as in a file."""
        with self._guard:
            self._check_open()
            blocks = self._blocks.get(log, [])
            gone = bisect_right(blocks, before - 1, key=lambda block: block.last)
            if not blocks or blocks[-1].last > self._pieces_closed.get(log, 0):
                gone = min(gone, max(len(blocks) - 1, 0))
            self._bytes[log] = self._bytes.get(log, 0) - sum(len(b.body) for b in blocks[:gone])
            del blocks[:gone]

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        with self._guard:
            self._check_open()
            return [
                LogPiece(block.first, block.last, len(block.body), block.received, block.received)
                for block in self._blocks.get(log, [])[:limit]
            ]

    def trims_blocks(self, log: str) -> bool:
        return False

    def kept_bytes(self, log: str) -> int:
        return self._bytes.get(log, 0)

    def close_piece(self, log: str) -> None:
        with self._guard:
            self._pieces_closed[log] = self._last.get(log, 0)

    def closed_end(self, log: str) -> int:
        with self._guard:
            self._check_open()
            blocks, closed = self._blocks.get(log, []), self._pieces_closed.get(log, 0)
            return max(blocks[-1].first - 1, closed) if blocks else self._last.get(log, 0)

    def skip_to(self, log: str, position: int) -> None:
        with self._guard:
            self._check_open()
            self._last[log] = max(self._last.get(log, 0), position - 1)

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        check_contiguous(log, self._last.get(log, 0), blocks)
        for block in blocks:
            self.append(log, [(block.count, block.body)], block.received)

    def remove(self, log: str) -> None:
        with self._guard:
            self._check_open()
            for kept in (self._blocks, self._last, self._bytes, self._pieces_closed):
                kept.pop(log, None)

    def logs(self) -> list[str]:
        self._check_open()
        return sorted(self._last)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()


class MemoryRecordStore(RecordChanges):
    """A RecordStore that forgets at the end of the process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[str, dict[str, bytes]] = {}
        self._keys: dict[str, list[str]] = {}
        self._closed = False

    def get(self, table: str, key: str) -> bytes | None:
        self._check_open()
        return self._values.get(table, {}).get(key)

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        check_changes(changes)
        with self._guard:
            self._check_open()
            check_guards(guards, self.get)
            for change in changes:
                if isinstance(change, Put):
                    self._put(change)
                else:
                    self._delete(change.table, change.key)

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        with self._guard:
            self._check_open()
            keys, values = self._keys.get(table, []), self._values.get(table, {})
            start = bisect_right(keys, after)
            if prefix > after:
                start = bisect_right(keys, prefix) - (1 if prefix in values else 0)
            found: list[tuple[str, bytes]] = []
            for number in range(start, len(keys)):
                if len(found) >= limit or not keys[number].startswith(prefix):
                    break
                found.append((keys[number], values[keys[number]]))
        return found

    def close(self) -> None:
        self._closed = True

    def _put(self, change: Put) -> None:
        values = self._values.setdefault(change.table, {})
        if change.key not in values:
            insort(self._keys.setdefault(change.table, []), change.key)
        values[change.key] = change.value

    def _delete(self, table: str, key: str) -> None:
        if self._values.get(table, {}).pop(key, None) is not None:
            keys = self._keys[table]
            del keys[bisect_right(keys, key) - 1]

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()
