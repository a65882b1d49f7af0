"""Where each arriving message goes: in, held, or refused with a reason; pure but for what it has
counted, time is an argument. [CO-1, CO-11]

`Arrivals` proves the senders first and writes afterwards what is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rapport.communication.arriving.events import (
    APPLICATION,
    ARRIVING,
    arrived_event,
    event_fault,
    held_event,
    own_event,
    refused_event,
    renew_event,
    way_headers,
)
from rapport.communication.arriving.limits import (
    Allowances,
    ArrivalSettings,
    SeenSeals,
    shape_fault,
)
from rapport.communication.arriving.proving import EXPIRED, Proof, Proven, Trusted, vouches
from rapport.communication.arriving.usual import LEAST_LIMIT, usual_events
from rapport.communication.content_rules import AnyContent, ContentFault, Contents
from rapport.communication.sessions.seals import FRESH_MS, INVALID
from rapport.core.encoded_batch import EncodedBatch
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.message import AUTH, CONTROL, MESSAGEINFO, Message

TOO_FAST = "message.too_fast"
_STRANGERS, _FAULTY = "", "?"
"""Who pays for messages that prove nothing, and for those that are refused; names of no peer."""


class Arrived(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one message: it is in `input` for good, or why not."""

    id: str = ""
    accepted: bool
    proof: Proof = "none"
    reason: str = ""
    """A code for the outside: whatever is wrong with a token, it is `session.invalid`."""
    fault: ContentFault | None = None
    """Where and why the content does not fit the schema of its type."""
    held: bool = False
    """Not in `input` yet: it waits for its peer to log in again."""
    reply: Message | None = None
    """The answer to an AUTH REQUEST, for its asker alone."""

    @property
    def why(self) -> str:
        """The reason for who reads it later."""
        return f"{self.reason}: {self.fault.message}" if self.fault is not None else self.reason

    def __repr__(self) -> str:
        return f"Arrived(id={self.id!r}, accepted={self.accepted}, reason={self.reason!r})"


class Work(msgspec.Struct):
    """What is to be done about one batch."""

    events: list[Event] = []
    """Those that go to `input`."""
    lines: list[Event] = []
    """What `log` is told."""
    held: list[tuple[str, Event]] = []
    sealed: list[str] = []
    """Ids that seals gave."""


