"""Deliveries in the record store, what is due next, and which deliveries are decided.
[CO-3, CO-8, CO-9, CO-10]

A message has one record, one for its body and one for each member. Reads and writes go through the
engine's transaction; each write keeps the due time up to date. The schedule has three kinds of
entries: due times of messages and members, events that cannot be handled while the directory fails,
and jobs over the members of a large message, done in slices. None of it is held in memory: a
hundred thousand people may be held over night.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

import msgspec

from rapport.communication.actions import Effect
from rapport.communication.delivery_state import (
    AddressState,
    DeliveryState,
    Member,
    NextReceiver,
    PeerDelivery,
    RetryPolicy,
)
from rapport.communication.peers import adapter_of
from rapport.communication.texts import TextPiece
from rapport.communication.transaction import Transaction
from rapport.core.errors import Corrupt, SourceUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore, all_records

DELIVERIES = "communication.messages"
BODIES = "communication.letters"
MEMBERS = "communication.members"
SLICE = 1_000
"""Members that one transaction begins, visits or deletes."""
_DUE, _JOBS = "communication.due", "communication.chores"
_PAGES, _DEFERRED = "communication.spreads", "communication.put_off"
_SEPARATOR, _ROUTED = "\x1f", "\x1e"
"""Cannot occur in an event id, so that combined keys stay unambiguous."""
_DEFERRED_PREFIX = "\x1d"
"""Begins the due keys of deferred events; no key of a message begins so."""
_PAGES_AT_ONCE = 100
_REMEMBERED = 100_000
_PAUSES = RetryPolicy(longest_ms=60_000)
_log = get_logger(__name__)
T = TypeVar("T")

MemberJobKind = Literal["begin", "time_out", "stop", "forget"]


# --- schedule ---


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
    """Part of an event's effects has to wait; the rest is done and stays."""


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
    """All entries. Setting a due time costs one record; looking costs what it finds."""

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

    def pop_due(self, now_ms: int, limit: int) -> list[DueEntry]:
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

    def pop_deferred(self, entry: DueEntry) -> DeferredEvent | None:
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

    def pop_names(self, job: MemberJob) -> list[str] | None:
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


# --- deliveries ---


class DeliveryRecord(msgspec.Struct, kw_only=True):
    """The progress of one message, and the facts of its ledger lines."""

    tracking: DeliveryState
    message: str
    sender: str
    """Is notified of the result; empty = nobody."""
    policy: str = ""
    detection: str = ""
    situation: str = ""
    """Key of the situation whose beginning it is about."""
    routed: bool = False
    """It belongs to an additional receiver, which decides nothing about the message."""
    lines: int = 0
    """Number of ledger lines so far; it is part of the id of the next one."""
    forget_at: int = 0
    """When a closed delivery is deleted; until then late answers are still recorded."""
    asking: NextReceiver | None = None
    """The next receiver, as long as the directory does not know its members."""
    ask_at: int = 0
    """When the directory is read again."""
    failed_asks: int = 0

    @property
    def key(self) -> str:
        """Key of its record."""
        return self.tracking.message

    def due_ms(self) -> int:
        """When it has to be looked at again; 0 = only when something happens."""
        if self.forget_at:
            return self.forget_at
        due_ms = self.tracking.next_due_ms()
        return min(due_ms or self.ask_at, self.ask_at) if self.ask_at else due_ms


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part that all deliveries of a message have in common; written once."""

    text: str
    time: int
    """Time of the situation, ms UTC."""
    sent: int = 0
    """When the message was sent, ms UTC."""
    sender: str = ""
    rule_sender: str = ""
    """The sender as privacy rules see it, where it differs from `sender`."""
    type: str = ""
    subtype: str = ""
    conversation: str = ""
    refers_to: str = ""
    language: str = ""
    pieces: tuple[TextPiece, ...] = ()
    """Of a text that readers in other zones or languages see differently."""
    effect: Effect | None = None
    """The effect of an action that notifies nobody."""
    peer_delivery: PeerDelivery | None = None
    """Which addresses of a peer are used; None = as each peer says."""


def routed_key(message: str, receiver: str) -> str:
    """The key of an additional receiver's delivery record."""
    return f"{message}{_ROUTED}{receiver}"


def shown_key(key: str) -> str:
    """A record key as it may stand in an event id."""
    return key.replace(_ROUTED, ">")


class PendingRetry(msgspec.Struct, frozen=True):
    """A member whose delivery by some adapter failed and is tried again later."""

    record: str
    peer: str
    retry_at: int


def pending_retries(records: RecordStore, adapter: str) -> list[PendingRetry]:
    """Members with an attempt by this adapter that waits for its time, the earliest first. Reads
    all members of all open messages.
    """
    found = []
    for key, value in all_records(records, MEMBERS):
        member = msgspec.msgpack.decode(value, type=Member)
        waiting = [entry.retry_at for entry in member.tries if _waits_for(entry, adapter)]
        if waiting:
            found.append(PendingRetry(*split_key(key), min(waiting)))
    return sorted(found, key=lambda each: each.retry_at)


