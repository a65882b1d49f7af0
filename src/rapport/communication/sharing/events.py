"""Which share an event belongs to. [CO-17]

A message goes with its receiver, so that what is told to one peer stays in order; what comes back
about a message goes with its case. What is to be carried goes with the peer, what policies detected
to those who know them.
"""

from __future__ import annotations

import msgspec

from rapport.communication.adapters.outgoing.outcomes import OUTCOME
from rapport.communication.arriving.answers import ANSWER
from rapport.communication.sharing.shares import share_of
from rapport.core.event import Event
from rapport.core.message import MESSAGE

OUTPUT = "output."
DIVIDED = ("control", "input", "detections")
"""The engine's inputs; besides these every `output.<adapter>` is divided."""


class Belonging(msgspec.Struct, frozen=True):
    """The share of an event, unless the case of the message it speaks of is elsewhere."""

    share: int
    about: str = ""
    """A message whose case may be kept in another share; to be looked up."""


class _Sent(msgspec.Struct, rename={"refers_to": "refers-to"}):
    """What of a message says where it belongs."""

    sender: str = ""
    receiver: str = ""
    refers_to: str = ""


class _Told(msgspec.Struct):
    """What of an outcome, an answer or a delivery says where it belongs."""

    message: str = ""
    peer: str = ""
    share: str = ""


_SENT, _TOLD = msgspec.json.Decoder(_Sent), msgspec.json.Decoder(_Told)


def is_divided(channel: str) -> bool:
    """Whether each share reads only its own part of a channel."""
    return channel in DIVIDED or channel.startswith(OUTPUT)


def belonging(channel: str, event: Event, count: int) -> Belonging:
    """Where an event belongs; one that cannot be read goes by its id, and is set aside there."""
    try:
        return _belonging(channel, event, count)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return Belonging(share_of(event.id, count))


def _belonging(channel: str, event: Event, count: int) -> Belonging:
    if channel.startswith(OUTPUT):
        return Belonging(_of_peer(_TOLD.decode(event.data).peer, count))
    if channel == "input" and event.type == MESSAGE:
        sent = _SENT.decode(event.data)
        name = _with_kind(sent.receiver or sent.sender)
        return Belonging(share_of(name, count), sent.refers_to)
    if channel == "control" and event.type == OUTCOME:
        told = _TOLD.decode(event.data)
        if told.share.isdigit():
            return Belonging(int(told.share))
        return Belonging(_of_peer(told.peer, count))
    if channel == "control" and event.type == ANSWER:
        told = _TOLD.decode(event.data)
        return Belonging(_of_peer(told.peer, count), told.message)
    if channel == "detections":
        return Belonging(count)
    return Belonging(share_of(event.id, count))


def _of_peer(peer: str, count: int) -> int:
    return share_of(f"peer:{peer}", count)


def _with_kind(name: str) -> str:
    return name if ":" in name else f"peer:{name}"


def with_share(event: Event, share: str) -> Event:
    """A delivery that says which share hears of its outcome."""
    data = event.data[:-1] + b',"share":"' + share.encode() + b'"}'
    return msgspec.structs.replace(event, data=data)
