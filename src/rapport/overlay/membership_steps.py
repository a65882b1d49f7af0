"""Settings of the membership protocol, and the steps it requests from its caller. [CX-4, CX-5]

The caller turns each step into a message of its own protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rapport.core.errors import InvalidInput
from rapport.transport.base import Address

MANY = 1_000_000_000
"""An upper bound for settings without a natural one."""


def check_ranges(
    settings: msgspec.Struct, ranges: Mapping[str, tuple[float, float]], *, code: str
) -> None:
    """Raises InvalidInput with that code for the first field outside its range; NaN is outside."""
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise InvalidInput(
                f"{name} = {value} is out of range",
                code=code,
                hint=f"from {least} to {most}" if most < MANY else f"{least} or more",
            )


PARTING = -1
"""The ttl that marks a parting: the sender stays, but is no longer the receiver's neighbour."""


class SendPing(msgspec.Struct, frozen=True, gc=False):
    """Send a ping; call `answered(by, number)` for the answer."""

    to: Address
    number: int


class SendJoin(msgspec.Struct, frozen=True, gc=False):
    """Request neighbourhood; call `welcomed(by, accepted, others)` for the answer. Repeated with
    the same number until answered. `by_hand`: see `Membership.connect`.
    """

    to: Address
    number: int
    by_hand: bool = False


class SendDeparted(msgspec.Struct, frozen=True, gc=False):
    """Report that `broker` has departed; `ttl` is that of the message (or `PARTING`)."""

    to: Address
    broker: Address
    number: int
    ttl: int
    abrupt: bool


class NeighbourLost(msgspec.Struct, frozen=True, gc=False):
    """A neighbour was lost: it fell silent (`abrupt`) or departed."""

    address: Address
    abrupt: bool


class JoinedNetwork(msgspec.Struct, frozen=True, gc=False):
    """A search for neighbours succeeded; these are all neighbours now."""

    neighbours: tuple[Address, ...]


class IsolationNotice(msgspec.Struct, frozen=True, gc=False):
    """A search for neighbours found too few. A new member waits for a new list; a former member
    searches again later.
    """

    answered: int
    needed: int


MembershipStep = (
    SendPing | SendJoin | SendDeparted | NeighbourLost | JoinedNetwork | IsolationNotice
)


class Admission(NamedTuple):
    """The answer to a request for neighbourhood, and further steps."""

    accepted: bool
    others: tuple[Address, ...]
    """Neighbours for further requests."""
    steps: list[MembershipStep]


class MembershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    pings: int = 3
    """Pings to each candidate; more give a better mean and delay the join."""
    at_least: int = 2
    """With fewer neighbours a member searches; a shorter list requests all of its brokers."""
    at_most: int = 20
    """Neighbours; a departure costs about at_most**departure_ttl messages."""
    between_ms: float = 20.0
    """Between the pings to one candidate."""
    wait_ms: float = 500.0
    """Time for answers after the last ping. Joining takes (pings-1)*between_ms + wait_ms if a
    candidate is silent, otherwise the pauses and a round trip.
    """
    most_candidates: int = 100
    """Number of candidates, drawn uniformly from a longer list."""
    period_ms: float = 1_000.0
    """Between pings to a neighbour; a silent one is detected within (misses+1)*period_ms."""
    misses: int = 3
    """Consecutive periods without a sign of life until a neighbour is lost."""
    repeats: int = 2
    """Repetitions of an unanswered ping within its period. At loss p of a round trip a living
    neighbour without other traffic is dropped with probability p**(misses*(repeats+1)).
    """
    jitter: float = 0.1
    """Random part of the period by which a pause is shorter, so that pings do not synchronize."""
    departure_ttl: int = 2
    """Hops of a departure report: 1 reaches neighbours, 2 their neighbours."""
    look_again_ms: float = 5_000.0
    """Between searches of a member with too few neighbours."""
    revisit_ms: float = 2_000.0
    """Between pings to silent members; heals partitions."""
    known: int = 256
    """Brokers remembered beside the neighbours."""
    others: int = 8
    """Neighbours named to a joining member."""

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
"""Pauses of 0 would cause endless work."""
