"""Opening a station on UDP: sealed, or on this machine only. [CX-2, CX-9, EN-10]"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Clock
from rapport.transport.addresses import format_address, is_loopback
from rapport.transport.base import Address, Endpoint
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import Station
from rapport.transport.udp import UdpEndpoint
from rapport.transport.udp_broadcast import Group

Link = Callable[[Endpoint], Endpoint]
"""Wraps an endpoint; tests lose and delay datagrams with it."""


def as_it_is(endpoint: Endpoint) -> Endpoint:
    """No wrapping."""
    return endpoint


def check_sealed(
    addresses: Iterable[Address], *, has_keys: bool, code: str = "transport.no_keys", hint: str = ""
) -> None:
    """Raises InvalidInput for an address that others reach while nothing would be sealed."""
    if has_keys:
        return
    for address in addresses:
        if not is_loopback(address):
            raise InvalidInput(
                f"{format_address(address)} is reached over a network, and there are no keys",
                code=code,
                hint=hint or "give keys; without them only addresses of this machine are used",
            )


async def open_station(
    listen: Address,
    keys: DatagramKeys | None,
    clock: Clock,
    *,
    link: Link = as_it_is,
    group: Group | None = None,
) -> Station:
    """Opens a socket, and one more for what is sent to the group; whether it must be sealed was
    asked before. Raises Unavailable when the address cannot be had.
    """
    endpoint = link(await UdpEndpoint.open(*listen, group=group))
    if keys is None:
        return Station(endpoint, clock=clock)
    try:
        return Station.sealed(endpoint, keys, clock=clock)
    except InvalidInput:
        await endpoint.close()
        raise
