"""Events of the ledger: messages and every change of their deliveries, as `log` keeps them.
[CO-10, CO-12]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from rapport.channel.validation import MAX_DATA_BYTES
from rapport.communication.delivery_state import (
    Answer,
    DeliveryOptions,
    LedgerNote,
)
from rapport.communication.peers import adapter_of, shown_address
from rapport.communication.records import DeliveryRecord, shown_key
from rapport.core.detection import Detection
from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, MAX_NAME, Event, cause_text, content_id, make_event
from rapport.core.message import (
    MESSAGE,
    MESSAGE_CACHE,
    Message,
    MessagePolicy,
)

SOURCE = "communication"
DELIVERY_PREFIX = "rapport.delivery."
"""Ledger lines are of type `rapport.delivery.<state>`."""
ANSWER_REFUSED = "rapport.answer.refused"
LARGEST_EVENT = MAX_DATA_BYTES - 16_384
"""Bytes of a message's event in `input`; the additions of the log still fit into an event."""
LONGEST_ANSWER = 2_000
"""Characters of an answer that the ledger shows."""
UNMAPPED = "action.unmapped"
"""Begins the reason of a line without a message: the site has no action for the phrase."""
CONTROL_PREFIX = "rapport.control."
CONTROL_MESSAGE = "rapport.message.control"
"""Type of the event in `log` of a CONTROL message to a component."""

MessageFate = Literal[
    "queued", "notified", "no_receiver", "forwarded", "failed", "refused", "skipped"
]
"""The fate of a message when it was handled: its deliveries began, it went to components, it had no
receiver, it went to another service, no delivery could begin, its content was refused, or it was
recorded and not carried out."""

OPEN = "open"
ROUTED = "routed"
"""State of a message that only routing rules gave to people: it is not tracked."""

_ENCODER = msgspec.json.Encoder()

FATE = "fate"
"""Header of a message's event in `log` when notification callbacks get it."""
PROOF = "proof"
"""Header of `input`: how the sender is proven."""
ADAPTER = "adapter"
"""Header of `input`: the input adapter or endpoint."""
PROVEN_SENDER = "sender"
"""Header of `input`: the proven sender, where the message names another one."""


@lru_cache(maxsize=16_384)
def ledger_address(address: str) -> str:
    """The address as the ledger shows it: without secrets."""
    return shown_address(address)


