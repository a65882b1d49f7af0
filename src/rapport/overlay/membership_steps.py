"""Settings that are numbers: each within what its machine can work with. [CX-4, CX-5]

What the machine of membership wants done, and what it may be told to do differently. [CX-4]

The shell (or a machine above) turns each step into a message of its own protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rapport.core.errors import InvalidInput
from rapport.transport.base import Address

MANY = 1_000_000_000
"""More than anybody needs, and still a number that can be counted and waited for."""


def check_ranges(
    settings: msgspec.Struct, ranges: Mapping[str, tuple[float, float]], *, code: str
) -> None:
    """Raises InvalidInput with that code for the first field that is outside its least and most;
    what is no number (NaN) is outside, too.
    """
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise InvalidInput(
                f"{name} = {value} cannot be",
                code=code,
                hint=f"from {least} to {most}" if most < MANY else f"{least} or more",
            )


PARTING = -1
"""The ttl of a departure that is none: the sender stays, but is no longer the receiver's neighbour.
"""


class SendPing(msgspec.Struct, frozen=True, gc=False):
    """Ask whether it is there; tell `answered(by, number)` when it says so."""

    to: Address
    number: int


class SendJoin(msgspec.Struct, frozen=True, gc=False):
    """Ask it to be a neighbour; tell `welcomed(by, accepted, others)` what it says. Repeated with
    the same number when nothing is heard. `by_hand`: see `Membership.connect`.
    """

    to: Address
    number: int
    by_hand: bool = False


class SendDeparted(msgspec.Struct, frozen=True, gc=False):
    """Say that `broker` has departed; `ttl` is what the message carries (or `PARTING`)."""

    to: Address
    broker: Address
    number: int
    ttl: int
    abrupt: bool


class NeighbourLost(msgspec.Struct, frozen=True, gc=False):
    """It was a neighbour and is none any more: found silent (`abrupt`), or it said so."""

    address: Address
    abrupt: bool


class JoinedNetwork(msgspec.Struct, frozen=True, gc=False):
    """A search for neighbours ended well; these are all neighbours now."""

    neighbours: tuple[Address, ...]


class Isolated(msgspec.Struct, frozen=True, gc=False):
    """A search for neighbours ended with too few. Who was never a member waits for a new list; who
    was one looks again after a while.
    """

    answered: int
    needed: int


MembershipStep = SendPing | SendJoin | SendDeparted | NeighbourLost | JoinedNetwork | Isolated


class Admission(NamedTuple):
    """The answer to one that wants to be a neighbour, and what else is to be done."""

    accepted: bool
    others: tuple[Address, ...]
    """Neighbours it may ask too."""
    steps: list[MembershipStep]


class MembershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a member finds and keeps neighbours."""

    pings: int = 3
    """To each candidate; more: a better mean, later joined."""
    at_least: int = 2
    """With fewer neighbours it does not join, and looks again when it had joined. A list that has
    fewer brokers asks for all of them.
    """
    at_most: int = 20
    """Neighbours, the random one among them. A departure costs about at_most**departure_ttl
    messages.
    """
    between_ms: float = 20.0
    """Between the pings to one candidate."""
    wait_ms: float = 500.0
    """For the answers after the last ping; joining takes (pings-1)*between_ms + wait_ms when a
    candidate is silent, a round trip more than the pauses when none is.
    """
    most_candidates: int = 100
    """Of a longer list so many, drawn uniformly, are pinged."""
    period_ms: float = 1_000.0
    """Between the pings to a neighbour; a silent one is found within (misses+1)*period_ms."""
    misses: int = 3
    """Periods in a row without any sign of life after which a neighbour is gone."""
    repeats: int = 2
    """Times an unanswered ping is sent again within its period. At loss p of a round trip a living
    neighbour that says nothing else is dropped with probability p**(misses*(repeats+1)).
    """
    jitter: float = 0.1
    """Part of the period by which each pause is drawn shorter, so that members do not ping in
    step.
    """
    departure_ttl: int = 2
    """How far the word of a departure goes: 1 reaches neighbours, 2 theirs."""
    look_again_ms: float = 5_000.0
    """Between searches of a member with too few neighbours."""
    revisit_ms: float = 2_000.0
    """Between pings to one that fell silent, in case it is back: heals a partition."""
    known: int = 256
    """Brokers remembered beside the neighbours."""
    others: int = 8
    """Neighbours named to one that joins."""

    def __post_init__(self) -> None:
        if not 1 <= self.at_least <= self.at_most or self.at_most < 2:
            raise InvalidInput(
                f"no member can have from {self.at_least} to {self.at_most} neighbours",
                code="overlay.bad_settings",
                hint="at_least is 1 or more, at_most 2 or more and not below at_least",
            )
        check_ranges(self, _RANGES, code="overlay.bad_settings")


_RANGES = {
    "pings": (1, MANY),
    "misses": (1, MANY),
    "repeats": (0, MANY),
    "departure_ttl": (1, MANY),
    "known": (1, MANY),
    "others": (0, MANY),
    "most_candidates": (1, MANY),
    "between_ms": (0, MANY),
    "wait_ms": (0, MANY),
    "period_ms": (1, MANY),
    "look_again_ms": (1, MANY),
    "revisit_ms": (1, MANY),
    "jitter": (0, 0.9),
}
"""Pauses of nothing would be work without end."""
