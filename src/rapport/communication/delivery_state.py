"""State, inputs and steps of the delivery state machine, and the options of a delivery.
[CO-8, CO-10, CO-15]

The state has two levels: the message with its stages, and each member of a stage. A stage only
counts its members; each member has a record of its own, so that an outcome touches one member and
the message, however large the collective is. Options are set by an application beyond the fields of
a message; they stand in the message's event of `input` as `wishes`. No I/O and no clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.json_objects import ObjectDecoder
from rapport.core.message import Identifier

PeerDelivery = Literal["to-all-channels", "at-least-one", "preferred"]
CollectiveDelivery = Literal["to-any", "to-all-members", "at-least"]
DoneWhen = Literal["sent", "answered"]
DeliveryResult = Literal["", "done", "failed", "timed_out", "ended"]
"""`ended`: the situation that it is about ended before."""
AddressStatus = Literal[
    "idle", "queued", "unknown", "handed", "confirmed", "retrying", "failed", "stopped"
]
MemberStatus = Literal["pending", "held", "refused", "reached", "lost", "discarded"]

FALLBACK_MS = 120_000
"""How long an address has before the next one is tried, where the peer allows fallback and sets no
time of its own."""
URGENT_FALLBACK_MS = 30_000
"""The same for an urgent message."""
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
"""`dropped`: not sent, since the message was closed meanwhile; `put_off`: not sent, since quiet
hours have begun meanwhile.
"""
ControlSubtype = Literal["ack", "comerror", "timeout", "error"]
"""A sender gets one of `ack`, `comerror` and `timeout` about the receiver of its message. `error`
concerns an additional receiver, or a bounce of an acknowledged message.
"""
VisitKind = Literal["time_out", "stop"]
SENT_STATES = ("handed", "confirmed")
"""States of an attempt that the medium took."""
LATEST_ATTEMPT = 0
"""In an outcome: the last attempt that the medium took. A bounce does not say which one it was."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often an address is tried; pauses double from `first_ms` up to `longest_ms`.

    The defaults give up after about 20 minutes; a message's time to live ends it earlier.
    """

    attempts: int = 10
    first_ms: int = 2_000
    longest_ms: int = 300_000

    def pause_ms(self, attempt: int) -> int:
        """The pause after the failure of that attempt (from 1).

        >>> [RetryPolicy().pause_ms(attempt) for attempt in (1, 2, 3, 60)]
        [2000, 4000, 8000, 300000]
        """
        return min(self.first_ms << min(attempt - 1, 30), self.longest_ms)


DEFAULT_RETRY = RetryPolicy()


class AddressState(msgspec.Struct):
    """How far the message got at one address of a member."""

    address: str
    state: AddressStatus = "idle"
    attempt: int = 0
    retry_at: int = 0
    failures: int = 0
    """Consecutive failures since the medium last took it or the message was repeated."""


class Member(msgspec.Struct):
    """One peer that gets the message, as the directory had it when it was begun."""

    peer: str
    tries: list[AddressState]
    delivery: PeerDelivery = "at-least-one"
    stage: int = 0
    fate: MemberStatus = "pending"
    held_until: int = 0
    answered: bool = False
    declined: bool = False
    """The answer was a refusal; the last answer counts."""
    timed_out: bool = False
    repeats: int = 0
    repeat_at: int = 0
    unknown: bool = False
    """The directory has no peer of that name."""
    fallback_after: int = 0
    """How long an address has before the next one is tried; 0 = the default."""
    fallback_at: int = 0
    """When the next address is tried, unless a medium took it before; 0 = never."""
    reason: str = ""
    """Why it did not arrive, by a medium or a privacy rule, the last one."""
    failed_lookups: int = 0
    """Consecutive look-ups that failed; the directory is read again later."""

    def is_reached(self) -> bool:
        """Whether the media took it as the peer's policy demands, or the peer answered."""
        if self.has_spoken():
            return True
        sent = [entry.state in SENT_STATES for entry in self.tries]
        return all(sent) and bool(sent) if self.delivery == "to-all-channels" else any(sent)

    def is_lost(self) -> bool:
        """Whether the peer's delivery policy cannot be met any more."""
        failed = [entry.state == "failed" for entry in self.tries]
        return any(failed) if self.delivery == "to-all-channels" else all(failed)

    def was_notified(self) -> bool:
        """Whether the message may have reached the peer: a medium took it, or nobody knows."""
        if self.has_spoken() or self.fate == "reached":
            return True
        return any(entry.state in (*SENT_STATES, "unknown") for entry in self.tries)

    def next_address(self) -> AddressState | None:
        """The first address that was not tried yet, or None."""
        return next((entry for entry in self.tries if entry.state == "idle"), None)

    def has_spoken(self) -> bool:
        """Whether the peer answered or declined: nothing more is sent to it."""
        return self.answered or self.declined

    def due_ms(self) -> int:
        """The next due time of this member; 0 = none."""
        due = [self.held_until if self.fate == "held" else 0, self.repeat_at, self.fallback_at]
        due += [entry.retry_at for entry in self.tries if entry.state == "retrying"]
        return min((moment for moment in due if moment), default=0)


class NextReceiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The next receiver of an escalation and its time to answer; 0 = no deadline. As a step: add
    this receiver and its members.
    """

    receiver: str
    answer_within: int = 0


class Stage(msgspec.Struct):
    """One receiver of the message: its policy, counts of its members, and its deadline."""

    receiver: str
    delivery: CollectiveDelivery
    least: int = 1
    """With `at-least`: how many members have to be done."""
    answer_within: int = 0
    spreading: bool = True
    """Members are still being begun."""
    asked: int = 0
    satisfied: int = 0
    out: int = 0
    """Members that were lost, refused it or declined."""
    declined: int = 0
    answer_by: int = 0
    """0 until the message was sent to a member: nobody is late before that."""
    over: bool = False
    """Its deadline passed or it was lost: the next receiver gets the message."""
    given_up: str = ""
    """Why some of its members were not begun; empty = they were, or will be."""
    reason: str = ""
    """Why the last lost member was not reached."""

    def needed(self) -> int:
        """How many members have to be done; with `to-all-members` those begun so far."""
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
        """Whether no member of the stage can still change the result."""
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
    """How often the message is repeated to a member that does not answer; 0 = until the end."""
    expires: int = 0
    retry: RetryPolicy = DEFAULT_RETRY
    stages: list[Stage] = []
    waiting: int = 0
    """Members with a due time."""
    result: DeliveryResult = ""
    failure_told: bool = False
    closed_because: str = ""
    """Why it was closed by an input `CloseMessage`."""

    @property
    def closed(self) -> bool:
        """Whether it has a result; nothing is sent after that."""
        return self.result != ""

    def fallback_ms(self, member: Member) -> int:
        """The time of an address of the member before the next one is tried."""
        usual = URGENT_FALLBACK_MS if self.urgent else FALLBACK_MS
        return member.fallback_after or usual

    def next_due_ms(self) -> int:
        """The next due time of the message; 0 = none. Members have their own (`Member.due_ms`)."""
        if self.closed:
            return 0
        due = [self.expires]
        due += [stage.answer_by for stage in self.stages if not stage.over]
        return min((moment for moment in due if moment), default=0)

    def is_satisfied(self, member: Member) -> bool:
        """Whether this member counts as done: answered, or reached where that is enough."""
        if member.answered:
            return True
        return self.done_when == "sent" and (member.declined or member.fate == "reached")

    def is_out(self, member: Member) -> bool:
        """Whether this member is lost without being done."""
        is_lost = member.declined or member.fate in ("lost", "refused")
        return is_lost and not self.is_satisfied(member)

    def has_succeeded(self) -> bool:
        """Whether the policy of one of the stages is met."""
        return any(stage.is_met() for stage in self.stages)


# --- inputs ---


class AddReceiver(msgspec.Struct, frozen=True, tag="ask"):
    """Adds a receiver, the first or the next of an escalation; its members follow."""

    receiver: str
    delivery: CollectiveDelivery = "to-all-members"
    least: int = 1
    answer_within: int = 0


class BeginMember(msgspec.Struct, frozen=True, tag="begin"):
    """Begins one member; the member names its stage."""

    member: Member


class MembersBegun(msgspec.Struct, frozen=True, tag="all_begun"):
    """All members of a stage were begun: `found`, including those of earlier stages."""

    stage: int
    found: int


class MembersAbandoned(msgspec.Struct, frozen=True, tag="given_up"):
    """The remaining members of a stage cannot be begun, for a fault that does not pass."""

    stage: int
    reason: str


class AttemptOutcome(msgspec.Struct, frozen=True, tag="outcome"):
    peer: str
    address: str
    attempt: int
    state: OutcomeState
    reason: str = ""
    retry: bool = False
    unavailable: bool = False
    """The medium knows that it cannot deliver now: the next address need not wait."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A person's answer; the last one counts."""

    peer: str
    text: str = ""
    declined: bool = False
    """The answer is a refusal."""


