"""What must be sealed, and the settings of clients. [CX-3, CX-9, CX-11]"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.transport import station
from rapport.transport.base import Address


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a client treats its brokers; times in ms."""

    pings: int = 3
    """Pings of each broker before one is chosen, as in the source."""
    choose_within_ms: int = 1_000
    """No longer is waited for who does not answer a ping at the start."""
    look_every_ms: int = 5_000
    """Every so often all brokers are pinged: the load this adds is brokers / look_every_ms."""
    load_weight: float = 4.0
    """Score = (round trip + near_ms) x (1 + load_weight x load); the lowest is the best."""
    near_ms: float = 1.0
    """Below about this round trips make no difference and load decides."""
    similar: float = 1.2
    """At the start one is drawn from all whose score is within this factor of the best, so that
    clients that start together spread out."""
    better_factor: float = 0.5
    """Another broker is much better when its score is below this part of ours..."""
    better_ms: float = 2.0
    """...and lower by at least so much: below that nobody gains by a change."""
    better_rounds: int = 3
    """...in so many rounds in a row, so that one slow answer moves nobody."""
    dead_after: int = 3
    """So many unanswered pings or tries in a row mean that a broker is gone."""
    first_retry_ms: float = 50.0
    """The first repetition, until round trips are known; each one waits twice as long."""
    longest_retry_ms: float = 1_000.0
    lease_ms: int = 30_000
    """A subscription is renewed at a third of it; a broker forgets it after the whole."""
    waiting_notices: int = 1_000
    """Notices that wait for a slow reader; beyond it the oldest is dropped and counted."""


def check_sealed(addresses: Iterable[Address], *, has_keys: bool) -> None:
    """Raises InvalidInput for an address that others reach while nothing would be sealed."""
    station.check_sealed(
        addresses,
        has_keys=has_keys,
        code="context.no_keys",
        hint="make keys with `rapport context keys make` and name them with --keys FILE, "
        "or keys = FILE in [context]; without keys only addresses of this machine are used",
    )
