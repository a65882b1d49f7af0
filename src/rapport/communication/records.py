"""What is kept about messages under way: a record for the message, one for what it says, one for
each member who is told. [CO-8, CO-10]

Reads and writes go through the engine's transaction; the time at which something is due again is
kept up with each.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.communication.actions import Effect
from rapport.communication.delivery_state import DeliveryState, Member, NextReceiver, PeerDelivery
from rapport.communication.schedule import DueTimes, member_key
from rapport.communication.transaction import Transaction

DELIVERIES = "communication.messages"
BODIES = "communication.letters"
MEMBERS = "communication.members"

_ROUTED = "\x1e"
"""Neither separator may occur in an event id, so that combined keys stay unambiguous."""


class DeliveryRecord(msgspec.Struct, kw_only=True):
    """How far one message got, and what each of its ledger lines says about it."""

    tracking: DeliveryState
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


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class DeliveryRecords:
    """The records of all cases. What is read is not to be changed, only replaced."""

    def __init__(self, transaction: Transaction, due: DueTimes) -> None:
        self._transaction, self._due = transaction, due

    def case(self, key: str) -> DeliveryRecord | None:
        """The case, or None; raises Corrupt when it cannot be read."""
        return self._transaction.get_struct(DELIVERIES, key, DeliveryRecord)

    def save_case(self, before: DeliveryRecord | None, case: DeliveryRecord) -> None:
        """Keeps the case in place of what it was before."""
        self._transaction.put(DELIVERIES, case.key, case)
        self._due.move(case.key, before.due_ms() if before else 0, case.due_ms())

    def drop_case(self, before: DeliveryRecord) -> None:
        """Lets go of a case and of what it says; its members go one by one."""
        self._due.move(before.key, before.due_ms(), 0)
        self._transaction.delete(DELIVERIES, before.key)
        self._transaction.delete(BODIES, before.key)

    def letter(self, key: str) -> MessageBody:
        """What the message says; one that is gone says nothing."""
        found = self._transaction.get_struct(BODIES, key, MessageBody)
        return found or MessageBody(text="", time=0)

    def save_letter(self, key: str, letter: MessageBody) -> None:
        """Keeps what the message says."""
        self._transaction.put(BODIES, key, letter)

    def member(self, case: str, peer: str) -> Member | None:
        """The member, or None; raises Corrupt when it cannot be read."""
        return self._transaction.get_struct(MEMBERS, member_key(case, peer), Member)

    def save_member(self, case: str, before: Member | None, member: Member) -> None:
        """Keeps the member in place of what it was before."""
        key = member_key(case, member.peer)
        self._transaction.put(MEMBERS, key, member)
        self._due.move(key, before.due_ms() if before else 0, member.due_ms())

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
