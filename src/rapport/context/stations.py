"""Where messages are sent and received: a UDP socket, sealed when there are keys. [CX-2, CX-9]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.context.settings import check_sealed
from rapport.kernel.clock import Clock
from rapport.transport import station
from rapport.transport.addresses import ip_of, is_loopback
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, Station
from rapport.transport.udp import host_towards


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
