"""What is known about one message on its way, on two levels: the message with its stages, and each
member of a stage. [CO-8]

The state that `delivery.next_step` moves. A stage only counts its members; each member is a record
of its own, so that an outcome touches one member and the message, however large the collective.
No I/O and no clock here.

What can happen to a message on its way, and what is to be done: values. [CO-8, CO-10]
"""

from __future__ import annotations

from typing import Literal

import msgspec

PeerDelivery = Literal["to-all-channels", "at-least-one", "preferred"]
CollectiveDelivery = Literal["to-any", "to-all-members", "at-least"]
DoneWhen = Literal["sent", "answered"]
DeliveryResult = Literal["", "done", "failed", "timed_out"]
AddressStatus = Literal[
    "idle", "queued", "unknown", "handed", "confirmed", "retrying", "failed", "stopped"
]
MemberStatus = Literal["pending", "held", "refused", "reached", "lost", "discarded"]


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how far apart an address is tried: pauses double from `first_ms` up to
    `longest_ms`.

    The defaults give up after about 20 minutes; a message's time to live ends it earlier.
    """

    attempts: int = 10
    first_ms: int = 2_000
    longest_ms: int = 300_000

    def pause_ms(self, attempt: int) -> int:
        """The pause after the failure of that attempt (from 1).

        >>> [Retry().pause_ms(attempt) for attempt in (1, 2, 3, 60)]
        [2000, 4000, 8000, 300000]
        """
        return min(self.first_ms << min(attempt - 1, 30), self.longest_ms)


DEFAULT_RETRY = RetryPolicy()
FALLBACK_MS = 120_000
"""How long an address has before the next one is tried, where the peer allows fallback and sets no
time of its own."""
URGENT_FALLBACK_MS = 30_000
"""The same for an urgent message."""


class AddressState(msgspec.Struct):
    """One address of one peer and how far the message got there."""

    address: str
    state: AddressStatus = "idle"
    attempt: int = 0
    retry_at: int = 0
    failures: int = 0
    """In a row, since the last time the medium took it or the message was repeated."""


class Member(msgspec.Struct):
    """One peer who is told, as the directory had them when they were begun."""

    peer: str
    tries: list[AddressState]
    delivery: PeerDelivery = "at-least-one"
    stage: int = 0
    fate: MemberStatus = "pending"
    held_until: int = 0
    answered: bool = False
    declined: bool = False
    """They said that they cannot; what they say last counts."""
    timed_out: bool = False
    repeats: int = 0
    repeat_at: int = 0
    unknown: bool = False
    """The directory has nobody of that name."""
    fallback_after: int = 0
    """How long an address has before the next one is tried; 0 = the default."""
    fallback_at: int = 0
    """When the next address is tried, unless one took it before; 0 = not by the clock."""
    reason: str = ""
    """Why it did not reach them: what a medium or their privacy policy said last."""
    failed_lookups: int = 0
    """How often in a row the directory could not say who it is; then it is asked again later."""

    def is_reached(self) -> bool:
        """Whether the media took it as the peer's policy demands; who answered was reached."""
        if self.has_spoken():
            return True
        sent = [entry.state in ("handed", "confirmed") for entry in self.tries]
        return all(sent) and bool(sent) if self.delivery == "to-all-channels" else any(sent)

    def is_lost(self) -> bool:
        """Whether the peer's delivery policy cannot be met any more."""
        failed = [entry.state == "failed" for entry in self.tries]
        return any(failed) if self.delivery == "to-all-channels" else all(failed)

    def next_address(self) -> AddressState | None:
        """The first address that was not tried yet, or None."""
        return next((entry for entry in self.tries if entry.state == "idle"), None)

    def has_spoken(self) -> bool:
        """Whether they answered, be it that they cannot: nothing more is sent to them."""
        return self.answered or self.declined

    def due_ms(self) -> int:
        """When the clock alone changes something about this member; 0 when it does not."""
        due = [self.held_until if self.fate == "held" else 0, self.repeat_at, self.fallback_at]
        due += [entry.retry_at for entry in self.tries if entry.state == "retrying"]
        return min((moment for moment in due if moment), default=0)


class NextReceiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is asked next by escalation, and how long they have to answer; 0 = no deadline."""

    receiver: str
    answer_within: int = 0


class Stage(msgspec.Struct):
    """One receiver that was asked: its policy, how many members stand how, and the deadline."""

    receiver: str
    delivery: CollectiveDelivery
    least: int = 1
    """With `at-least`: how many have to be done."""
    answer_within: int = 0
    spreading: bool = True
    """Members are still being begun."""
    asked: int = 0
    satisfied: int = 0
    out: int = 0
    """Lost, refused or declined."""
    declined: int = 0
    answer_by: int = 0
    """0 until somebody was sent the message: nobody is late who was not asked."""
    over: bool = False
    """Its deadline passed or it was lost: the next receiver is asked."""
    given_up: str = ""
    """Why some of its members were not even begun; empty = they were, or will be."""
    reason: str = ""
    """Why the last member that could not be reached was not."""

    def needed(self) -> int:
        """How many have to be done; of `to-all-members` so far."""
        if self.delivery == "to-all-members":
            return self.asked
        return self.least if self.delivery == "at-least" else 1

    def is_met(self) -> bool:
        """Whether the collective's delivery policy is met."""
        if self.delivery == "to-all-members":
            is_whole = not (self.spreading or self.given_up)
            return is_whole and 0 < self.asked == self.satisfied
        return self.satisfied >= self.needed()

    def is_lost(self) -> bool:
        """Whether it cannot be met any more; a held member counts as pending."""
        if self.delivery == "to-all-members":
            return self.out > 0 or bool(self.given_up) or not (self.asked or self.spreading)
        return not self.spreading and self.asked - self.out < self.needed()

    def is_settled(self) -> bool:
        """Whether nobody of the stage can still change anything."""
        return not self.spreading and self.satisfied + self.out == self.asked


