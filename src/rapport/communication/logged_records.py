"""Records whose every change is an event of `log`. [CO-6, CO-14]

A change and its event become durable together; the event is appended right after, and again on
opening if a crash came in between. Several engines may share the records: each counts its own
changes, so that the others notice them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import msgspec

from rapport.channel.channel import Channels
from rapport.core.event import Event, content_id, make_event
from rapport.kernel.clock import Chance
from rapport.kernel.tasks import run_blocking
from rapport.store.base import Change, Delete, Put, RecordStore, all_records

_ENTRY, _COUNT, _LAST_EVENT = "entry/", "count/", "told"
_MOST_COUNTS = 64
"""Engines whose counts are kept; others are deleted, which only makes all engines read again."""


class LoggedRecords:
    """One table of such records."""

    def __init__(self, channels: Channels, records: RecordStore, table: str) -> None:
        self._channels, self._records, self.table = channels, records, table
        self._own = _COUNT + Chance.from_machine().randbytes(8).hex()
        self._changes = 0
        self._others: dict[str, bytes] = {}
        """The counts of other engines when `entries` was last read."""
        self.turn = asyncio.Lock()
        """Held during a change: one at a time."""
        self.guard = threading.Lock()
        """Held while records are loaded, so that an entry added meanwhile is not lost."""

    def key(self, name: str) -> str:
        return _ENTRY + name

    def has_changed(self) -> bool:
        """Whether another engine changed something since `entries`; one read, blocks."""
        return self._counts() != self._others

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """Every record by name; blocks."""
        self._others = self._counts()  # before the records, so that no change is missed
        for key, value in all_records(self._records, self.table, prefix=_ENTRY):
            yield key.removeprefix(_ENTRY), value

    def event(self, *, source: str, type: str, subject: str, time: int, data: object) -> Event:
        """The event of the next change."""
        made = content_id(self._own, str(self._changes + 1))
        return make_event(
            source=source, id=made, type=type, subject=subject[:200], time=time, data=data
        )

    async def change(self, change: Change, event: Event, then: Callable[[], object]) -> None:
        """Makes a change and its event durable, calls `then` with the guard held, and appends the
        event to `log`.
        """
        self._changes += 1
        changes = (
            change,
            Put(self.table, self._own, str(self._changes).encode()),
            Put(self.table, _LAST_EVENT, msgspec.msgpack.encode(event)),
        )
        await run_blocking(lambda: self._records.apply(changes))
        with self.guard:
            then()
        await self._append(event)

    async def _append(self, event: Event) -> None:
        """Appends the event of a change; appending it again is harmless."""
        await self._channels.channel("log").append([event])

    async def append_again(self) -> None:
        """Appends the event of the last change once more, after a crash."""
        kept = await run_blocking(self._last_event)
        if kept is not None:
            await self._append(msgspec.msgpack.decode(kept, type=Event))

    def _last_event(self) -> bytes | None:
        counts = self._counts()
        if len(counts) > _MOST_COUNTS:
            self._records.apply([Delete(self.table, key) for key in counts])
        return self._records.get(self.table, _LAST_EVENT)

    def _counts(self) -> dict[str, bytes]:
        found = self._records.find(self.table, prefix=_COUNT)
        return {key: value for key, value in found if key != self._own}
