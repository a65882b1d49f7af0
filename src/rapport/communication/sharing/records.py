"""The records of one share: keys of its own, and a fence around every change. [CO-17]

A RecordStore like any other for engine and dispatch, who do not know that they work on a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rapport.communication.delivering.case_records import CASES
from rapport.communication.delivering.plain import Recent
from rapport.communication.delivering.transaction import OUTBOX, TABLE, Outgoing
from rapport.communication.sharing.events import OUTPUT
from rapport.communication.sharing.leases import HeldShare
from rapport.core.event import Event
from rapport.store.base import Change, Delete, Guard, GuardedRecordStore, Put

OWN = frozenset(
    {
        "communication",
        "communication.messages",
        "communication.letters",
        "communication.members",
        "communication.due",
        "communication.chores",
        "communication.put_off",
        "communication.spreads",
        "communication.sending",
    }
)
"""Tables that each share has for itself; all others are common."""
COUNTED = frozenset({"communication.recent"})
"""Common tables whose records are read to be changed: a change that came in between is noticed."""
WHERE = "communication.where"
"""Common: message (or case) -> the share that tracks it."""


class ShareRecords:
    """See RecordStore. A change raises GuardFailed when the share is another's now, or when a
    counted record was changed since it was read.
    """

    def __init__(
        self,
        records: GuardedRecordStore,
        held: HeldShare,
        *,
        with_places: Callable[[Event], Event] | None = None,
    ) -> None:
        """`with_places`: a delivery with what else is to be known when it is appended by the next
        holder of the share.
        """
        self._records, self._held, self._with_places = records, held, with_places
        self._prefix = own_key(held.name, "")
        self._read: dict[tuple[str, str], bytes | None] = {}
        self._placed = Recent()
        """Cases whose share is written down, as far as we remember."""

    def get(self, table: str, key: str) -> bytes | None:
        """See RecordStore."""
        kept = self._records.get(table, self._own(table, key))
        if table in COUNTED:
            self._read[table, key] = kept
        return kept

    def put(self, table: str, key: str, value: bytes) -> None:
        """See RecordStore."""
        self.apply((Put(table, key, value),))

    def delete(self, table: str, key: str) -> None:
        """See RecordStore."""
        self.apply((Delete(table, key),))

    def apply(self, changes: Sequence[Change]) -> None:
        """See RecordStore."""
        guards = [self._held.guard]
        own: list[Change] = []
        placed: set[str] = set()
        for change in changes:
            place = (change.table, change.key)
            if place in self._read:
                guards.append(Guard(*place, self._read[place]))
            if change.table == CASES:
                own += self._whereabouts(change, placed)
            own.append(self._moved(self._outboxed(change)))
        self._read.clear()
        self._records.apply_guarded(own, guards)
        for key in placed:
            self._placed.add(key)

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See RecordStore."""
        if table not in OWN:
            return self._records.find(table, prefix=prefix, after=after, limit=limit)
        start = self._prefix + after if after else ""
        found = self._records.find(table, prefix=self._prefix + prefix, after=start, limit=limit)
        return [(key.removeprefix(self._prefix), value) for key, value in found]

    def close(self) -> None:
        """Nothing: the records belong to all shares."""

    def _own(self, table: str, key: str) -> str:
        return self._prefix + key if table in OWN else key

    def _moved(self, change: Change) -> Change:
        key = self._own(change.table, change.key)
        if isinstance(change, Put):
            return Put(change.table, key, change.value)
        return Delete(change.table, key)

    def _outboxed(self, change: Change) -> Change:
        """What the engine is about to append, so that another can do it in its place."""
        if self._with_places is None or (change.table, change.key) != (TABLE, OUTBOX):
            return change
        assert isinstance(change, Put), "the last outbox stays"
        outgoing = msgspec.msgpack.decode(change.value, type=Outgoing)
        for name, events in outgoing.items():
            if name.startswith(OUTPUT):
                outgoing[name] = [self._with_places(event) for event in events]
        return Put(change.table, change.key, msgspec.msgpack.encode(outgoing))

    def _whereabouts(self, change: Change, placed: set[str]) -> list[Change]:
        """Where a case is kept goes and stays with it; written once."""
        if isinstance(change, Delete):
            self._placed.discard(change.key)
            return [Delete(WHERE, change.key)]
        if change.key in self._placed:
            return []
        placed.add(change.key)
        return [Put(WHERE, change.key, self._held.name.encode())]


def own_key(share: str, key: str) -> str:
    """The key of a share's own record in the table of all shares."""
    return f"{share}/{key}"


def case_key(share: str, message: str) -> str:
    """The key of a message's case in the table of all shares."""
    return own_key(share, message)
