"""The durable schedule of the engine: what has to be looked at again, and when. [CO-3, CO-8, CO-9]

Three kinds of entries, each written in the transaction that causes it:

- due times of messages and members (deadlines, retries, repeats, ends of holds), ordered by time;
- events that cannot be handled while the directory fails, retried at growing intervals;
- jobs over the members of a large message, done in slices as soon as the engine is free.

Nothing is held in memory: a hundred thousand people may be held over night.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.communication.delivery_state import RetryPolicy
from rapport.communication.transaction import Transaction
from rapport.core.errors import Corrupt, SourceUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger

SLICE = 1_000
"""Members that one transaction begins, visits or deletes."""
_DUE, _JOBS = "communication.due", "communication.chores"
_PAGES, _DEFERRED = "communication.spreads", "communication.put_off"
_SEPARATOR = "\x1f"
"""Cannot occur in an event id, so that combined keys stay unambiguous."""
_DEFERRED_PREFIX = "\x1d"
"""Begins the due keys of deferred events; no key of a message begins so."""
_PAGES_AT_ONCE = 100
_PAUSES = RetryPolicy(longest_ms=60_000)
_log = get_logger(__name__)

MemberJobKind = Literal["begin", "time_out", "stop", "forget"]


class DueEntry(msgspec.Struct, frozen=True):
    """The key of a delivery record, a member or a deferred event, and when it is due."""

    due_ms: int
    key: str

    @property
    def is_deferred(self) -> bool:
        """Whether the key names a deferred event."""
        return self.key.startswith(_DEFERRED_PREFIX)


class DeferredEvent(msgspec.Struct, frozen=True):
    """An event as it was read, how many actions led to it, and how often it was tried."""

    channel: str
    stored: StoredEvent
    hops: int
    tries: int = 1
    since: int = 0
    """When it was first tried."""


class LookupCounts(msgspec.Struct):
    """How often a receiver could not be looked up since the process started."""

    put_off: int = 0
    """Deferred messages and detections, each counted once."""
    tried_again: int = 0
    """Retries of them that failed."""


class PartlyHandled(SourceUnavailable):
    """Part of what an event leads to has to wait; the rest is done and stays."""


class MemberJob(msgspec.Struct, frozen=True, kw_only=True):
    """Work on the members of a delivery, and how far it has got."""

    case: str
    """Key of the delivery record."""
    kind: MemberJobKind
    stage: int = -1
    page: int = 0
    found: int = 0
    """Names in the whole stage, for `begin`."""
    after: str = ""
    """The last member that is done, for the other kinds."""

    @property
    def key(self) -> str:
        """Key of its record: one of a kind for each stage."""
        return member_key(self.case, f"{self.kind}.{self.stage + 1:06d}")


def member_key(record: str, peer: str) -> str:
    """The key of a member's record and of its due time."""
    return f"{record}{_SEPARATOR}{peer}"


def split_key(key: str) -> tuple[str, str]:
    """The delivery record and the peer that a due key names; no peer for the record itself."""
    record, _, peer = key.partition(_SEPARATOR)
    return record, peer


