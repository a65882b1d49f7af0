"""Marks of deliveries under way: what a restart must know so as not to send blindly again. [CO-10]

A mark is written before a delivery is handed to the medium and completed with the outcome after
it. One found without an outcome means that the process died in between: the attempt's fate is
unknown.
"""

from __future__ import annotations

import msgspec

from rapport.communication.adapters.outcomes import OutcomeData
from rapport.store.base import Delete, RecordStore

_TABLE = "communication.sending"
_PAGE = 100


class Mark(msgspec.Struct, frozen=True):
    """How often a delivery was begun, and how it ended if it did."""

    starts: int
    outcome: OutcomeData | None = None


class Marks:
    """The marks of one adapter, by position in its channel. Blocking: used from a thread."""

    def __init__(self, adapter: str, records: RecordStore) -> None:
        self._adapter, self._records = adapter, records

    def begin(self, position: int) -> Mark:
        """The mark as it was before; one more start is noted, unless it had ended already."""
        kept = self._records.get(_TABLE, self._key(position))
        before = msgspec.msgpack.decode(kept, type=Mark) if kept else Mark(0)
        if before.outcome is None:
            self._put(position, Mark(before.starts + 1))
        return before

    def end(self, position: int, outcome: OutcomeData) -> None:
        """Notes how it ended; from here on it is not sent again."""
        self._put(position, Mark(1, outcome))

    def forget_until(self, position: int) -> None:
        """Lets go of marks that the committed cursor has passed."""
        while True:
            page = self._records.find(_TABLE, prefix=f"{self._adapter}/", limit=_PAGE)
            passed = [key for key, _ in page if key <= self._key(position)]
            if passed:
                self._records.apply([Delete(_TABLE, key) for key in passed])
            if len(passed) < _PAGE:
                return

    def _put(self, position: int, mark: Mark) -> None:
        self._records.put(_TABLE, self._key(position), msgspec.msgpack.encode(mark))

    def _key(self, position: int) -> str:
        return f"{self._adapter}/{position:020d}"