class DeliveryState(msgspec.Struct, kw_only=True):
    """One message from the first sending to its close; `stages` grow by escalation."""

    message: str
    done_when: DoneWhen = "sent"
    urgent: bool = False
    acknowledge: bool = True
    escalate: list[NextReceiver] = []
    repeat_every: int = 0
    repeat_most: int = 0
    """How often a message is repeated to who took it and did not answer; 0 = until the end."""
    expires: int = 0
    retry: RetryPolicy = DEFAULT_RETRY
    stages: list[Stage] = []
    waiting: int = 0
    """Members for whom the clock alone changes something."""
    result: DeliveryResult = ""
    failure_told: bool = False

    @property
    def closed(self) -> bool:
        """Whether it is decided; nothing is sent after that."""
        return self.result != ""

    def fallback_ms(self, member: Member) -> int:
        """How long an address of the member has before the next one is tried."""
        usual = URGENT_FALLBACK_MS if self.urgent else FALLBACK_MS
        return member.fallback_after or usual

    def next_due_ms(self) -> int:
        """When the clock alone changes something about the message; 0 when it does not. Members
        have their own (`Member.due_ms`).
        """
        if self.closed:
            return 0
        due = [self.expires]
        due += [stage.answer_by for stage in self.stages if not stage.over]
        return min((moment for moment in due if moment), default=0)

    def is_satisfied(self, member: Member) -> bool:
        """Whether this member counts as done: answered, or reached when that is enough; who
        declined was reached.
        """
        if member.answered:
            return True
        return self.done_when == "sent" and (member.declined or member.fate == "reached")

    def is_out(self, member: Member) -> bool:
        """Whether nothing more is to be expected of this member."""
        is_lost = member.declined or member.fate in ("lost", "refused")
        return is_lost and not self.is_satisfied(member)

    def has_succeeded(self) -> bool:
        """Whether the policy of one of those who were asked is met."""
        return any(stage.is_met() for stage in self.stages)


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
ControlSubtype = Literal["ack", "comerror", "timeout", "error"]
"""A sender gets one of `ack`, `comerror` and `timeout` about the receiver of its message. `error`
is about an additional receiver, or says that a medium gave back what was acknowledged.
"""
VisitKind = Literal["time_out", "stop"]


# --- what can happen ---


class AddReceiver(msgspec.Struct, frozen=True, tag="ask"):
    """A receiver is to be told, the first or the next by escalation; its members follow."""

    receiver: str
    delivery: CollectiveDelivery = "to-all-members"
    least: int = 1
    answer_within: int = 0


class BeginMember(msgspec.Struct, frozen=True, tag="begin"):
    """One member of the newest stage is to be told, unless a later stage began meanwhile; the
    member says which.
    """

    member: Member


class MembersBegun(msgspec.Struct, frozen=True, tag="all_begun"):
    """Everybody of a stage was begun; `found` of them, those who were asked before included."""

    stage: int
    found: int


class MembersAbandoned(msgspec.Struct, frozen=True, tag="given_up"):
    """Nobody else of a stage can be begun, for a fault that time does not mend."""

    stage: int
    reason: str


LATEST_ATTEMPT = 0
"""In an outcome: the attempt that was taken last. A medium that gives back what it took (a mail
that bounces) does not say which one it was.
"""


class AttemptOutcome(msgspec.Struct, frozen=True, tag="outcome"):
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


class MessageTick(msgspec.Struct, frozen=True, tag="tick"):
    """Time has passed for the message."""


class MemberTick(msgspec.Struct, frozen=True, tag="member_tick"):
    """Time has passed for one member."""


class TimeOutMember(msgspec.Struct, frozen=True, tag="time_up"):
    """The member's stage or the message is over; who was waited for is told so in the ledger."""


class StopMember(msgspec.Struct, frozen=True, tag="stop"):
    """The message is decided; what still waits for this member is given up."""


DeliveryInput = (
    AddReceiver
    | BeginMember
    | MembersBegun
    | MembersAbandoned
    | AttemptOutcome
    | Answer
    | MessageTick
    | MemberTick
    | TimeOutMember
    | StopMember
)


# --- what is to be done ---


class QueueDelivery(msgspec.Struct, frozen=True, tag="queue"):
    """Put one delivery to one address into its adapter's channel."""

    peer: str
    address: str
    attempt: int
    place: int = 0
    """Which of the member's addresses it is, from 0."""
    repeat: int = 0
    """How often the message was repeated to this member before."""


class LedgerNote(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
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
    result: DeliveryResult = ""
    stage: int = 0
    """From 1; 0 = the line is about the whole message."""
    receiver: str = ""
    """Who is asked next, on a line that says so."""


class Escalate(msgspec.Struct, frozen=True, tag="escalate"):
    """Ask this receiver too: give `Ask` for it, then its members."""

    receiver: str
    answer_within: int = 0


class VisitMembers(msgspec.Struct, frozen=True, tag="walk"):
    """Give every member `TimeUp` (of one stage, -1 = of all) or, to those that wait, `Stop`; in
    slices when there are many. Before the steps that follow, as far as one slice goes.
    """

    kind: VisitKind
    stage: int = -1


class NotifySender(msgspec.Struct, frozen=True, tag="tell"):
    """Tell the sender how it went."""

    subtype: ControlSubtype
    reason: str = ""


DeliveryStep = QueueDelivery | LedgerNote | Escalate | VisitMembers | NotifySender
