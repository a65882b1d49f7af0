"""A transaction over the record store with an outbox: what one batch changes and the events it
emits become durable together. [CO-10]

State, due times and reader positions go into one `RecordStore.apply`; so do the events to append
(the outbox), because logs and records cannot share a transaction. The events are appended right
after. A crash in between is repaired on opening by appending the last outbox again, which
duplicate removal makes harmless. Events that follow from the input alone need no outbox: they are
appended before the commit (`emit_early`), and again when the input is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.validation import LARGEST_DATA_BYTES, check_events
from rapport.core.codec import TrustedEvents
from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.event import Event
from rapport.store.base import Change, Delete, Put, RecordStore, check_changes

TABLE = "communication"
OUTBOX = "outbox"
_FULL_BYTES = 32_000_000
"""A transaction with more bytes to emit ends: the outbox is one record, and no store keeps one of
a gigabyte.
"""
_ENCODER = msgspec.msgpack.Encoder()
T = TypeVar("T")

Outgoing = dict[str, list[Event]]
"""Events by the channel they go to, in order."""


class Transaction:
    """Changes over a record store, seen by its own reads, durable at `commit`; reusable.

    Values are structs until then: one that changes often in a batch is encoded once.
    """

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._values: dict[tuple[str, str], Any] = {}
        """None = deleted."""
        self._journal: list[tuple[Any, Any, Any] | list[Event]] = []
        """The value before each change, or the list that an event was added to; for `roll_back`.
        """
        self._outgoing: Outgoing = {}
        self._early: Outgoing = {}
        self._size = 0
        """Bytes that were emitted one by one, including those rolled back."""
        self.has_listeners: Callable[[], bool] = lambda: True
        """Whether any notification callback is registered; set by the engine."""

    # --- values ---

    def get(self, table: str, key: str) -> bytes | None:
        """The value as this transaction sees it."""
        place = (table, key)
        if place not in self._values:
            return self._records.get(table, key)
        value = self._values[place]
        return value if value is None or type(value) is bytes else _ENCODER.encode(value)

    def get_struct(self, table: str, key: str, kind: type[T]) -> T | None:
        """The struct as this transaction sees it, which the caller must not change; raises Corrupt
        when the record cannot be read.
        """
        place = (table, key)
        value = self._values[place] if place in self._values else self._records.get(table, key)
        if not isinstance(value, bytes):
            return cast(T | None, value)
        try:
            return msgspec.msgpack.decode(value, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Corrupt(
                f"the record {key!r} of {table} cannot be read: {error}",
                code="communication.bad_record",
                hint="an earlier version or another program wrote it: let that version finish its "
                "open messages, or remove the record; its ledger lines stay",
            ) from None

    def put(self, table: str, key: str, value: Any) -> None:
        """Writes bytes or a struct at commit; the struct must not be changed afterwards."""
        place = (table, key)
        self._journal.append((place, place in self._values, self._values.get(place)))
        self._values[place] = value

    def delete(self, table: str, key: str) -> None:
        """Deletes at commit."""
        self.put(table, key, None)

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """As `RecordStore.find`, including the changes of this transaction; scans all of these."""
        changed = sorted(
            key
            for place, key in self._values
            if place == table and key.startswith(prefix) and key > after
        )
        if not changed:
            return self._records.find(table, prefix=prefix, after=after, limit=limit)
        found: dict[str, bytes] = {}
        while len(found) < limit:
            page = self._records.find(table, prefix=prefix, after=after, limit=limit)
            end = page[-1][0] if len(page) == limit else None
            found |= {key: value for key, value in page if (table, key) not in self._values}
            for key in changed:
                value = self.get(table, key) if key > after else None
                if value is not None and (end is None or key <= end):
                    found[key] = value
            if end is None:
                break
            after = end
        return sorted(found.items())[:limit]

    # --- events ---

    def emit(self, channel: str, event: Event) -> int:
        """Appends the event after commit; returns its place for `amend`."""
        events = self._outgoing.get(channel)
        if events is None:
            events = self._outgoing[channel] = []
        events.append(event)
        self._journal.append(events)
        self._size += len(event.data)
        return len(events) - 1

    def amend(self, channel: str, place: int, event: Event) -> None:
        self._outgoing[channel][place] = event

    def emit_early(self, channel: str, event: Event) -> None:
        """Appends the event before commit, and perhaps a second time after a crash: its identity
        must follow from the input alone, and its names be valid. It comes after what was emitted to
        the same channel before.
        """
        events = self._early_events(channel)
        events.append(event)
        self._journal.append(events)
        self._size += len(event.data)

    def emit_all_early(self, channel: str, events: list[Event]) -> None:
        """As `emit_early` for many events, which cannot be rolled back."""
        if events:
            self._early_events(channel).extend(events)

    def _early_events(self, channel: str) -> list[Event]:
        """The list for an early event, so that it follows what was emitted before."""
        return self._outgoing.get(channel) or self._early.setdefault(channel, [])

    def pop_early(self) -> Outgoing:
        """The events to append before `commit`."""
        early, self._early = self._early, {}
        return {name: events for name, events in early.items() if events}

    # --- the end of it ---

    @property
    def is_full(self) -> bool:
        """Whether the rest of a batch belongs into another transaction."""
        return self._size >= _FULL_BYTES

    def mark(self) -> int:
        """A point to return to with `roll_back`."""
        return len(self._journal)

    def check(self, mark: int) -> None:
        """Raises InvalidInput when something that was changed or emitted since the mark cannot be
        stored: found at commit, it would stop the whole batch, again at every start. Encodes each
        value.
        """
        emitted: dict[int, tuple[list[Event], int]] = {}
        for change in self._journal[mark:]:
            if isinstance(change, list):
                events, count = emitted.get(id(change), (change, 0))
                emitted[id(change)] = events, count + 1
            else:
                _check_value(change[0], self._values.get(change[0]))
        for events, count in emitted.values():
            check_events(events[-count:], LARGEST_DATA_BYTES)

    def roll_back(self, mark: int) -> None:
        """Undoes the changes and events since the mark."""
        while len(self._journal) > mark:
            change = self._journal.pop()
            if isinstance(change, list):
                change.pop()
                continue
            place, was_there, value = change
            if was_there:
                self._values[place] = value
            else:
                self._values.pop(place, None)

    def commit(self) -> Outgoing:
        """Makes everything durable, outbox included; returns the events to append now.

        Blocks on the disk: called from a worker thread. Raises StoreUnavailable; then nothing
        happened.
        """
        outgoing = {name: events for name, events in self._outgoing.items() if events}
        if outgoing:
            self.put(TABLE, OUTBOX, _ENCODER.encode(outgoing))
        changes = [_change(place, value) for place, value in self._values.items()]
        self.forget()
        if changes:
            self._records.apply(changes)
        return outgoing

    def forget(self) -> None:
        """Discards everything that was not committed."""
        self._values, self._journal, self._outgoing, self._early = {}, [], {}, {}
        self._size = 0

    def last_outbox(self) -> Outgoing:
        """The events of the last commit, which may not have been appended. Raises Corrupt when they
        cannot be read.
        """
        kept = self._records.get(TABLE, OUTBOX)
        try:
            return msgspec.msgpack.decode(kept, type=Outgoing) if kept else {}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"the outbox of the last batch cannot be read: {error}",
                code="communication.bad_record",
                hint=f"put the records back from a copy; or remove the record {OUTBOX!r} of table "
                f"{TABLE!r}: then deliveries and ledger lines of the last batch may be missing",
            ) from None


def _check_value(place: tuple[str, str], value: Any) -> None:
    try:
        check_changes([_change(place, value)])
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            f"a record of {place[0]} cannot be kept: {error}", code="communication.bad_record"
        ) from None


def _change(place: tuple[str, str], value: Any) -> Change:
    table, key = place
    if value is None:
        return Delete(table, key)
    return Put(table, key, value if type(value) is bytes else _ENCODER.encode(value))


async def append_outgoing(channels: Channels, outgoing: Mapping[str, Sequence[Event]]) -> None:
    """Appends to one channel after the other, the ledger first; safe to repeat."""
    for name in sorted(outgoing, key=lambda name: (name != "log", name)):
        if outgoing[name]:
            await channels.channel(name).append(outgoing[name])


async def append_early(channels: Channels, early: Mapping[str, Sequence[Event]]) -> None:
    """Appends to all channels at once, safe to repeat. A crash repeats it when the input is read
    again.
    """
    names = sorted(early, key=lambda name: (name != "log", name))
    await asyncio.gather(
        *(channels.channel(name).append(TrustedEvents(early[name])) for name in names)
    )
