"""When the engine has to look at a message or a member again: records ordered by time. [CO-8, CO-9]

Unlike the kernel's timers these are not held in memory: a hundred thousand people may be held over
night. An entry is written in the transaction that changes what it is about.

Work on a message that is too much for one transaction: done in slices, and taken up again after
a crash. [CO-8, CO-10]

Events that cannot be handled while the application cannot say who is in a collective: kept with
the engine's records and taken again, further and further apart. [CO-3, CO-8]
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.communication.delivery_state import (
    RetryPolicy,
)
from rapport.communication.transaction import Transaction
from rapport.core.errors import Corrupt, SourceUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger

TABLE = "communication.due"
_BETWEEN = "\x1f"


class DueEntry(msgspec.Struct, frozen=True):
    """A key (of a case or a member) and when it is due."""

    due_ms: int
    key: str


class DueTimes:
    """All entries. Setting costs one record; looking costs what is found."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.next_ms = 0
        """When the first is due, or earlier; 0 = there is none."""

    def move(self, key: str, before_ms: int, due_ms: int) -> None:
        """Due at another time than before; 0 = not at all."""
        if before_ms == due_ms:
            return
        if before_ms:
            self._transaction.delete(TABLE, _record_key(before_ms, key))
        if due_ms:
            self.set(key, due_ms)

    def set(self, key: str, due_ms: int) -> None:
        """Due then too, whatever else was said."""
        self._transaction.put(TABLE, _record_key(due_ms, key), b"")
        self.next_ms = min(self.next_ms, due_ms) if self.next_ms else due_ms

    def take(self, now_ms: int, limit: int) -> list[DueEntry]:
        """Those due by `now_ms`, the earliest first; each is forgotten at commit. For the beginning
        of a transaction.
        """
        found = [_entry(key) for key, _ in self._transaction.find(TABLE, limit=limit)]
        due = [entry for entry in found if entry.due_ms <= now_ms]
        for entry in due:
            self._transaction.delete(TABLE, _record_key(entry.due_ms, entry.key))
        return due

    def look(self) -> None:
        """Reads anew when the first is due; for the end of a transaction."""
        first = self._transaction.find(TABLE, limit=1)
        self.next_ms = _entry(first[0][0]).due_ms if first else 0


def _record_key(due_ms: int, key: str) -> str:
    return f"{max(due_ms, 0):016d}{_BETWEEN}{key}"


def _entry(record_key: str) -> DueEntry:
    moment, _, key = record_key.partition(_BETWEEN)
    return DueEntry(int(moment), key)


_log = get_logger(__name__)
SLICE = 1_000
"""Members that are begun, told or let go of in one transaction."""
_JOB_TABLE = "communication.chores"
_PAGES = "communication.spreads"
_PAGES_AT_ONCE = 100

MemberJobKind = Literal["begin", "time_out", "stop", "forget"]


class MemberJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to the members of a case, and how far it has got."""

    case: str
    kind: MemberJobKind
    stage: int = -1
    page: int = 0
    found: int = 0
    """Names in the whole stage, for `begin`."""
    after: str = ""
    """The last member it was done to, for the others."""

    @property
    def key(self) -> str:
        """Names its record: one of a kind for each stage."""
        return member_key(self.case, f"{self.kind}.{self.stage + 1:06d}")


class MemberJobs:
    """All chores, and the names that are still to be begun: as the directory had them when the
    stage began, in pages.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._resting: set[str] = set()
        self.any = True
        """Whether there may be one that does not rest."""

    def first(self) -> MemberJob | None:
        """Something to do, or None; for the beginning of a transaction. One that cannot be read
        rests.
        """
        while (key := self._first_key()) is not None:
            try:
                return self._transaction.get_struct(_JOB_TABLE, key, MemberJob)
            except Corrupt as error:
                _log.error("chore rests", key=key, error=error.message, hint=error.hint)
                self._resting.add(key)
        return None

    def _first_key(self) -> str | None:
        found = self._transaction.find(_JOB_TABLE, limit=len(self._resting) + 1)
        key = next((key for key, _ in found if key not in self._resting), None)
        self.any = key is not None
        return key

    def put(self, chore: MemberJob) -> None:
        """To be done, or done so far."""
        self._transaction.put(_JOB_TABLE, chore.key, chore)
        self.any = True

    def done(self, chore: MemberJob) -> None:
        """Nothing is left to do; names that were not begun are forgotten."""
        self._transaction.delete(_JOB_TABLE, chore.key)
        after = ""
        while chore.kind == "begin" and (pages := self._pages(chore, after)):
            after = pages[-1]
            for key in pages:
                self._transaction.delete(_PAGES, key)

    def rest(self, chore: MemberJob) -> None:
        """Not to be done before the next start, by when what it needs may have been mended."""
        self._resting.add(chore.key)

    def put_page(self, chore: MemberJob, page: int, names: list[str]) -> None:
        """Keeps names that are begun later."""
        value = msgspec.msgpack.encode(names)
        self._transaction.put(_PAGES, _page_key(chore, page), value)

    def take_page(self, chore: MemberJob) -> list[str] | None:
        """The names of the chore's page, which is forgotten; None after the last. Raises Corrupt
        when they cannot be read.
        """
        key = _page_key(chore, chore.page)
        names = self._transaction.get_struct(_PAGES, key, list[str])
        if names is not None:
            self._transaction.delete(_PAGES, key)
        return names

    def _pages(self, chore: MemberJob, after: str) -> list[str]:
        """The keys of the next pages that were not taken."""
        prefix = f"{chore.key}."
        found = self._transaction.find(_PAGES, prefix=prefix, after=after, limit=_PAGES_AT_ONCE)
        return [key for key, _ in found]


def _page_key(chore: MemberJob, page: int) -> str:
    return f"{chore.key}.{page:08d}"


_TABLE = "communication.put_off"
_PREFIX = "\x1d"
"""Begins the keys among those due; no case begins so."""
_LONGEST_MS = 60_000
_PAUSES = RetryPolicy(longest_ms=_LONGEST_MS)


class DeferredEvent(msgspec.Struct, frozen=True):
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


class PartlyHandled(SourceUnavailable):
    """Some of what an event leads to has to wait; the rest is done and stays."""


class DeferredEvents:
    """All of them. Putting off costs two records."""

    def __init__(self, transaction: Transaction, due: DueTimes) -> None:
        self._transaction, self._due = transaction, due

    def put(self, event: DeferredEvent, now_ms: int, latest_ms: int = 0) -> int:
        """To be taken again, then at the latest; returns when."""
        due_ms = now_ms + _PAUSES.pause_ms(event.tries)
        if now_ms < latest_ms < due_ms:
            due_ms = latest_ms
        key = f"{event.channel}.{event.stored.position:020d}"
        self._transaction.put(_TABLE, key, event)
        self._due.set(_PREFIX + key, due_ms)
        return due_ms

    def take(self, due_key: str) -> DeferredEvent | None:
        """The event that a key among those due names, which is forgotten; None when it names
        something else, or nothing.
        """
        if not is_deferred(due_key):
            return None
        key = due_key.removeprefix(_PREFIX)
        found = self._transaction.get_struct(_TABLE, key, DeferredEvent)
        if found is not None:
            self._transaction.delete(_TABLE, key)
        return found


def is_deferred(due_key: str) -> bool:
    """Whether a key among those due is of an event, and not of a case or a member."""
    return due_key.startswith(_PREFIX)


_MEMBER = "\x1f"


def member_key(case: str, peer: str) -> str:
    """The key of a member's record, and of its entry among those due."""
    return f"{case}{_MEMBER}{peer}"


def split_key(key: str) -> tuple[str, str]:
    """The case and the peer that a key among those due names; the peer is empty for a case."""
    case, _, peer = key.partition(_MEMBER)
    return case, peer
