"""Notifications of senders about the fate of their messages: ACK, COMERROR, TIMEOUT, ERROR.
[CO-2, CO-7]

Each is an event of `control`, which notification callbacks read, and a message of type CONTROL: one
to a peer is delivered like any other and causes no further one, one to a component is only logged,
so that the message query service finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from rapport.communication.delivery_state import ControlSubtype
from rapport.communication.ledger_events import (
    CONTROL_MESSAGE,
    CONTROL_PREFIX,
    SOURCE,
    MessageFate,
    event_name,
    logged_data,
)
from rapport.communication.transaction import Transaction
from rapport.core.event import CAUSE, Event, cause_text, make_event
from rapport.core.message import CONTROL, Identifier, Message

ENGINE = Identifier("component", "communication")
PROOF, ADAPTER = "proof", "adapter"
"""Headers of `input`: how the sender is proven, and the input adapter or endpoint."""
PROVEN_SENDER = "sender"
"""Header of `input`: the proven sender, where the message names another one."""
_PEER = "peer:"
_identifier = lru_cache(maxsize=4_096)(Identifier.parse)


def notify_sender(
    transaction: Transaction,
    sender: str,
    message: str,
    subtype: ControlSubtype,
    reason: str,
    *,
    now_ms: int,
    about: str = "",
) -> None:
    """Notifies the sender of a message, once for each subtype and `about`; empty = nobody."""
    for channel, event in notification_events(
        sender,
        message,
        subtype,
        reason,
        now_ms=now_ms,
        about=about,
        has_listeners=transaction.has_listeners(),
    ):
        transaction.emit(channel, event)


def notification_events(
    sender: str,
    message: str,
    subtype: ControlSubtype,
    reason: str,
    *,
    now_ms: int,
    about: str = "",
    has_listeners: bool,
) -> Iterator[tuple[str, Event]]:
    """The events that notify a sender, each with its channel."""
    if not sender:
        return
    name = event_name(about or message, "told", subtype)
    yield (
        "control",
        make_event(
            source=SOURCE,
            id=name,
            type=CONTROL_PREFIX + subtype,
            subject=sender,
            time=now_ms,
            data={"refers_to": message, "reason": reason},
            headers={CAUSE: cause_text(message)},
        ),
    )
    control = control_message(sender, message, subtype, reason, id=name)
    if not sender.startswith(_PEER):
        yield "log", control_log_event(control, has_listeners=has_listeners, now_ms=now_ms)
        return
    event = control.to_event(source=SOURCE, time=now_ms, causes=(message,))
    yield "input", msgspec.structs.replace(event, headers=event.headers | {PROOF: "application"})


def control_log_event(message: Message, *, has_listeners: bool, now_ms: int) -> Event:
    """A CONTROL message to a component as the log keeps it, for queries. Callbacks get it from
    `control`, and no ledger line is about it.
    """
    receiver = str(message.receiver)
    fate: MessageFate = "notified" if has_listeners else "no_receiver"
    data = logged_data(message, message.id, fate, (receiver,))
    headers = {CAUSE: cause_text(message.refers_to)}
    return Event(SOURCE, message.id, CONTROL_MESSAGE, receiver, now_ms, data, headers)


def control_message(
    receiver: str, message: str, subtype: ControlSubtype, reason: str, *, id: str
) -> Message:
    """The message of type CONTROL about another message."""
    return Message(
        type=CONTROL,
        subtype=subtype.upper(),
        sender=ENGINE,
        id=id,
        receiver=_identifier(receiver),
        content=reason,
        delivery_policy="unreliable",
        refers_to=message,
    )