def state_when_handled(fate: str, receiver: str) -> str:
    """The state of a message by its own event alone: `open` while it is tracked.

    >>> [state_when_handled("queued", each) for each in ("peer:ana", "component:app", "")]
    ['open', 'routed', 'routed']
    >>> state_when_handled("notified", "component:app")
    'notified'
    """
    if fate not in ("", "queued"):
        return fate
    is_tracked = receiver.startswith(("peer:", "collective:"))
    return OPEN if is_tracked or not fate else ROUTED


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The data of one ledger event. Addresses are in their shown form: no secrets."""

    message: str
    policy: str = ""
    detection: str = ""
    peer: str = ""
    address: str = ""
    adapter: str = ""
    attempt: int = 0
    reason: str = ""
    answer: str = ""
    declined: bool = False
    """The answer is a refusal: nothing more is sent to the person, and the message stays open."""
    until: int = 0
    result: str = ""
    """Set on the line that closes the message, which names a peer for a message of the fast path.
    """
    receiver: str = ""
    """The receiver through which the peer gets it, or the next one (`escalated`)."""
    stage: int = 0
    """Number of that receiver, from 1; 0 = not given."""
    queued: int = 0
    """When the delivery was queued, on a line that stands for `queued` as well."""


def event_name(*parts: str) -> str:
    """An id that joins ids: readable where it is short enough, else a hash.

    >>> event_name("m1", "l", "3")
    'm1.l.3'
    """
    name = ".".join(parts)
    return name if len(name) < MAX_NAME and name.isprintable() else content_id(*parts)


def ledger_event(
    line: LedgerLine, state: str, *, id: str, now_ms: int, causes: Sequence[str]
) -> Event:
    """A line as an event; its subject is the message."""
    return Event(
        source=SOURCE,
        id=id,
        type=DELIVERY_PREFIX + state,
        subject=line.message,
        time=now_ms,
        data=_ENCODER.encode(line),
        headers={CAUSE: cause_text(*causes)},
    )


def line_event(
    case: DeliveryRecord, note: LedgerNote, *, number: int, now_ms: int, cause: str
) -> Event:
    """The ledger line of that number of a delivery; its causes are the message and `cause`."""
    message = case.message
    stage = case.tracking.stages[note.stage - 1].receiver if note.stage else ""
    line = LedgerLine(
        message=message,
        policy=case.policy,
        detection=case.detection,
        peer=note.peer,
        address=ledger_address(note.address) if note.address else "",
        adapter=adapter_of(note.address),
        attempt=note.attempt,
        reason=note.reason,
        answer=note.answer,
        declined=note.declined,
        until=note.until,
        result=note.result,
        receiver=note.receiver or stage,
        stage=note.stage,
    )
    name = event_name(shown_key(case.tracking.message), "l", str(number))
    causes = [message, cause] if cause else [message]
    return ledger_event(line, note.state, id=name, now_ms=now_ms, causes=causes)


class LoggedData(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    gc=False,
    rename={
        "conversation": "conversation-id",
        "delivery_policy": "delivery-policy",
        "refers_to": "refers-to",
        "options": "wishes",
    },
):
    """The data of a message's event in `log`: the message, and what became of it. The event of a
    fast-path message stands for its line `queued`, that of an answer for the line `answered` of the
    message that it refers to.
    """

    id: str
    type: str
    subtype: str
    sender: str
    receiver: str = ""
    conversation: str = ""
    content: str = ""
    ttl: int = 0
    language: str = ""
    delivery_policy: MessagePolicy = "acknowledged"
    refers_to: str = ""
    urgent: bool = False
    options: DeliveryOptions | None = None
    fate: str = ""
    receivers: tuple[str, ...] | None = None
    peer: str = ""
    """With address and adapter: of the only delivery of a fast-path message."""
    address: str = ""
    adapter: str = ""
    answered: int = 0
    """When it answered the message that it refers to."""
    declined: bool = False
    policy: str = ""
    detection: str = ""

    def queued_line(self, message: str) -> LedgerLine | None:
        """The line `queued`, if the event stands for it."""
        if not self.peer:
            return None
        return LedgerLine(
            message=message,
            peer=self.peer,
            address=self.address,
            adapter=self.adapter,
            attempt=1,
            receiver=self.receiver,
            stage=1,
        )

    def answered_line(self) -> LedgerLine | None:
        """The line `answered` of another message, if the event stands for it."""
        if not self.answered:
            return None
        return LedgerLine(
            message=self.refers_to,
            peer=self.sender.removeprefix("peer:"),
            answer=self.content[:LONGEST_ANSWER],
            declined=self.declined,
        )


def logged_data(
    message: Message,
    id: str,
    fate: MessageFate,
    receivers: tuple[str, ...],
    *,
    options: DeliveryOptions | None = None,
    peer: str = "",
    address: str = "",
    adapter: str = "",
    answered: int = 0,
    declined: bool = False,
) -> bytes:
    """The data of a message's event in `log`."""
    sender, receiver = message.sender, message.receiver
    return _ENCODER.encode(
        LoggedData(
            id,
            message.type,
            message.subtype,
            f"{sender.kind}:{sender.name}",
            f"{receiver.kind}:{receiver.name}" if receiver is not None else "",
            message.conversation,
            message.content,
            message.ttl,
            message.language,
            message.delivery_policy,
            message.refers_to,
            message.urgent,
            options,
            fate,
            receivers,
            peer,
            address,
            adapter,
            answered,
            declined,
        )
    )


def logged_event(event: Event, id: str, message: Message, data: bytes, notify_of: str) -> Event:
    """The event in `log` of a message that `event` brought to `input`. `notify_of`: notification
    callbacks are called with the message, which has this fate; empty = they are not.
    """
    headers = event.headers
    if notify_of:
        MESSAGE_CACHE.note(data, message if message.id == id else replace(message, id=id))
        headers = headers | {FATE: notify_of}
    receiver = str(message.receiver) if message.receiver is not None else ""
    return Event(SOURCE, id, MESSAGE, receiver, event.time, data, headers)