class Schedule:
    """All entries. Setting a due time costs one record; looking costs what is found."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.next_ms = 0
        """When the first entry is due, or earlier; 0 = there is none."""
        self.has_jobs = True
        """Whether there may be a job that is not suspended."""
        self._suspended: set[str] = set()

    # --- due times ---

    def move(self, key: str, before_ms: int, due_ms: int) -> None:
        """Replaces a due time; 0 = none."""
        if before_ms == due_ms:
            return
        if before_ms:
            self._transaction.delete(_DUE, _due_key(before_ms, key))
        if due_ms:
            self.set(key, due_ms)

    def set(self, key: str, due_ms: int) -> None:
        """Adds a due time."""
        self._transaction.put(_DUE, _due_key(due_ms, key), b"")
        self.next_ms = min(self.next_ms, due_ms) if self.next_ms else due_ms

    def take_due(self, now_ms: int, limit: int) -> list[DueEntry]:
        """The entries due by `now_ms`, earliest first, deleted at commit. To be called at the
        beginning of a transaction.
        """
        found = [_due_entry(key) for key, _ in self._transaction.find(_DUE, limit=limit)]
        due = [entry for entry in found if entry.due_ms <= now_ms]
        for entry in due:
            self._transaction.delete(_DUE, _due_key(entry.due_ms, entry.key))
        return due

    def refresh(self) -> None:
        """Reads `next_ms` again; to be called at the end of a transaction."""
        first = self._transaction.find(_DUE, limit=1)
        self.next_ms = _due_entry(first[0][0]).due_ms if first else 0

    # --- deferred events ---

    def defer(self, event: DeferredEvent, now_ms: int, latest_ms: int = 0) -> int:
        """Keeps an event to be tried again, at `latest_ms` at the latest; returns when."""
        due_ms = now_ms + _PAUSES.pause_ms(event.tries)
        if now_ms < latest_ms < due_ms:
            due_ms = latest_ms
        key = f"{event.channel}.{event.stored.position:020d}"
        self._transaction.put(_DEFERRED, key, event)
        self.set(_DEFERRED_PREFIX + key, due_ms)
        return due_ms

    def take_deferred(self, entry: DueEntry) -> DeferredEvent | None:
        """Removes and returns a deferred event; None when it is gone. Raises Corrupt."""
        key = entry.key.removeprefix(_DEFERRED_PREFIX)
        found = self._transaction.get_struct(_DEFERRED, key, DeferredEvent)
        if found is not None:
            self._transaction.delete(_DEFERRED, key)
        return found

    # --- jobs ---

    def first_job(self) -> MemberJob | None:
        """A job to work on, or None; to be called at the beginning of a transaction. A job that
        cannot be read is suspended.
        """
        while (key := self._first_job_key()) is not None:
            try:
                return self._transaction.get_struct(_JOBS, key, MemberJob)
            except Corrupt as error:
                _log.error("job suspended", key=key, error=error.message, hint=error.hint)
                self._suspended.add(key)
        return None

    def _first_job_key(self) -> str | None:
        found = self._transaction.find(_JOBS, limit=len(self._suspended) + 1)
        key = next((key for key, _ in found if key not in self._suspended), None)
        self.has_jobs = key is not None
        return key

    def put_job(self, job: MemberJob) -> None:
        """Adds a job, or saves how far it has got."""
        self._transaction.put(_JOBS, job.key, job)
        self.has_jobs = True

    def finish_job(self, job: MemberJob) -> None:
        """Deletes a job and the names that it has not begun."""
        self._transaction.delete(_JOBS, job.key)
        after = ""
        while job.kind == "begin" and (keys := self._page_keys(job, after)):
            after = keys[-1]
            for key in keys:
                self._transaction.delete(_PAGES, key)

    def suspend_job(self, job: MemberJob) -> None:
        """Leaves a job until the next start, by when its fault may have been repaired."""
        self._suspended.add(job.key)

    def put_names(self, job: MemberJob, page: int, names: list[str]) -> None:
        """Keeps one page of the names that a job begins later, as the directory has them now."""
        self._transaction.put(_PAGES, _page_key(job, page), msgspec.msgpack.encode(names))

    def take_names(self, job: MemberJob) -> list[str] | None:
        """Removes and returns the names of the job's page; None after the last. Raises Corrupt."""
        key = _page_key(job, job.page)
        names = self._transaction.get_struct(_PAGES, key, list[str])
        if names is not None:
            self._transaction.delete(_PAGES, key)
        return names

    def _page_keys(self, job: MemberJob, after: str) -> list[str]:
        prefix = f"{job.key}."
        found = self._transaction.find(_PAGES, prefix=prefix, after=after, limit=_PAGES_AT_ONCE)
        return [key for key, _ in found]


def _due_key(due_ms: int, key: str) -> str:
    return f"{max(due_ms, 0):016d}{_SEPARATOR}{key}"


def _due_entry(due_key: str) -> DueEntry:
    moment, _, key = due_key.partition(_SEPARATOR)
    return DueEntry(int(moment), key)


def _page_key(job: MemberJob, page: int) -> str:
    return f"{job.key}.{page:08d}"
