"""All or nothing: what one batch of inputs changes, and what it wants to say, become durable
together. [CO-10]

State, timers and the reader's place go into one `RecordStore.apply`; so do the events to append
(the outbox), because logs and records cannot share a transaction. The events are appended right
after; a crash in between is repaired on opening by appending the last outbox again, which
duplicate removal makes harmless.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.core.event import Event
from rapport.store.base import Change, Delete, Put, RecordStore

TABLE = "communication"
_OUTBOX = "outbox"


class Outgoing(msgspec.Struct, frozen=True):
    """An event and the channel it goes to."""

    channel: str
    event: Event


class Transaction:
    """Changes over a record store, seen by its own reads, durable at `commit`; reusable."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._changes: dict[tuple[str, str], Change] = {}
        self._outgoing: list[Outgoing] = []

    def get(self, table: str, key: str) -> bytes | None:
        """The value as this transaction sees it."""
        change = self._changes.get((table, key))
        if change is None:
            return self._records.get(table, key)
        return change.value if isinstance(change, Put) else None

    def put(self, table: str, key: str, value: bytes) -> None:
        """Writes at commit."""
        self._changes[table, key] = Put(table, key, value)

    def delete(self, table: str, key: str) -> None:
        """Forgets at commit."""
        self._changes[table, key] = Delete(table, key)

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """What the store holds; for loading, before anything was changed."""
        return self._records.find(table, prefix=prefix, after=after, limit=limit)

    def emit(self, channel: str, event: Event) -> None:
        """Appends the event after commit."""
        self._outgoing.append(Outgoing(channel, event))

    def mark(self) -> tuple[dict[tuple[str, str], Change], int]:
        """A place to come back to with `roll_back`."""
        return dict(self._changes), len(self._outgoing)

    def roll_back(self, mark: tuple[dict[tuple[str, str], Change], int]) -> None:
        """Forgets what was changed and emitted since the mark."""
        self._changes, kept = dict(mark[0]), mark[1]
        del self._outgoing[kept:]

    def commit(self) -> list[Outgoing]:
        """Makes everything durable, outbox included; returns what is now to be appended.

        Blocks on the disk: called from a worker thread. Raises StoreUnavailable; then nothing
        happened.
        """
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self.put(TABLE, _OUTBOX, msgspec.msgpack.encode(outgoing))
        changes, self._changes = list(self._changes.values()), {}
        if changes:
            self._records.apply(changes)
        return outgoing

    def last_outbox(self) -> list[Outgoing]:
        """What the last commit wanted appended; maybe it was, maybe the process died before."""
        kept = self._records.get(TABLE, _OUTBOX)
        return msgspec.msgpack.decode(kept, type=list[Outgoing]) if kept else []


async def append_outgoing(channels: Channels, outgoing: Sequence[Outgoing]) -> None:
    """Appends to each channel in order, the ledger first; safe to repeat."""
    names = sorted({entry.channel for entry in outgoing}, key=lambda name: (name != "log", name))
    for name in names:
        events = [entry.event for entry in outgoing if entry.channel == name]
        await channels.channel(name).append(events)