def logged_data_of(event: Event) -> LoggedData | None:
    """The data of a message's event in `log`; None for an event of another kind or writer."""
    if event.type != MESSAGE or event.source != SOURCE:
        return None
    try:
        data: LoggedData = event.payload_as(LoggedData)
    except InvalidInput:
        return None
    return data


def unmapped_event(detection: str, policy: str, phrase: str, *, now_ms: int) -> Event:
    """The ledger line of an action phrase for which the site has no action."""
    message = content_id("message", detection, phrase, "unmapped")
    line = LedgerLine(
        message=message,
        policy=policy,
        detection=detection,
        reason=f"{UNMAPPED}: the site has no [actions.{phrase!r}]",
    )
    name = content_id("ledger", message, "unmapped")
    return ledger_event(line, "failed", id=name, now_ms=now_ms, causes=[detection])


def action_event(
    message: Message, detection: Detection, cause: str, fate: MessageFate, *, now_ms: int
) -> Event:
    """The event in `log` of an action's message; `cause` is the id of the detection's event."""
    return message.to_event(
        source=SOURCE,
        time=now_ms,
        causes=(cause,),
        policy=detection.policy,
        detection=cause,
        happened=detection.time,
        fate=fate,
        receivers=[str(message.receiver)],
    )


def refused_events(
    message: Message, detection: Detection, cause: str, reason: str, *, now_ms: int
) -> list[Event]:
    """The message of an action that is not sent, and the ledger line that closes it."""
    line = LedgerLine(
        message=message.id, policy=detection.policy, detection=cause, reason=reason, result="failed"
    )
    name = content_id("ledger", message.id, "refused")
    return [
        action_event(message, detection, cause, "refused", now_ms=now_ms),
        ledger_event(line, "closed", id=name, now_ms=now_ms, causes=[message.id, cause]),
    ]


def held_event(message: str, reason: str, until: int, *, now_ms: int) -> Event:
    """The ledger line of a message that waits because its receiver cannot be looked up."""
    line = LedgerLine(message=message, reason=reason, until=until)
    name = content_id("ledger", message, "held", reason)
    return ledger_event(line, "held", id=name, now_ms=now_ms, causes=[message])


def skipped_events(
    message: Message, detection: Detection, cause: str, reason: str, *, now_ms: int
) -> list[Event]:
    """The message of an action that is recorded and not carried out, and the ledger lines of its
    receiver and of its close.
    """
    peer = str(message.receiver).removeprefix("peer:")
    line = LedgerLine(
        message=message.id, policy=detection.policy, detection=cause, reason=reason, peer=peer
    )
    closing = replace(line, peer="", result="skipped")
    lines = [
        ledger_event(
            one,
            state,
            id=content_id("ledger", message.id, "skipped", state),
            now_ms=now_ms,
            causes=[message.id, cause],
        )
        for one, state in ((line, "skipped"), (closing, "closed"))
    ]
    return [action_event(message, detection, cause, "skipped", now_ms=now_ms), *lines]


def refused_answer_event(message: str, peer: str, reason: str, *, cause: str, now_ms: int) -> Event:
    """An answer that does not count: forged, or to a message that was not sent."""
    return make_event(
        source=SOURCE,
        id=content_id("answer refused", cause),
        type=ANSWER_REFUSED,
        subject=message[:200] if message.isprintable() else "",
        time=now_ms,
        data={"message": message[:200], "peer": peer[:200], "reason": reason},
        headers={CAUSE: cause_text(cause)},
    )


def answered_event(message: str, answer: Answer, cause: str, now_ms: int) -> Event:
    """The ledger line of an answer to a message without a delivery record."""
    line = LedgerLine(
        message=message, peer=answer.peer, answer=answer.text, declined=answer.declined
    )
    name = event_name(cause, "answers")
    return ledger_event(line, "answered", id=name, now_ms=now_ms, causes=(message, cause))
