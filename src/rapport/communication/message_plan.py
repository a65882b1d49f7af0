"""Decides what happens to a message: algorithm 2.2 of the source. Pure. [CO-7, CO-12]

Only the receiver that the message names is tracked; receivers that routing rules add get it, too,
but decide nothing. Components, and a message without any receiver, go to notification callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import msgspec

from rapport.communication.ledger_events import (
    LARGEST_EVENT,
    PROOF,
    PROVEN_SENDER,
    MessageFate,
)
from rapport.core.event import Event
from rapport.core.message import AUTH, MESSAGEINFO, Identifier, Message

Route = Callable[[Message], Sequence[Identifier]]
"""Returns the additional receivers of a message: each once, in a fixed order."""

FORWARDED = {(AUTH, "REQUEST"): "auth", (MESSAGEINFO, "REQUEST"): "info"}
"""The channel of the service that answers, by type and subtype."""
ANSWERING = frozenset({"session", "answer", "medium"})
"""Proofs of the sender with which a message counts as the sender's answer."""
_FEW_RECEIVERS = 8
"""The names of so many always fit beside the largest message."""
UNPROVEN = Identifier("component", "")
"""The sender of an unproven message; no rule can name it."""
UNPROVEN_SENDER = "unproven"
"""The same as privacy rules see it."""


def no_routing(_message: Message) -> Sequence[Identifier]:
    return ()


class MessagePlan(msgspec.Struct, frozen=True, gc=False):
    """The handling of one message: receivers, tracking, notifications."""

    fate: MessageFate
    receivers: tuple[Identifier, ...] = ()
    """All receivers, the one that the message names first."""
    tracked: Identifier | None = None
    routed: tuple[Identifier, ...] = ()
    """Peers and collectives that get it without being tracked."""
    notify: bool = False
    forward: str = ""
    """The channel of another service, instead of everything else."""
    receiver_names: tuple[str, ...] = ()
    """The receivers as texts."""

    @property
    def is_simple(self) -> bool:
        """Whether only the tracked receiver is sent anything."""
        return self.tracked is not None and not self.routed


def assume_listeners() -> bool:
    """Some notification callback is registered."""
    return True


def plan_message(
    message: Message, routed: Sequence[Identifier] = (), *, has_listeners: bool = True
) -> MessagePlan:
    """The plan of a message, given the receivers that routing rules add. `has_listeners`: whether
    any notification callback is registered.

    >>> ana, app = Identifier("peer", "ana"), Identifier("component", "app")
    >>> plan_message(Message(type="TASK", subtype="REQUEST", sender=app, receiver=ana)).tracked
    Identifier(kind='peer', name='ana')
    >>> plan_message(Message(type="TASK", subtype="REQUEST", sender=app)).fate
    'no_receiver'
    """
    channel = FORWARDED.get((message.type, message.subtype), "")
    if channel:
        return MessagePlan("forwarded", forward=channel)
    return _to(message.receiver, tuple(routed), has_listeners)


def rule_sender(sender: Identifier, headers: Mapping[str, str]) -> Identifier:
    """The sender as routing and privacy rules see it: the proven identity, not the name that the
    message claims. `headers` are those of its event in `input`.

    >>> rule_sender(Identifier("peer", "ana"), {"proof": "session"}) == Identifier("peer", "ana")
    True
    >>> rule_sender(Identifier("peer", "ana"), {}) == UNPROVEN
    True
    """
    if headers.get(PROOF, "none") == "none":
        return UNPROVEN
    named = headers.get(PROVEN_SENDER)
    return Identifier.parse(named) if named else sender


def rule_sender_text(sender: Identifier, headers: Mapping[str, str]) -> str:
    """The sender as privacy rules see it, where it differs from that of the message; else empty."""
    proven = rule_sender(sender, headers)
    if proven is UNPROVEN:
        return UNPROVEN_SENDER
    return "" if proven is sender or proven == sender else str(proven)


def route_proven(
    route: Route, message: Message, headers: Mapping[str, str]
) -> Sequence[Identifier]:
    """The receivers that routing rules add to a message, by its proven sender."""
    sender = rule_sender(message.sender, headers)
    if sender is not message.sender:
        message = msgspec.structs.replace(message, sender=sender)
    return route(message)


@lru_cache(maxsize=4_096)
def _to(
    receiver: Identifier | None, routed: tuple[Identifier, ...], has_listeners: bool
) -> MessagePlan:
    first = () if receiver is None else (receiver,)
    receivers = tuple(dict.fromkeys((*first, *routed)))
    if not receivers:
        return MessagePlan("no_receiver", notify=True)
    people = tuple(each for each in receivers if each.kind != "component")
    tracked = receiver if receiver in people else None
    return MessagePlan(
        "queued" if people else "notified" if has_listeners else "no_receiver",
        receivers,
        tracked,
        tuple(each for each in people if each != receiver),
        notify=len(people) < len(receivers),
        receiver_names=tuple(map(str, receivers)),
    )


def leaves_room(event: Event, plan: MessagePlan) -> bool:
    """Whether the message's event in `log` can name all its receivers: rules may add thousands."""
    names = plan.receiver_names
    added = sum(map(_json_size, names)) if len(names) > _FEW_RECEIVERS else 0
    return len(event.data) + added <= LARGEST_EVENT


def _json_size(name: str) -> int:
    return len(msgspec.json.encode(name)) + 1