class Sorting:
    """Holds what senders may still send, and the seals that came lately."""

    def __init__(
        self,
        settings: ArrivalSettings,
        new_id: Callable[[], str],
        contents: Contents | None = None,
        new_ids: Callable[[int], Sequence[str]] | None = None,
    ) -> None:
        """`contents`: None = any content of any type is taken. `new_ids`: many ids at once."""
        self._settings, self._new_id = settings, new_id
        self._new_ids = new_ids or (lambda count: [new_id() for _ in range(count)])
        self._contents = contents or AnyContent()
        self._takes_any = isinstance(self._contents, AnyContent)
        self._has_usual = settings.most_bytes >= LEAST_LIMIT
        self._allowances = Allowances(settings.rate, settings.burst)
        # A clock ahead by as much as is allowed makes a seal last twice as long.
        self._seals = SeenSeals(2 * FRESH_MS)

    # --- many at once ---

    def own_events(
        self, messages: Sequence[Message], adapter: str, identity: str, now_ms: int
    ) -> Sequence[Event]:
        """As `own` for each; raises InvalidInput for the first that cannot be sent."""
        found = self._usual(messages, APPLICATION, APPLICATION, adapter, now_ms, identity)
        if isinstance(found, EncodedBatch) and not any(map(self._misfits, messages)):
            return found
        return [
            self.own(message, adapter, identity, now_ms)
            if event is None or self._misfits(message)
            else event
            for message, event in zip(messages, found, strict=True)
        ]

    def vouched_events(
        self, messages: Sequence[Message], adapter: str, trusted: Trusted, now_ms: int
    ) -> Sequence[Event | None]:
        """The events of messages that come in on the medium's word for their senders, the usual
        way; None for those that are to be proven and sorted one by one.
        """
        found = self._usual(messages, ARRIVING, "medium", adapter, now_ms)
        is_free = self._takes_any and not self._settings.rate
        if isinstance(found, EncodedBatch):
            let_in = [
                message.sender.kind == "peer" and vouches(trusted, message) if is_free
                else self._is_let_in(message, adapter, trusted, now_ms)
                for message in messages
            ]  # fmt: skip
            if all(let_in):
                return found
            return [event if may else None for event, may in zip(found, let_in, strict=True)]
        return [
            event if event is not None and self._is_let_in(message, adapter, trusted, now_ms)
            else None
            for message, event in zip(messages, found, strict=True)
        ]  # fmt: skip

    def _usual(
        self,
        messages: Sequence[Message],
        source: str,
        proof: str,
        adapter: str,
        now_ms: int,
        identity: str = "",
    ) -> Sequence[Event | None]:
        if not self._has_usual:
            return [None] * len(messages)
        ids = self._new_ids(len(messages))
        return usual_events(messages, ids, source, way_headers(proof, adapter, identity), now_ms)

    def _is_let_in(self, message: Message, adapter: str, trusted: Trusted, now_ms: int) -> bool:
        """Whether nothing is to be said against a message of the usual form."""
        if message.sender.kind != "peer" or self._misfits(message):
            return False
        if not vouches(trusted, message):
            return False
        if not self._settings.rate:
            return True
        return self._allowances.takes(adapter, f"peer:{message.sender.name}", now_ms)

    def _misfits(self, message: Message) -> bool:
        return not self._takes_any and self._contents.fault(message) is not None

    # --- one by one ---

    def form_fault(self, message: Message) -> str:
        """Why a message cannot come from any peer, as a code; empty when it can."""
        shape = shape_fault(message, self._settings)
        if shape is not None:
            return shape.code
        if message.sender.kind != "peer":
            return "message.not_from_a_peer"
        # What the node itself says about messages cannot be said from outside.
        is_asking = message.type == MESSAGEINFO and message.subtype == "REQUEST"
        if message.type in (CONTROL, AUTH, MESSAGEINFO) and not is_asking:
            return "message.reserved_type"
        return ""

    def _right_fault(self, known: Proven) -> str:
        """Why this proof is not enough for this message; empty when it is."""
        receiver = known.message.receiver
        is_outward = receiver is not None and receiver.kind != "component"
        if known.proof == "answer" and is_outward:
            return "message.only_answers"
        if known.proof == "none":
            needed = self._settings.unproven
            if needed == "refuse" or (needed == "inward" and is_outward):
                return "message.not_proven"
        return ""

    def sort(self, known: Proven, adapter: str, now_ms: int, work: Work) -> Arrived:
        """Where one message goes; what is to be written is added to `work`."""
        fault = known.fault or self._right_fault(known)
        is_expired = fault == EXPIRED
        if self._settings.rate and not self._may_pass(known, fault, adapter, now_ms, work):
            return Arrived(accepted=False, reason=TOO_FAST)
        if fault and not is_expired:
            work.lines.append(self.refused(known.message, adapter, fault, now_ms))
            return Arrived(accepted=False, reason=_told(fault))
        if misfit := self._contents.fault(known.message):
            line = self.refused(known.message, adapter, misfit.code, now_ms, misfit)
            work.lines.append(line)
            return Arrived(accepted=False, reason=misfit.code, fault=misfit)
        event = arrived_event(known, adapter, self._new_id, now_ms)
        if too_large := event_fault(event):
            work.lines.append(self.refused(known.message, adapter, too_large, now_ms))
            return Arrived(accepted=False, reason=too_large)
        if is_expired:
            return self._put_off(known, event, adapter, now_ms, work)
        if known.unique:
            work.sealed.append(event.id)
        if event.id not in self._seals:
            work.events.append(event)
        return Arrived(id=event.id, accepted=True, proof=known.proof)

    def _may_pass(self, known: Proven, fault: str, adapter: str, now_ms: int, work: Work) -> bool:
        payer = _payer(known, fault)
        if self._allowances.takes(adapter, payer, now_ms):
            return True
        if self._allowances.is_first_refusal(adapter, payer):
            work.lines.append(self.refused(known.message, adapter, TOO_FAST, now_ms))
        return False

    def _put_off(
        self, known: Proven, event: Event, adapter: str, now_ms: int, work: Work
    ) -> Arrived:
        """The message of a peer whose session is over: held or refused, and the peer is told."""
        may_hold, message = self._settings.on_expired == "hold", known.message
        work.events.append(renew_event(known, now_ms, may_hold=may_hold))
        if not may_hold:
            work.lines.append(self.refused(message, adapter, EXPIRED, now_ms))
            return Arrived(accepted=False, reason=INVALID)
        work.held.append((message.sender.name, event))
        work.lines.append(held_event(event, message, adapter, self._new_id(), now_ms))
        return Arrived(id=event.id, accepted=False, held=True, reason=INVALID)

    def may_ask(self, adapter: str, now_ms: int) -> bool:
        """Whether one more login may be tried by this way, and counts it."""
        return self._allowances.takes(adapter, _STRANGERS, now_ms)

    def note_written(self, work: Work, now_ms: int) -> None:
        """What is in `input` for good: copies of sealed messages have no effect from now on."""
        for id in work.sealed:
            self._seals.note(id, now_ms)

    def refused(
        self,
        message: Message,
        adapter: str,
        fault: str,
        now_ms: int,
        misfit: ContentFault | None = None,
    ) -> Event:
        """The line of `log` about a message that did not get in."""
        place = misfit.place if misfit is not None else ""
        return refused_event(message, adapter, fault, self._new_id(), now_ms, place=place)

    def own(self, message: Message, adapter: str, identity: str, now_ms: int) -> Event:
        """The event of an application's message; raises InvalidInput for what cannot be sent."""
        if asks_for_session(message):
            raise InvalidInput(
                "credentials do not go through `input`: a log keeps what it is given",
                code="auth.not_through_input",
                hint="call Authenticating.log_in, or POST /sessions",
            )
        fault = shape_fault(message, self._settings)
        if fault is not None:
            raise fault
        if misfit := self._contents.fault(message):
            raise misfit.as_error()
        event = own_event(message, adapter, identity, self._new_id, now_ms)
        if code := event_fault(event):
            raise InvalidInput(
                "the message does not fit into an event",
                code=code,
                hint="send a link to what is large",
            )
        return event


def asks_for_session(message: Message) -> bool:
    """Whether a message is a login."""
    return message.type == AUTH and message.subtype == "REQUEST"


def _payer(known: Proven, fault: str) -> str:
    """Whose allowance a message is taken from: a name that anybody could write is nobody's."""
    if fault and fault != EXPIRED:
        return _FAULTY
    return _STRANGERS if known.proof == "none" else f"peer:{known.message.sender.name}"


def _told(fault: str) -> str:
    return INVALID if fault.startswith(("session.", "seal.")) else fault
