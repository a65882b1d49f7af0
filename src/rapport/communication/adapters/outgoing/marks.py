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

from rapport.communication.delivering.steps import OutcomeState
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


class Mark(msgspec.Struct, frozen=True):
    """How often a delivery was begun, and how it ended if it did."""

    starts: int
    outcome: Ended | None = None


class _Group(msgspec.Struct, frozen=True, array_like=True):
    """One record: what began and what ended at the same moment."""

    begun: list[Begun]
    ended: list[Ended]

    def highest(self) -> int:
        """The last position that it speaks of."""
        begun = [entry.position for entry in self.begun]
        return max([*begun, *(entry.position for entry in self.ended)])


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
        self.note([], [], committed)
        return {position: mark for position, mark in marks.items() if position > committed}

    def note(self, begun: Sequence[Begun], ended: Sequence[Ended], committed: int) -> None:
        """Writes what begins and what ended, and lets go of what the committed position has passed:
        all or nothing, one write, durable when it returns.
        """
        changes: list[Change] = []
        while self._groups and self._groups[0][0] <= committed:
            changes.append(Delete(_TABLE, heapq.heappop(self._groups)[1]))
        if begun or ended:
            group = _Group(list(begun), list(ended))
            key = f"{self._prefix}{self._next:020d}"
            changes.append(Put(_TABLE, key, msgspec.msgpack.encode(group)))
            heapq.heappush(self._groups, (group.highest(), key))
            self._next += 1
        if changes:
            self._records.apply(changes)

    def _take(self, key: str, group: _Group, marks: dict[int, Mark]) -> None:
        heapq.heappush(self._groups, (group.highest(), key))
        self._next = int(key.removeprefix(self._prefix)) + 1
        for begun in group.begun:
            marks[begun.position] = Mark(begun.starts)
        for ended in group.ended:
            marks[ended.position] = Mark(1, ended)


def _decode(key: str, value: bytes) -> _Group:
    try:
        return msgspec.msgpack.decode(value, type=_Group)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the mark {key!r} of deliveries under way cannot be read: {error}",
            code="adapter.bad_mark",
            hint="it was written by another version; let that one send what waits, then update",
        ) from None
