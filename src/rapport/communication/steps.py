"""What can happen to a message on its way, and what is to be done: values. [CO-8, CO-10]"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.communication.tracking import CollectiveDelivery, Member, Result

LedgerState = Literal[
    "refused",
    "held",
    "queued",
    "handed",
    "confirmed",
    "answered",
    "failed",
    "timed_out",
    "escalated",
    "closed",
    "unknown",
]
"""The states of the ledger; one is never reported as another."""

OutcomeState = Literal["handed", "confirmed", "failed", "unknown"]
ToldSubtype = Literal["ack", "comerror", "timeout"]


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A receiver is to be told, the first or the next by escalation; members as of now."""

    receiver: str
    members: list[Member]
    delivery: CollectiveDelivery = "to-all-members"


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """What a medium said about one attempt."""

    peer: str
    address: str
    attempt: int
    state: OutcomeState
    reason: str = ""
    retry: bool = False


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A person answered."""

    peer: str
    text: str = ""


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Time has passed."""


Input = Ask | Outcome | Answer | Tick


class Queue(msgspec.Struct, frozen=True, tag="queue"):
    """Put one delivery to one address into its adapter's channel."""

    peer: str
    address: str
    attempt: int


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Write a ledger line: about the message, a person (`peer`) or one of their addresses."""

    state: LedgerState
    peer: str = ""
    address: str = ""
    attempt: int = 0
    reason: str = ""
    answer: str = ""
    until: int = 0
    """When a held or failed delivery is tried again; 0 = not."""
    result: Result = ""


class Escalate(msgspec.Struct, frozen=True, tag="escalate"):
    """Ask this receiver too: resolve its members and hand them back as `Ask`."""

    receiver: str


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Tell the sender how it went."""

    subtype: ToldSubtype
    reason: str = ""


Step = Queue | Note | Escalate | Tell
