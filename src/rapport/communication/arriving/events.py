"""The events that arriving messages become: in `input`, and in `log` those that do not get there.
[CO-1, CO-12]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from rapport.communication.arriving.limits import LARGEST_EVENT
from rapport.communication.arriving.proving import Proven
from rapport.communication.delivering.telling import ADAPTER, PROOF, PROVEN_SENDER
from rapport.communication.sessions.logins import COMPONENT
from rapport.core.event import Event, make_event
from rapport.core.ids import content_id
from rapport.core.message import AUTH, Message

GIVEN = "givenid"
"""Header: the id that a peer gave its message. Ours is another, so that nobody can take the place
of somebody else's message; the same one gives the same.
"""
APPLICATION = "application"
REFUSED = "rapport.arriving.refused"
HELD = "rapport.arriving.held"
ARRIVING = "arriving"
"""Source of events that strangers caused."""
_RENEW_EVERY_MS = 600_000
"""A peer is told this often to renew, however many of its messages come."""
_SHOWN = 200


def arrived_event(known: Proven, adapter: str, new_id: Callable[[], str], now_ms: int) -> Event:
    """The message of a peer as an event of `input`."""
    message = known.message
    headers = way_headers(known.proof, adapter)
    if message.id:
        headers = headers | {GIVEN: message.id}
    if known.unique:
        id = known.unique
    elif message.id:
        id = content_id("arrived", adapter, str(message.sender), message.id)
    else:
        id = new_id()
    return _event(message, id, ARRIVING, headers, now_ms)


def own_event(
    message: Message, adapter: str, identity: str, new_id: Callable[[], str], now_ms: int
) -> Event:
    """The message of an application, or of the node itself, as an event of `input`."""
    headers = way_headers(APPLICATION, adapter, identity)
    return _event(message, message.id or new_id(), APPLICATION, headers, now_ms)


@lru_cache(maxsize=1_024)
def way_headers(proof: str, adapter: str, identity: str = "") -> dict[str, str]:
    """The same for all messages of a way: not to be changed. `identity`: that of an application
    which proved one, whatever name its messages give.
    """
    headers = {PROOF: proof, ADAPTER: adapter}
    return headers | {PROVEN_SENDER: f"component:{identity}"} if identity else headers


def renew_event(known: Proven, now_ms: int, *, may_hold: bool) -> Event:
    """What a peer is told whose token is over: the same event for all its messages of some
    minutes.
    """
    waits = " Messages wait until you have." if may_hold else ""
    told = Message(
        type=AUTH,
        subtype="FAILED",
        id=content_id("renew", known.session, str(now_ms // _RENEW_EVERY_MS)),
        sender=COMPONENT,
        receiver=known.message.sender,
        content=f"renew: your session is over, log in again.{waits}",
        conversation=known.message.conversation,
        delivery_policy="unreliable",
    )
    headers = {PROOF: APPLICATION, ADAPTER: COMPONENT.name}
    return _event(told, told.id, COMPONENT.name, headers, now_ms)


def refused_event(
    message: Message, adapter: str, reason: str, id: str, now_ms: int, *, place: str = ""
) -> Event:
    """The line of `log` about a message that did not get in. It has no content: a refused message
    is nobody's to read; `place` is where in it the fault is.
    """
    return _line(REFUSED, message, adapter, id, now_ms, reason=reason, place=place)


def held_event(event: Event, message: Message, adapter: str, id: str, now_ms: int) -> Event:
    """The line of `log` about a message that waits for its peer to log in again."""
    return _line(HELD, message, adapter, id, now_ms, held=event.id)


def event_fault(event: Event) -> str:
    """The code for an event that no channel would take; empty when it would."""
    return "message.too_long" if len(event.data) > LARGEST_EVENT else ""


def _event(message: Message, id: str, source: str, headers: dict[str, str], now_ms: int) -> Event:
    named = message if message.id == id else msgspec.structs.replace(message, id=id)
    return named.as_event(source, now_ms, headers)


def _line(type: str, message: Message, adapter: str, id: str, now_ms: int, **said: str) -> Event:
    about = {
        "adapter": adapter,
        "sender": str(message.sender),
        "receiver": str(message.receiver or ""),
        "type": message.type,
        "subtype": message.subtype,
        "given": message.id,
        "refers_to": message.refers_to,
    }
    data = {name: _shown(value) for name, value in (about | said).items() if value}
    subject = _shown(str(message.sender))
    return make_event(source=ARRIVING, id=id, type=type, subject=subject, time=now_ms, data=data)


def _shown(text: str) -> str:
    """What strangers wrote, as it may stand in an event."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])
