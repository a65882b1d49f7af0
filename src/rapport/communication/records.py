"""Deliveries in the record store: one record for a message, one for its body, one for each member.
[CO-8, CO-10]

Reads and writes go through the engine's transaction; each write keeps the due time up to date.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.communication.actions import Effect
from rapport.communication.delivery_state import (
    AddressState,
    DeliveryState,
    Member,
    NextReceiver,
    PeerDelivery,
)
from rapport.communication.peers import adapter_of
from rapport.communication.schedule import Schedule, member_key, split_key
from rapport.communication.transaction import Transaction
from rapport.store.base import RecordStore

DELIVERIES = "communication.messages"
BODIES = "communication.letters"
MEMBERS = "communication.members"
_PAGE = 1_000
_ROUTED = "\x1e"
"""Cannot occur in an event id, so that combined keys stay unambiguous."""


class DeliveryRecord(msgspec.Struct, kw_only=True):
    """How far one message has got, and what its ledger lines say about it."""

    tracking: DeliveryState
    message: str
    sender: str
    """Is notified of the result; empty = nobody."""
    policy: str = ""
    detection: str = ""
    routed: bool = False
    """It belongs to an additional receiver, which decides nothing about the message."""
    lines: int = 0
    """Number of ledger lines so far; it is part of the id of the next one."""
    forget_at: int = 0
    """When a closed delivery is deleted; until then late answers are still recorded."""
    asking: NextReceiver | None = None
    """The next receiver, as long as the directory cannot tell its members."""
    ask_at: int = 0
    """When the directory is asked again."""
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
    """What all deliveries of a message have in common; written once."""

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
    effect: Effect | None = None
    """What to do, for an action that notifies nobody."""
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
    found, after = [], ""
    while page := records.find(MEMBERS, after=after, limit=_PAGE):
        for key, value in page:
            member = msgspec.msgpack.decode(value, type=Member)
            waiting = [entry.retry_at for entry in member.tries if _waits_for(entry, adapter)]
            if waiting:
                found.append(PendingRetry(*split_key(key), min(waiting)))
        after = page[-1][0]
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
        """Writes the record in place of the one before."""
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
        """Writes the body of a message."""
        self._transaction.put(BODIES, key, body)

    def member(self, record: str, peer: str) -> Member | None:
        """The member, or None; raises Corrupt when it cannot be read."""
        return self._transaction.get_struct(MEMBERS, member_key(record, peer), Member)

    def save_member(self, record: str, before: Member | None, member: Member) -> None:
        """Writes the member in place of the one before."""
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
        """Deletes a member."""
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
