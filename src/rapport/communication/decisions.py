"""Which messages are closed and which members have answered: dispatches ask before sending, so that
a delivery that nobody needs any more is dropped. [CO-8]
"""

from __future__ import annotations

import msgspec

from rapport.communication.records import DELIVERIES, MEMBERS
from rapport.communication.schedule import member_key
from rapport.store.base import RecordStore

_REMEMBERED = 100_000


class RecentIds:
    """Recent ids, each with a text about it: at least the last `most`, at most twice as many."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._newer: dict[str, str] = {}
        self._older: dict[str, str] = {}

    def add(self, id: str, about: str = "") -> None:
        """Remembers an id."""
        self._newer[id] = about
        if len(self._newer) >= self._most:
            self._older, self._newer = self._newer, {}

    def discard(self, id: str) -> None:
        """Forgets an id."""
        self._newer.pop(id, None)
        self._older.pop(id, None)

    def clear(self) -> None:
        """Forgets all ids."""
        self._newer.clear()
        self._older.clear()

    def about(self, id: str) -> str | None:
        """The text about an id; None when it is not remembered."""
        found = self._newer.get(id)
        return self._older.get(id) if found is None else found

    def __contains__(self, id: str) -> bool:
        return id in self._newer or id in self._older


class _Stage(msgspec.Struct):
    satisfied: int = 0
    declined: int = 0


class _State(msgspec.Struct):
    result: str = ""
    stages: list[_Stage] = []


class _Record(msgspec.Struct):
    """The part of a delivery record that tells whether it is closed or may have been answered."""

    tracking: _State


class _Member(msgspec.Struct):
    answered: bool = False
    declined: bool = False


_RECORDS = msgspec.msgpack.Decoder(_Record)
_MEMBERS = msgspec.msgpack.Decoder(_Member)


class DecisionCache:
    """Answers from memory for recent messages, otherwise with one read of the records."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._closed, self._open, self._answered = RecentIds(), RecentIds(), RecentIds()
        self.direct = RecentIds()
        """Messages of the fast path, each with its peer: only their delivery decides them."""

    def close(self, key: str) -> None:
        """Notes a closed delivery, or by `member_key` a member who has answered; durably."""
        self._closed.add(key)
        self._open.discard(key)

    def forget(self) -> None:
        """Forgets everything; after a failure only the records tell what was stored."""
        for recent in (self._closed, self._open, self._answered, self.direct):
            recent.clear()

    def is_decided(self, message: str, peer: str = "") -> bool:
        """Whether the message is closed, or answered by this peer. A member's record is read only
        when somebody had answered at the time the message's record was read.
        """
        if message in self._closed:
            return True
        if message in self.direct:
            return False
        if message not in self._open and self._read(message):
            return True
        return bool(peer) and self._has_answered(message, member_key(message, peer))

    def recall(self, message: str, peer: str = "") -> bool | None:
        """As `is_decided`, from memory alone; None when the records have to be read."""
        if message in self._closed or (peer and member_key(message, peer) in self._closed):
            return True
        if message in self.direct:
            return False
        if message not in self._open or message in self._answered:
            return None
        return False

    def _read(self, message: str) -> bool:
        kept = self._records.get(DELIVERIES, message)
        if kept is not None and is_closed(kept):
            self._closed.add(message)
            return True
        self._open.add(message)
        if kept is not None and _may_be_answered(kept):
            self._answered.add(message)
        return False

    def _has_answered(self, message: str, key: str) -> bool:
        if key in self._closed:
            return True
        if message not in self._answered:
            return False
        kept = self._records.get(MEMBERS, key)
        return kept is not None and has_answered(kept)


def is_closed(kept: bytes) -> bool:
    """Whether a delivery record is closed; False when it cannot be read, which the engine logs."""
    try:
        return _RECORDS.decode(kept).tracking.result != ""
    except msgspec.DecodeError:
        return False


def has_answered(kept: bytes) -> bool:
    """Whether a member's record shows an answer, be it a refusal."""
    try:
        member = _MEMBERS.decode(kept)
    except msgspec.DecodeError:
        return False
    return member.answered or member.declined


def _may_be_answered(kept: bytes) -> bool:
    try:
        stages = _RECORDS.decode(kept).tracking.stages
    except msgspec.DecodeError:
        return False
    return any(stage.satisfied or stage.declined for stage in stages)
