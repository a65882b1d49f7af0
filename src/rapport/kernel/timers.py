"""Durable timers on the one clock: windows, escalation, leases and quiet hours outlive a crash.
[design 14]

A timer is a record, written before `set` returns. `due` is asked by its owner, which acts and then
calls `done`; acting twice after a crash between the two is the owner's to make harmless
(deterministic ids).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

import msgspec

TABLE = "timers"


class Timer(msgspec.Struct, frozen=True):
    """Something to do at a time; (owner, key) names it, setting it again moves it."""

    due_ms: int
    owner: str
    key: str
    payload: bytes = b""


class TimerRecords(Protocol):
    """What timers need of a record store; `RecordStore` fits."""

    def put(self, table: str, key: str, value: bytes) -> None: ...
    def delete(self, table: str, key: str) -> None: ...
    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]: ...


class Timers:
    """All timers of one owner. Setting and taking cost O(log n); loading reads the owner's records
    once.
    """

    def __init__(self, owner: str, records: TimerRecords) -> None:
        self._owner, self._records = owner, records
        self._timers: dict[str, Timer] = {}
        self._queue: list[tuple[int, str]] = []
        self._load()

    def set(self, key: str, due_ms: int, payload: bytes = b"") -> None:
        """Durable when it returns; replaces a timer of the same key."""
        timer = Timer(due_ms, self._owner, key, payload)
        self._records.put(TABLE, self._record_key(key), msgspec.msgpack.encode(timer))
        self._remember(timer)

    def cancel(self, key: str) -> None:
        """Forgets a timer; one that does not exist is no error."""
        if self._timers.pop(key, None) is not None:
            self._records.delete(TABLE, self._record_key(key))

    done = cancel

    def next_due_ms(self) -> int | None:
        """When the earliest timer is due; None when there is none."""
        self._drop_stale()
        return self._queue[0][0] if self._queue else None

    def due(self, now_ms: int) -> list[Timer]:
        """The timers due by `now_ms`, earliest first; they stay until `done`."""
        next_due = self.next_due_ms()
        if next_due is None or next_due > now_ms:
            return []
        found = [timer for timer in self._timers.values() if timer.due_ms <= now_ms]
        return sorted(found, key=lambda timer: (timer.due_ms, timer.key))

    def __iter__(self) -> Iterator[Timer]:
        return iter(list(self._timers.values()))

    def _load(self) -> None:
        after = ""
        while True:
            page = self._records.find(TABLE, prefix=f"{self._owner}/", after=after)
            for key, value in page:
                self._remember(msgspec.msgpack.decode(value, type=Timer))
                after = key
            if not page:
                return

    def _remember(self, timer: Timer) -> None:
        self._timers[timer.key] = timer
        heapq.heappush(self._queue, (timer.due_ms, timer.key))

    def _drop_stale(self) -> None:
        while self._queue:
            due_ms, key = self._queue[0]
            held = self._timers.get(key)
            if held is not None and held.due_ms == due_ms:
                return
            heapq.heappop(self._queue)

    def _record_key(self, key: str) -> str:
        return f"{self._owner}/{key}"
