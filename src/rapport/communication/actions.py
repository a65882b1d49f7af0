"""Declarations of actions: a phrase of a policy becomes a message or an effect. [CO-1, PO-10]

An effect speaks to machines: it appends an event, calls a web address, or sets context, which is an
event for the node's context broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from rapport.communication.delivery_state import (
    CollectiveDelivery,
    DoneWhen,
    NextReceiver,
    PeerDelivery,
)
from rapport.communication.peers import shown_address
from rapport.core.message import Identifier

EffectKind = Literal["append", "webhook"]
"""Both are also names of the adapters that carry them out."""

MOST_HOPS = 5
"""Actions that may follow from each other before one is refused, by default."""

SENDER = Identifier("component", "policy")
Phrases = Callable[[str, str], Sequence[str]]
"""Policy and version to the phrases of that version's actions."""
EndPhrases = Callable[[str, str], Sequence[str] | None]
"""Policy and version to the phrases of `actions when cleared`, None without a situation."""
ACTION_HOPS = "actionhops"


class EffectTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of an effect; texts in `subject` and `data` name fields of the detection."""

    kind: EffectKind
    target: str
    """A channel or a web address."""
    type: str
    subject: str = ""
    data: Any = None
    """None = the detection itself."""
    most_hops: int = MOST_HOPS

    @property
    def address(self) -> str:
        """Adapter and target, as deliveries name them."""
        return f"{self.kind}:{self.target}"

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every text with fields to fill, with its key in the site file."""
        yield "subject", self.subject
        yield from (("data", text) for text in _texts(self.data))


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of one detection, ready to be carried out."""

    kind: EffectKind
    id: str
    target: str
    type: str
    subject: str
    time: int
    """When the action was begun, the same for every attempt. Not the time of the situation: other
    policies have decided that time already, so that an event of it would come too late for them."""
    data: str
    """JSON."""
    hops: int = 0
    """How many actions led here, this one included."""
    most_hops: int = MOST_HOPS

    def shown(self) -> str:
        """The effect in one line; web addresses without secrets."""
        if self.kind == "webhook":
            return f"call {shown_address(f'webhook:{self.target}').partition(':')[2]}"
        about = f" about {self.subject}" if self.subject else ""
        return f"append {self.type}{about} to {self.target}"


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One `[actions."phrase"]` of the site file, or the declaration of a policy."""

    phrase: str
    send_to: Identifier
    """The receiver; for an `effect` a component with the name of the phrase."""
    text: str
    urgent: bool = False
    done_when: DoneWhen = "sent"
    answer_within_ms: int = 0
    """Time of a receiver to answer before the escalation; 0 = no deadline."""
    escalate: tuple[NextReceiver, ...] = ()
    """The next receivers, one after the other; a time of 0 = that of the action."""
    repeat_every_ms: int = 0
    """Interval of repeats to members that do not answer; 0 = none."""
    repeat_most: int = 0
    """How often it is repeated; 0 = until the message is closed."""
    ttl_ms: int = 0
    """Time to live of the message; 0 = for ever."""
    reach: CollectiveDelivery | None = None
    """Delivery policy for the collective `send_to`; None = its own. Receivers of an escalation
    always use their own.
    """
    least: int = 0
    """AT_LEAST(k) of the collective `send_to`; 0 = as `reach` or the collective says."""
    peer_delivery: PeerDelivery | None = None
    """Which addresses of a peer are used; None = as each peer says."""
    effect: EffectTemplate | None = None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every text with fields to fill, with its key in the site file."""
        if self.effect is None:
            yield "text", self.text
        else:
            yield from self.effect.texts()


class DeclaredActions(NamedTuple):
    """The actions that a version of a policy declares itself, by phrase as of `same_phrase`."""

    begin: Mapping[str, Action] = {}
    end: Mapping[str, Action] = {}
    """Those of `actions when cleared`."""


PolicyActions = Callable[[str, str], DeclaredActions]
"""Policy and version to the actions that the version declares."""


def no_own_actions(_policy: str, _version: str) -> DeclaredActions:
    return DeclaredActions()
