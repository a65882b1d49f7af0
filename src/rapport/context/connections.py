"""Connections to brokers: settings of clients, sockets, errors of refused requests.
[CX-2, CX-3, CX-9, CX-11]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rapport.context.protocol import BAD_REQUEST, MEANINGS, NOT_ALLOWED, NOT_FOUND, TOO_BUSY
from rapport.core.errors import InvalidInput, NotAllowed, RapportError, Unavailable
from rapport.kernel.clock import Clock
from rapport.transport import station
from rapport.transport.addresses import ip_of, is_loopback
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, Station
from rapport.transport.udp import host_towards


class ContextNotFound(RapportError):
    """No valid record was found within the deadline; there may be one later."""

    code = "context.not_found"
    status = 404


def refusal(status: int, why: str, what: str) -> RapportError:
    """The error for a refusing status; `what` names the request."""
    reason = f": {why}" if why and why != MEANINGS.get(status) else ""
    if status == NOT_FOUND:
        return ContextNotFound(
            f"no valid record of {what} was found{reason}",
            hint="it may have expired, or no broker that can be reached has it; "
            "`rapport context status` shows a broker's neighbours",
        )
    if status == NOT_ALLOWED:
        return NotAllowed(
            f"not allowed: {what}{reason}",
            code="context.not_allowed",
            hint="the broker's site gives rights by the owner of the key: [context.rights.NAME]",
        )
    if status == BAD_REQUEST:
        return InvalidInput(f"the broker refused {what}{reason}", code="context.bad_request")
    if status == TOO_BUSY:
        return Unavailable(f"the broker is too busy for {what}{reason}", code="context.too_busy")
    return Unavailable(
        f"the broker could not do it: {what}{reason} (status {status})", code="context.failed"
    )


def no_broker(brokers: str, what: str) -> Unavailable:
    """The error when no broker answers."""
    return Unavailable(
        f"no broker answered: {what} ({brokers})",
        code="context.no_broker",
        hint="is one running there, and with the same keys? "
        "A broker answers no sender without a key: `rapport context broker --listen ADDRESS`",
    )


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a client treats its brokers; times in ms."""

    pings: int = 3
    """Pings of each broker before one is chosen, as in the source."""
    choose_within_ms: int = 1_000
    """Longest wait for the first pings."""
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
    """...and lower by at least so much: below that a change gains nothing."""
    better_rounds: int = 3
    """...in so many rounds in a row, so that one slow answer changes nothing."""
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


async def open_station(
    listen: Address, keys: DatagramKeys | None, clock: Clock, link: EndpointWrapper
) -> Station:
    """Opens a socket; raises InvalidInput for one that others reach without keys, Unavailable when
    the address cannot be had.
    """
    check_sealed([listen], has_keys=keys is not None)
    return await station.open_station(listen, keys, clock, link=link)


def own_side(brokers: Sequence[Address], keys: DatagramKeys | None) -> Address:
    """Where a client of these brokers listens: on the loopback when all of them are there. Who has
    the network's keys is answered as a member is, by one address.
    """
    is_ipv6 = any((found := ip_of(host)) is not None and found.version == 6 for host, _ in brokers)
    if all(is_loopback(broker) for broker in brokers):
        return ("::1" if is_ipv6 else "127.0.0.1"), 0
    if keys is not None and keys.is_member:
        return host_towards(brokers[0]), 0
    return ("::" if is_ipv6 else "0.0.0.0"), 0
