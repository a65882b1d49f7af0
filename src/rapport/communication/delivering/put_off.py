"""Events that cannot be handled while the application cannot say who is in a collective: kept with
the engine's records and taken again, further and further apart. [CO-3, CO-8]
"""

from __future__ import annotations

import msgspec

from rapport.communication.delivering.due import Due
from rapport.communication.delivering.tracking import Retry
from rapport.communication.delivering.transaction import Transaction
from rapport.core.errors import SourceUnavailable
from rapport.core.event import StoredEvent

_TABLE = "communication.put_off"
_PREFIX = "\x1d"
"""Begins the keys among those due; no case begins so."""
_LONGEST_MS = 60_000
_PAUSES = Retry(longest_ms=_LONGEST_MS)


class PutOffEvent(msgspec.Struct, frozen=True):
    """An event as it was read, how many detections led to it, and how often it was tried."""

    channel: str
    stored: StoredEvent
    hops: int
    tries: int = 1
    since: int = 0
    """When it was first tried."""


class LookupCounts(msgspec.Struct):
    """How often nobody could say who a receiver is, since the process began."""

    put_off: int = 0
    """Messages and detections that wait, each counted once."""
    tried_again: int = 0
    """Of them, in vain."""


class TakenInPart(SourceUnavailable):
    """Some of what an event leads to has to wait; the rest is done and stays."""


class PutOff:
    """All of them. Putting off costs two records."""

    def __init__(self, transaction: Transaction, due: Due) -> None:
        self._transaction, self._due = transaction, due

    def put(self, event: PutOffEvent, now_ms: int, latest_ms: int = 0) -> int:
        """To be taken again, then at the latest; returns when."""
        due_ms = now_ms + _PAUSES.pause_ms(event.tries)
        if now_ms < latest_ms < due_ms:
            due_ms = latest_ms
        key = f"{event.channel}.{event.stored.position:020d}"
        self._transaction.put(_TABLE, key, event)
        self._due.set(_PREFIX + key, due_ms)
        return due_ms

    def take(self, due_key: str) -> PutOffEvent | None:
        """The event that a key among those due names, which is forgotten; None when it names
        something else, or nothing.
        """
        if not is_put_off(due_key):
            return None
        key = due_key.removeprefix(_PREFIX)
        found = self._transaction.get_struct(_TABLE, key, PutOffEvent)
        if found is not None:
            self._transaction.delete(_TABLE, key)
        return found


def is_put_off(due_key: str) -> bool:
    """Whether a key among those due is of an event, and not of a case or a member."""
    return due_key.startswith(_PREFIX)
