"""What is kept about messages under way: a record for the message, one for what it says, one for
each member who is told. [CO-8, CO-10]

Reads and writes go through the engine's transaction; the time at which something is due again is
kept up with each.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.communication.delivering.due import Due
from rapport.communication.delivering.tracking import (
    Member,
    NextReceiver,
    PeerDelivery,
    Tracking,
    Try,
)
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.effects import Effect
from rapport.communication.peers import adapter_of
from rapport.store.base import RecordStore

CASES = "communication.messages"
LETTERS = "communication.letters"
MEMBERS = "communication.members"
_PAGE = 1_000
_ROUTED = "\x1e"
_MEMBER = "\x1f"
"""Neither may stand in an event's id, so that keys made with them are never taken for others."""


class Case(msgspec.Struct, kw_only=True):
    """How far one message got, and what each of its ledger lines says about it."""

    tracking: Tracking
    message: str
    sender: str
    """Who is told how it went; empty = nobody."""
    policy: str = ""
    detection: str = ""
    routed: bool = False
    """An additional receiver's: it decides nothing about the message."""
    lines: int = 0
    """Ledger lines written so far; numbers them, so that each has an id of its own."""
    forget_at: int = 0
    """When a closed case is let go of; until then a late answer is still written down."""
    asking: NextReceiver | None = None
    """Who is to be asked next as soon as the directory can say who that is."""
    ask_at: int = 0
    """When it is asked for them again."""
    failed_asks: int = 0

    @property
    def key(self) -> str:
        """Names its record."""
        return self.tracking.message

    def due_ms(self) -> int:
        """When it has to be looked at again; 0 = only when something happens."""
        if self.forget_at:
            return self.forget_at
        due_ms = self.tracking.next_due_ms()
        return min(due_ms or self.ask_at, self.ask_at) if self.ask_at else due_ms


class Letter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every delivery of a message says; written once."""

    text: str
    time: int
    """When the situation was, ms UTC."""
    sent: int = 0
    """When the message was sent; ms UTC."""
    sender: str = ""
    rule_sender: str = ""
    """The sender as privacy policies see it, where that is another than `sender`."""
    type: str = ""
    subtype: str = ""
    conversation: str = ""
    refers_to: str = ""
    language: str = ""
    effect: Effect | None = None
    """What is done, for an action that tells nobody."""
    peer_delivery: PeerDelivery | None = None
    """By which of their addresses people are told; None = what each of them says."""


def routed_key(message: str, receiver: str) -> str:
    """The key of the case of an additional receiver."""
    return f"{message}{_ROUTED}{receiver}"


def shown_key(key: str) -> str:
    """A case's key as it may stand in an event's id."""
    return key.replace(_ROUTED, ">")


def member_key(case: str, peer: str) -> str:
    """The key of a member's record, and of its entry among those due."""
    return f"{case}{_MEMBER}{peer}"


def split_key(key: str) -> tuple[str, str]:
    """The case and the peer that a key among those due names; the peer is empty for a case."""
    case, _, peer = key.partition(_MEMBER)
    return case, peer


class PendingRetry(msgspec.Struct, frozen=True):
    """A member whose delivery by some adapter failed and is tried again later."""

    case: str
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


def _waits_for(entry: Try, adapter: str) -> bool:
    return entry.state == "retrying" and adapter_of(entry.address) == adapter


class CaseRecords:
    """The records of all cases. What is read is not to be changed, only replaced."""

    def __init__(self, transaction: Transaction, due: Due) -> None:
        self._transaction, self._due = transaction, due

    def case(self, key: str) -> Case | None:
        """The case, or None; raises Corrupt when it cannot be read."""
        return self._transaction.get_struct(CASES, key, Case)

    def save_case(self, before: Case | None, case: Case) -> None:
        """Keeps the case in place of what it was before."""
        self._transaction.put(CASES, case.key, case)
        self._due.move(case.key, before.due_ms() if before else 0, case.due_ms())

    def drop_case(self, before: Case) -> None:
        """Lets go of a case and of what it says; its members go one by one."""
        self._due.move(before.key, before.due_ms(), 0)
        self._transaction.delete(CASES, before.key)
        self._transaction.delete(LETTERS, before.key)

    def letter(self, key: str) -> Letter:
        """What the message says; one that is gone says nothing."""
        found = self._transaction.get_struct(LETTERS, key, Letter)
        return found or Letter(text="", time=0)

    def save_letter(self, key: str, letter: Letter) -> None:
        """Keeps what the message says."""
        self._transaction.put(LETTERS, key, letter)

    def member(self, case: str, peer: str) -> Member | None:
        """The member, or None; raises Corrupt when it cannot be read."""
        return self._transaction.get_struct(MEMBERS, member_key(case, peer), Member)

    def save_member(self, case: str, before: Member | None, member: Member) -> None:
        """Keeps the member in place of what it was before."""
        key = member_key(case, member.peer)
        self._transaction.put(MEMBERS, key, member)
        self._due.move(key, before.due_ms() if before else 0, member.due_ms())

    def retry_now(self, retry: PendingRetry, adapter: str, now_ms: int) -> None:
        """Makes a member's attempts by this adapter due at once."""
        before = self.member(retry.case, retry.peer)
        if before is None:
            return
        tries = [
            msgspec.structs.replace(entry, retry_at=now_ms) if _waits_for(entry, adapter) else entry
            for entry in before.tries
        ]
        self.save_member(retry.case, before, msgspec.structs.replace(before, tries=tries))

    def drop_member(self, case: str, member: Member) -> None:
        """Lets go of a member."""
        key = member_key(case, member.peer)
        self._due.move(key, member.due_ms(), 0)
        self._transaction.delete(MEMBERS, key)

    def members(self, case: str, *, after: str = "", limit: int) -> Iterator[Member]:
        """The next members in the order of their names, as this transaction sees those that were
        there before it began.
        """
        prefix = member_key(case, "")
        start = member_key(case, after) if after else ""
        for key, _ in self._transaction.find(MEMBERS, prefix=prefix, after=start, limit=limit):
            found = self._transaction.get_struct(MEMBERS, key, Member)
            if found is not None:
                yield found
