"""How the sender of a message hears what became of it: ACK, COMERROR, TIMEOUT, ERROR. [CO-2, CO-7]

Each is an event of `control`, which notification callbacks read, and a message of type CONTROL: one
to a peer is delivered like any other and causes no further one, one to a component is only logged,
so that the message query service finds it.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from rapport.communication.delivery_state import ControlSubtype
from rapport.communication.ledger_events import CONTROL_MESSAGE, CONTROL_PREFIX, SOURCE, event_name
from rapport.communication.transaction import Transaction
from rapport.core.event import CAUSE, Event, cause_text, make_event
from rapport.core.message import CONTROL, Identifier, Message

ENGINE = Identifier("component", "communication")
PROOF, ADAPTER = "proof", "adapter"
"""Headers of `input`: how we know who sent it, and the input adapter or door it came through."""
PROVEN_SENDER = "sender"
"""Header of `input`: the sender that is proven, where that is another than the message names."""
_PEER = "peer:"


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
    """Tells the sender of a message, once for each subtype and `about`; empty = nobody."""
    if not sender:
        return
    name = event_name(about or message, "told", subtype)
    event = make_event(
        source=SOURCE,
        id=name,
        type=CONTROL_PREFIX + subtype,
        subject=sender,
        time=now_ms,
        data={"refers_to": message, "reason": reason},
        headers={CAUSE: cause_text(message)},
    )
    transaction.emit("control", event)
    told = control_message(sender, message, subtype, reason, id=name)
    if not sender.startswith(_PEER):
        logged = control_log_event(told, is_heard=transaction.is_heard(), now_ms=now_ms)
        transaction.emit("log", logged)
    else:
        passed = told.to_event(source=SOURCE, time=now_ms, causes=(message,))
        passed.headers[PROOF] = "application"
        transaction.emit("input", passed)


def control_log_event(message: Message, *, is_heard: bool, now_ms: int) -> Event:
    """A message of type CONTROL to a component as the log keeps it, for queries. Callbacks are told
    of it by `control`, and no ledger line is about it.
    """
    receiver = str(message.receiver)
    event = message.as_event(SOURCE, now_ms, {CAUSE: cause_text(message.refers_to)})
    data = event.data[:-1] + _control_end(receiver, is_heard)
    return Event(SOURCE, message.id, CONTROL_MESSAGE, receiver, now_ms, data, event.headers)


@lru_cache(maxsize=1_024)
def _control_end(receiver: str, is_heard: bool) -> bytes:
    said = {"fate": "notified" if is_heard else "no_receiver", "receivers": [receiver]}
    return b"," + msgspec.json.encode(said)[1:]


def control_message(
    receiver: str, message: str, subtype: ControlSubtype, reason: str, *, id: str
) -> Message:
    """The message of type CONTROL that says it."""
    return Message(
        type=CONTROL,
        subtype=subtype.upper(),
        sender=ENGINE,
        id=id,
        receiver=Identifier.parse(receiver),
        content=reason,
        delivery_policy="unreliable",
        refers_to=message,
    )