def _waits_for(entry: AddressState, adapter: str) -> bool:
    return entry.state == "retrying" and adapter_of(entry.address) == adapter


class DeliveryRecords:
    """The records of all deliveries. What is read must not be changed, only replaced."""

    def __init__(self, transaction: Transaction, schedule: Schedule) -> None:
        self._transaction, self._schedule = transaction, schedule

    def get(self, key: str) -> DeliveryRecord | None:
        """The record, or None; raises Corrupt when it cannot be read."""
        return self._transaction.get_struct(DELIVERIES, key, DeliveryRecord)

    def save(self, before: DeliveryRecord | None, record: DeliveryRecord) -> None:
        self._transaction.put(DELIVERIES, record.key, record)
        self._schedule.move(record.key, before.due_ms() if before else 0, record.due_ms())

    def delete(self, before: DeliveryRecord) -> None:
        """Deletes the record and its body; its members are deleted one by one."""
        self._schedule.move(before.key, before.due_ms(), 0)
        self._transaction.delete(DELIVERIES, before.key)
        self._transaction.delete(BODIES, before.key)

    def body(self, key: str) -> MessageBody:
        """The body of the message; an empty one when it is gone."""
        found = self._transaction.get_struct(BODIES, key, MessageBody)
        return found or MessageBody(text="", time=0)

    def save_body(self, key: str, body: MessageBody) -> None:
        self._transaction.put(BODIES, key, body)

    def member(self, record: str, peer: str) -> Member | None:
        """The member, or None; raises Corrupt when it cannot be read."""
        return self._transaction.get_struct(MEMBERS, member_key(record, peer), Member)

    def save_member(self, record: str, before: Member | None, member: Member) -> None:
        key = member_key(record, member.peer)
        self._transaction.put(MEMBERS, key, member)
        self._schedule.move(key, before.due_ms() if before else 0, member.due_ms())

    def retry_now(self, retry: PendingRetry, adapter: str, now_ms: int) -> None:
        """Makes a member's attempts by this adapter due at once."""
        before = self.member(retry.record, retry.peer)
        if before is None:
            return
        tries = [
            msgspec.structs.replace(entry, retry_at=now_ms) if _waits_for(entry, adapter) else entry
            for entry in before.tries
        ]
        self.save_member(retry.record, before, msgspec.structs.replace(before, tries=tries))

    def delete_member(self, record: str, member: Member) -> None:
        key = member_key(record, member.peer)
        self._schedule.move(key, member.due_ms(), 0)
        self._transaction.delete(MEMBERS, key)

    def members(self, record: str, *, after: str = "", limit: int) -> Iterator[Member]:
        """The next members in the order of their names."""
        prefix = member_key(record, "")
        start = member_key(record, after) if after else ""
        for key, _ in self._transaction.find(MEMBERS, prefix=prefix, after=start, limit=limit):
            found = self._transaction.get_struct(MEMBERS, key, Member)
            if found is not None:
                yield found


# --- decisions ---


class RecentIds:
    """Recent ids, each with a text about it: at least the last `most`, at most twice as many."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._newer: dict[str, str] = {}
        self._older: dict[str, str] = {}

    def add(self, id: str, about: str = "") -> None:
        self._newer[id] = about
        if len(self._newer) >= self._most:
            self._older, self._newer = self._newer, {}

    def discard(self, id: str) -> None:
        self._newer.pop(id, None)
        self._older.pop(id, None)

    def clear(self) -> None:
        self._newer.clear()
        self._older.clear()

    def about(self, id: str) -> str | None:
        """The text about an id; None when it is not remembered."""
        found = self._newer.get(id)
        return self._older.get(id) if found is None else found

    def __contains__(self, id: str) -> bool:
        return id in self._newer or id in self._older


_RECORDS = msgspec.msgpack.Decoder(DeliveryRecord)
_MEMBERS = msgspec.msgpack.Decoder(Member)


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
        """Forgets everything; after a failure only the records say what was stored."""
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
    record = _decoded(_RECORDS, kept)
    return record is not None and record.tracking.closed


def has_answered(kept: bytes) -> bool:
    """Whether a member's record shows an answer, be it a refusal."""
    member = _decoded(_MEMBERS, kept)
    return member is not None and member.has_spoken()


def _decoded(decoder: msgspec.msgpack.Decoder[T], kept: bytes) -> T | None:
    try:
        return decoder.decode(kept)
    except msgspec.DecodeError:
        return None


def _may_be_answered(kept: bytes) -> bool:
    record = _decoded(_RECORDS, kept)
    stages = record.tracking.stages if record is not None else ()
    return any(stage.satisfied or stage.declined for stage in stages)
