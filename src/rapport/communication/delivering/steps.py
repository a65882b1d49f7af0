"""What can happen to a message on its way, and what is to be done: values. [CO-8, CO-10]"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.communication.delivering.tracking import CollectiveDelivery, Member, Result

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
    "skipped",
]
"""The states of the ledger; one is never reported as another."""

OutcomeState = Literal["handed", "confirmed", "failed", "unknown", "dropped", "put_off"]
"""`dropped`: it was not sent, since the message was decided while it waited; `put_off`: it was not
sent, since it waited into hours in which it may not be.
"""
ToldSubtype = Literal["ack", "comerror", "timeout", "error"]
"""A sender gets one of `ack`, `comerror` and `timeout` about the receiver of its message. `error`
is about an additional receiver, or says that a medium gave back what was acknowledged.
"""
WalkKind = Literal["time_out", "stop"]


# --- what can happen ---


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A receiver is to be told, the first or the next by escalation; its members follow."""

    receiver: str
    delivery: CollectiveDelivery = "to-all-members"
    least: int = 1
    answer_within: int = 0


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """One member of the newest stage is to be told, unless a later stage began meanwhile; the
    member says which.
    """

    member: Member


class AllBegun(msgspec.Struct, frozen=True, tag="all_begun"):
    """Everybody of a stage was begun; `found` of them, those who were asked before included."""

    stage: int
    found: int


class GivenUp(msgspec.Struct, frozen=True, tag="given_up"):
    """Nobody else of a stage can be begun, for a fault that time does not mend."""

    stage: int
    reason: str


LATEST_ATTEMPT = 0
"""In an outcome: the attempt that was taken last. A medium that gives back what it took (a mail
that bounces) does not say which one it was.
"""


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """What a medium said about one attempt."""

    peer: str
    address: str
    attempt: int
    state: OutcomeState
    reason: str = ""
    retry: bool = False
    unavailable: bool = False
    """The medium knows that it cannot deliver now: the next address need not wait."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A person answered; the last answer is the one that counts."""

    peer: str
    text: str = ""
    declined: bool = False
    """They said that they cannot."""


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Time has passed for the message."""


class MemberTick(msgspec.Struct, frozen=True, tag="member_tick"):
    """Time has passed for one member."""


class TimeUp(msgspec.Struct, frozen=True, tag="time_up"):
    """The member's stage or the message is over; who was waited for is told so in the ledger."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The message is decided; what still waits for this member is given up."""


Input = Ask | Begin | AllBegun | GivenUp | Outcome | Answer | Tick | MemberTick | TimeUp | Stop


# --- what is to be done ---


class Queue(msgspec.Struct, frozen=True, tag="queue"):
    """Put one delivery to one address into its adapter's channel."""

    peer: str
    address: str
    attempt: int
    place: int = 0
    """Which of the member's addresses it is, from 0."""
    repeat: int = 0
    """How often the message was repeated to this member before."""


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Write a ledger line: about the message, a person (`peer`) or one of their addresses."""

    state: LedgerState
    peer: str = ""
    address: str = ""
    attempt: int = 0
    reason: str = ""
    answer: str = ""
    declined: bool = False
    """The answer says no."""
    until: int = 0
    """When a held or failed delivery is tried again; 0 = not."""
    result: Result = ""
    stage: int = 0
    """From 1; 0 = the line is about the whole message."""
    receiver: str = ""
    """Who is asked next, on a line that says so."""


class Escalate(msgspec.Struct, frozen=True, tag="escalate"):
    """Ask this receiver too: give `Ask` for it, then its members."""

    receiver: str
    answer_within: int = 0


class Walk(msgspec.Struct, frozen=True, tag="walk"):
    """Give every member `TimeUp` (of one stage, -1 = of all) or, to those that wait, `Stop`; in
    slices when there are many. Before the steps that follow, as far as one slice goes.
    """

    kind: WalkKind
    stage: int = -1


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Tell the sender how it went."""

    subtype: ToldSubtype
    reason: str = ""


Step = Queue | Note | Escalate | Walk | Tell
