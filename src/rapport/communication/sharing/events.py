"""Which share an event belongs to. [CO-17]

A message goes with its receiver; what comes back about a message, a peer's answer included, goes
with its case. What is to be carried goes with the peer, what policies detected to those who know
them. A message that may bring something to peers of another share crosses: see `ordering.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.adapters.outcome_events import OUTCOME
from rapport.communication.arriving.answers import ANSWER
from rapport.communication.delivering.handling import Route, nobody_else, route_proven
from rapport.communication.sharing.shares import share_of
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.message import MESSAGE, Identifier, Message

OUTPUT = "output."
HANDED = "handed"
"""What one share decided for another's peers, until it is their turn."""
DIVIDED = ("control", "input", "detections", HANDED)
"""The engine's inputs and what is handed over; besides these every `output.<adapter>` is
divided."""
PLACE, TO = "place", "to"
"""Headers of what is handed over: where its message stands in `input`, and the channel it goes to.
"""


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
    if channel == HANDED or channel.startswith(OUTPUT):
        return Belonging(_of_peer(_TOLD.decode(event.data).peer, count))
    if channel == "input" and event.type == MESSAGE:
        sent = _SENT.decode(event.data)
        share = share_of(_with_kind(sent.receiver or sent.sender), count)
        # Who answers was told, so there is a case by now if there ever is one: all processes find
        # the same. Of what others refer to there may be none yet.
        is_of_peer = _with_kind(sent.sender).startswith("peer:")
        return Belonging(share, sent.refers_to if is_of_peer else "")
    if channel == "control" and event.type == OUTCOME:
        told = _TOLD.decode(event.data)
        if told.share.isdigit():
            return Belonging(int(told.share))
        # A medium that gives back what it took knows of no shares.
        return Belonging(_of_peer(told.peer, count), told.message)
    if channel == "control" and event.type == ANSWER:
        told = _TOLD.decode(event.data)
        return Belonging(_of_peer(told.peer, count), told.message)
    if channel == "detections":
        return Belonging(count)
    return Belonging(share_of(event.id, count))


def crosses(event: Event, share: int, count: int, route: Route = nobody_else) -> bool:
    """Whether a message of `input`, which its share handles, may bring something to peers of
    another one.
    """
    if event.type != MESSAGE:
        return False
    try:
        receiver = _SENT.decode(event.data).receiver
        others: Sequence[Identifier] = ()
        if route is not nobody_else:
            others = route_proven(route, Message.from_event(event), event.headers)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, InvalidInput):
        return False
    if any(other.kind != "component" for other in others):
        return True
    name = _with_kind(receiver) if receiver else ""
    if name.startswith("peer:"):
        return share_of(name, count) != share
    return name.startswith("collective:")


def _of_peer(peer: str, count: int) -> int:
    return share_of(f"peer:{peer}", count)


def _with_kind(name: str) -> str:
    return name if ":" in name else f"peer:{name}"


def with_place(event: Event, place: int) -> Event:
    """A delivery that says where its message stands in `input`."""
    return msgspec.structs.replace(event, headers=event.headers | {PLACE: str(place)})


def handed_over(event: Event, channel: str, place: int) -> Event:
    """A delivery as it stands in `handed`."""
    headers = event.headers | {PLACE: str(place), TO: channel}
    return msgspec.structs.replace(event, headers=headers)


def place_of(event: Event) -> int:
    """Where the message of a delivery stands in `input`; 0 when that is not said.

    >>> place_of(Event("s", "1", "t", "", 0, headers={"place": "7"}))
    7
    """
    said = event.headers.get(PLACE, "")
    return int(said) if said.isascii() and said.isdigit() else 0


def taken_over(event: Event) -> Event:
    """A delivery as it stands in its own channel."""
    if PLACE not in event.headers:
        return event
    headers = {name: said for name, said in event.headers.items() if name not in (PLACE, TO)}
    return msgspec.structs.replace(event, headers=headers)


def with_share(event: Event, share: str) -> Event:
    """A delivery that says which share hears of its outcome."""
    data = event.data[:-1] + b',"share":"' + share.encode() + b'"}'
    return msgspec.structs.replace(event, data=data)
