"""Which messages are decided: what still waits for an adapter is not sent any more. [CO-8]"""

from __future__ import annotations

import msgspec

from rapport.communication.case_records import CASES
from rapport.communication.plain import Recent
from rapport.store.base import RecordStore


class _Decision(msgspec.Struct):
    """Of a case whether it is closed."""

    result: str = ""


class _Case(msgspec.Struct):
    tracking: _Decision


_DECODER = msgspec.msgpack.Decoder(_Case)


class Decided:
    """Answers from memory for the messages of late, else by one look into the records."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._closed, self._open = Recent(), Recent()
        self.plain = Recent()
        """Messages without a record: decided by nothing but their own delivery."""

    def closed(self, message: str) -> None:
        """A message is decided, durably."""
        self._closed.add(message)

    def has(self, message: str) -> bool:
        """Whether the message is decided."""
        if message in self._closed:
            return True
        if message in self.plain or message in self._open:
            return False
        kept = self._records.get(CASES, message)
        if kept is not None and is_closed(kept):
            self._closed.add(message)
            return True
        self._open.add(message)
        return False


def is_closed(kept: bytes) -> bool:
    """Whether the record of a case says that it is decided."""
    try:
        return _DECODER.decode(kept).tracking.result != ""
    except msgspec.DecodeError:
        return False  # the engine says what is wrong with it