class MessageTick(msgspec.Struct, frozen=True, tag="tick"):
    """The due time of the message has come."""


class MemberTick(msgspec.Struct, frozen=True, tag="member_tick"):
    """The due time of a member has come."""

    is_relieved: bool = False
    """Others are on duty now: a repeat that is due counts, but is not sent to this member."""


class TimeOutMember(msgspec.Struct, frozen=True, tag="time_up"):
    """The time of the member's stage or of the message is over."""


class CloseMessage(msgspec.Struct, frozen=True, tag="close"):
    """Nobody has to be asked any more: the situation ended, or somebody looks after it."""

    result: Literal["done", "ended"]
    reason: str


class StopMember(msgspec.Struct, frozen=True, tag="stop"):
    """The message is closed; pending attempts of this member are dropped."""


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
    | CloseMessage
)


# --- steps ---


class QueueDelivery(msgspec.Struct, frozen=True, tag="queue"):
    """Put one delivery to one address into its adapter's channel."""

    peer: str
    address: str
    attempt: int
    place: int = 0
    """Index among the member's addresses."""
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
    """The answer is a refusal."""
    until: int = 0
    """When a held or failed delivery is tried again; 0 = never."""
    result: DeliveryResult = ""
    stage: int = 0
    """Number of the stage from 1; 0 = the line is about the whole message."""
    receiver: str = ""
    """The next receiver, on a line about an escalation."""


class VisitMembers(msgspec.Struct, frozen=True, tag="walk"):
    """Apply `TimeOutMember` to every member (of one stage, -1 = of all) or `StopMember` to pending
    ones; in slices when there are many. The first slice comes before the steps that follow.
    """

    kind: VisitKind
    stage: int = -1


class NotifySender(msgspec.Struct, frozen=True, tag="tell"):
    """Notify the sender of the result."""

    subtype: ControlSubtype
    reason: str = ""


DeliveryStep = QueueDelivery | LedgerNote | NextReceiver | VisitMembers | NotifySender


# --- options of applications ---


_MARK = b',"wishes":'
LEAST_REPEAT_MS = 1_000
"""Least interval of repeats."""
_TOO_MUCH = 2**53
MOST_CHOICES, LONGEST_CHOICE = 10, 60
"""Limit of numbers and durations: more cannot be added to a time and stored."""


class DeliveryOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Options of a delivery; durations in ms. AT_LEAST(k), escalation and repeats count answers by
    default.
    """

    done_when: DoneWhen | None = None
    answer_within: int = 0
    reach: CollectiveDelivery | None = None
    least: int = 0
    escalate: tuple[NextReceiver, ...] = ()
    repeat_every: int = 0
    repeat_most: int = 0
    peer_delivery: PeerDelivery | None = None
    choices: tuple[str, ...] = ()
    """Answers that people may choose from, instead of yes."""

    def counts(self) -> DoneWhen:
        """When a member counts as done."""
        awaits = self.answer_within or self.least or self.escalate or self.repeat_every
        return self.done_when or ("answered" if awaits else "sent")


DEFAULT_OPTIONS = DeliveryOptions()


class _EventOptions(msgspec.Struct):
    wishes: DeliveryOptions = DEFAULT_OPTIONS


_DECODER = msgspec.json.Decoder(_EventOptions)
_POSTED = ObjectDecoder(
    DeliveryOptions,
    fault="its wishes cannot be read",
    code="message.bad_wishes",
    hint='such as {"least": 3, "answer_within": 600000}, durations in ms',
)


def read_options(body: bytes) -> DeliveryOptions:
    """The options as an application writes them, none for an empty body; raises InvalidInput."""
    return _POSTED.decode(body) if body else DEFAULT_OPTIONS


def with_options(event: Event, options: DeliveryOptions) -> Event:
    """A message's event with options of its delivery. Raises InvalidInput for invalid options."""
    check_options(options)
    data = msgspec.json.decode(event.data) | {"wishes": options}
    return msgspec.structs.replace(event, data=msgspec.json.encode(data))


def may_have_options(data: bytes) -> bool:
    """Whether `options_of` may find options in these data; costs nothing."""
    # Options come last, and nothing else in a message is an object.
    return data.endswith(b"}}")


def options_of(event: Event) -> DeliveryOptions:
    """The options in a message's event; free where there are none. Raises InvalidInput for invalid
    options: not every event was written by `with_options`.
    """
    if not may_have_options(event.data) or _MARK not in event.data:
        return DEFAULT_OPTIONS
    try:
        options: DeliveryOptions = _DECODER.decode(event.data).wishes
    except msgspec.DecodeError as error:
        raise InvalidInput(f"its wishes cannot be read: {error}", code="event.bad_data") from None
    check_options(options)
    return options


def check_options(options: DeliveryOptions) -> None:
    """Raises InvalidInput for invalid options."""
    numbers = [options.answer_within, options.least, options.repeat_every, options.repeat_most]
    numbers += [step.answer_within for step in options.escalate]
    if min(numbers) < 0 or max(numbers) >= _TOO_MUCH:
        raise _bad(
            "numbers and durations of a delivery are not negative, and less than 2**53",
            "durations are in milliseconds; 0 or nothing means without an end",
        )
    if 0 < options.repeat_every < LEAST_REPEAT_MS:
        raise _bad(
            f"a message cannot be repeated every {options.repeat_every} ms",
            f"give a repeat_every of at least {LEAST_REPEAT_MS} ms",
        )
    if options.repeat_most and not options.repeat_every:
        raise _bad(
            "it says how often a message is repeated, but not how far apart",
            "give repeat_every, too",
        )
    if len(options.choices) > MOST_CHOICES or len(set(options.choices)) < len(options.choices):
        raise _bad(
            "a message has too many choices, or one twice",
            f"give at most {MOST_CHOICES} different choices",
        )
    for choice in options.choices:
        if not 0 < len(choice) <= LONGEST_CHOICE or not choice.isprintable() or choice.isspace():
            raise _bad(
                f"{choice[:LONGEST_CHOICE]!r} cannot be a choice",
                f"a choice has 1 to {LONGEST_CHOICE} printable characters",
            )
    for step in options.escalate:
        if Identifier.parse(step.receiver).kind == "component":
            raise _bad(
                f"{step.receiver} cannot be asked by escalation", "name a peer or a collective"
            )


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="message.bad_wishes", hint=hint)
