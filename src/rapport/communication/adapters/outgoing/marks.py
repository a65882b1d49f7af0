"""Marks of deliveries under way: what a restart must know so as not to send blindly again. [CO-10]

A mark is written before deliveries are handed to the medium and completed with the outcomes after
it. One found without an outcome means that the process died in between: the attempt's fate is
unknown. Marks come in groups, one record for all that begins or ends together, so that a thousand
deliveries cost one write.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from rapport.communication.delivery_state import OutcomeState
from rapport.core.errors import Corrupt
from rapport.store.base import Change, Delete, Put, RecordStore

_TABLE = "communication.sending"
_PAGE = 100


class Begun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that is about to be handed over, for the `starts`-th time."""

    position: int
    starts: int


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that came to an end."""

    position: int
    state: OutcomeState
    reason: str
    retry: bool
    unavailable: bool = False


class Mark(msgspec.Struct, frozen=True):
    """How often a delivery was begun, and how it ended if it did."""

    starts: int
    outcome: Ended | None = None


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """One record: what began and what ended at the same moment. Most begin for the first time and
    are simply handed over; of these the position says all.
    """

    begun: Sequence[Begun] = ()
    ended: Sequence[Ended] = ()
    first: Sequence[int] = ()
    """Positions of those that begin for the first time."""
    handed: Sequence[int] = ()
    """Positions of those that the medium took without a word."""

    @staticmethod
    def joined(notes: Sequence[Noted]) -> Noted:
        """All of them as one."""
        return Noted(
            [entry for note in notes for entry in note.begun],
            [entry for note in notes for entry in note.ended],
            [position for note in notes for position in note.first],
            [position for note in notes for position in note.handed],
        )

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.first or self.handed)

    def highest(self) -> int:
        """The last position that it speaks of."""
        begun = [entry.position for entry in self.begun]
        ended = [entry.position for entry in self.ended]
        return max(max(part) for part in (begun, ended, self.first, self.handed) if part)


class Marks:
    """The marks of one adapter, by position in its channel. Blocking: used from a thread, by one at
    a time.
    """

    def __init__(self, adapter: str, records: RecordStore) -> None:
        self._prefix, self._records = f"{adapter}/", records
        self._groups: list[tuple[int, str]] = []
        """Highest position and key of each record, as a heap."""
        self._next = 0

    def load(self, committed: int) -> dict[int, Mark]:
        """The marks after the committed position; those before are forgotten. Raises Corrupt."""
        self._groups, self._next = [], 0
        marks: dict[int, Mark] = {}
        after = ""
        while page := self._records.find(_TABLE, prefix=self._prefix, after=after, limit=_PAGE):
            for key, value in page:
                self._take(key, _decode(key, value), marks)
            after = page[-1][0]
        self.note(Noted(), committed)
        return {position: mark for position, mark in marks.items() if position > committed}

    def note(self, noted: Noted, committed: int) -> None:
        """Writes what begins and what ended, and lets go of what the committed position has passed:
        all or nothing, one write, durable when it returns.
        """
        changes: list[Change] = []
        while self._groups and self._groups[0][0] <= committed:
            changes.append(Delete(_TABLE, heapq.heappop(self._groups)[1]))
        if noted:
            key = f"{self._prefix}{self._next:020d}"
            changes.append(Put(_TABLE, key, msgspec.msgpack.encode(noted)))
            heapq.heappush(self._groups, (noted.highest(), key))
            self._next += 1
        if changes:
            self._records.apply(changes)

    def _take(self, key: str, group: Noted, marks: dict[int, Mark]) -> None:
        heapq.heappush(self._groups, (group.highest(), key))
        self._next = int(key.removeprefix(self._prefix)) + 1
        for begun in group.begun:
            marks[begun.position] = Mark(begun.starts)
        marks.update(dict.fromkeys(group.first, Mark(1)))
        for ended in group.ended:
            marks[ended.position] = Mark(1, ended)
        for position in group.handed:
            marks[position] = Mark(1, Ended(position, "handed", "", False))


def _decode(key: str, value: bytes) -> Noted:
    try:
        return msgspec.msgpack.decode(value, type=Noted)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the mark {key!r} of deliveries under way cannot be read: {error}",
            code="adapter.bad_mark",
            hint="it was written by another version; let that one send what waits, then update",
        ) from None
