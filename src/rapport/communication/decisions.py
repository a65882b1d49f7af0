"""Which messages are decided, and who has answered: what still waits for an adapter is not sent
any more. [CO-8]
"""

from __future__ import annotations

import msgspec

from rapport.communication.fast_path import RecentIds
from rapport.communication.records import DELIVERIES, MEMBERS
from rapport.communication.schedule import member_key
from rapport.store.base import RecordStore


class _Stage(msgspec.Struct):
    satisfied: int = 0
    declined: int = 0


class _Decision(msgspec.Struct):
    """Of a case whether it is closed, and whether somebody may have answered."""

    result: str = ""
    stages: list[_Stage] = []


class _Case(msgspec.Struct):
    tracking: _Decision


class _Member(msgspec.Struct):
    answered: bool = False
    declined: bool = False


_DECODER = msgspec.msgpack.Decoder(_Case)
_MEMBER_DECODER = msgspec.msgpack.Decoder(_Member)


class DecisionCache:
    """Answers from memory for the messages of late, else by one look into the records."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._closed, self._open, self._answered = RecentIds(), RecentIds(), RecentIds()
        self.plain = RecentIds()
        """Messages without a record: decided by nothing but their own delivery."""

    def closed(self, key: str) -> None:
        """A message is decided, or a member of it has answered (by `member_key`); durably."""
        self._closed.add(key)
        self._open.discard(key)  # remembered longer than the other, it would be taken for true

    def forget(self) -> None:
        """Remembers nothing: after a failure it takes a look to know what was kept and what not."""
        for recent in (self._closed, self._open, self._answered, self.plain):
            recent.clear()

    def has(self, message: str, peer: str = "") -> bool:
        """Whether the message is decided, for everybody or for this peer. A member is looked up
        only where somebody had answered when the message was.
        """
        if message in self._closed:
            return True
        if message in self.plain:
            return False
        if message not in self._open and self._look_up(message):
            return True
        return bool(peer) and self._has_answered(message, member_key(message, peer))

    def recall(self, message: str, peer: str = "") -> bool | None:
        """As `has`, from memory alone; None when that takes a look into the records."""
        if message in self._closed or (peer and member_key(message, peer) in self._closed):
            return True
        if message in self.plain:
            return False
        if message not in self._open or message in self._answered:
            return None
        return False

    def _look_up(self, message: str) -> bool:
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
    """Whether the record of a case says that it is decided."""
    try:
        return _DECODER.decode(kept).tracking.result != ""
    except msgspec.DecodeError:
        return False  # the engine says what is wrong with it


def has_answered(kept: bytes) -> bool:
    """Whether the record of a member says that they answered, be it that they cannot."""
    try:
        member = _MEMBER_DECODER.decode(kept)
    except msgspec.DecodeError:
        return False
    return member.answered or member.declined


def _may_be_answered(kept: bytes) -> bool:
    try:
        stages = _DECODER.decode(kept).tracking.stages
    except msgspec.DecodeError:
        return False
    return any(stage.satisfied or stage.declined for stage in stages)
