"""Who a UDP endpoint means by "all in range": a multicast group or a network's broadcast address.
[EN-10]
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from rapport.core.errors import InvalidInput
from rapport.transport.addresses import ip_of
from rapport.transport.scopes import told_address


@dataclass(frozen=True, slots=True)
class Group:
    """A multicast group (`239.x.y.z`, `ff02::...`) or a broadcast address, and a port for it.

    All who use the same group hear each other, several endpoints on one machine too.
    """

    host: str
    port: int
    hops: int = 1
    """How many routers a multicast datagram may pass, plus one: 1 stays in the network."""
    interface: str = ""
    """The network interface by name, such as `eth0`. IPv6 groups need it; for IPv4 it is the one
    that has the endpoint's host.
    """

    def check(self, family: socket.AddressFamily) -> None:
        """Raises InvalidInput for what is no group of this family."""
        found = ip_of(self.host)
        version = 4 if family == socket.AF_INET else 6
        if found is None or found.version != version or not 0 < self.port <= 65_535:
            raise InvalidInput(
                f"{self.host}:{self.port} is no group for IPv{version}",
                code="transport.bad_address",
                hint="a multicast or broadcast IP address and a port, such as 239.7.4.1 and 7412",
            )

    def is_multicast(self) -> bool:
        """Whether one has to join it; a broadcast address needs none."""
        found = ip_of(self.host)
        return found is not None and found.is_multicast

    def interface_index(self) -> int:
        """The interface's number; 0 leaves the choice to the system. Raises OSError."""
        return socket.if_nametoindex(self.interface) if self.interface else 0


def prepare_sending(opened: socket.socket, group: Group, host: str) -> None:
    """Lets a socket send to the group, out of the interface that has the host's address."""
    if not group.is_multicast():
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    elif opened.family == socket.AF_INET6:
        index = group.interface_index()
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, group.hops)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
    else:
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, group.hops)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        if not _is_wildcard(host):
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))


def receiving_socket(group: Group, host: str) -> socket.socket:
    """A socket that gets what is sent to the group, and nothing else; others may have one too."""
    is_ipv6 = ":" in group.host
    opened = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(_socket_address(group))
        if group.is_multicast():
            _join(opened, group, host)
    except OSError:
        opened.close()
        raise
    return opened


def own_host(opened: socket.socket, group: Group) -> str:
    """The host that others see when this socket sends to the group; nothing is sent."""
    bound = told_address(opened.getsockname())[0]
    if not _is_wildcard(bound):
        return bound
    with socket.socket(opened.family, socket.SOCK_DGRAM) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        asking.connect(_socket_address(group))
        return told_address(asking.getsockname())[0]


def _join(opened: socket.socket, group: Group, host: str) -> None:
    if opened.family == socket.AF_INET6:
        index = struct.pack("@I", group.interface_index())
        membership = socket.inet_pton(socket.AF_INET6, group.host) + index
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)
    else:
        place = "0.0.0.0" if _is_wildcard(host) else host
        membership = socket.inet_aton(group.host) + socket.inet_aton(place)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)


def _socket_address(group: Group) -> tuple[str, int] | tuple[str, int, int, int]:
    if ":" in group.host:
        return group.host, group.port, 0, group.interface_index()
    return group.host, group.port


def _is_wildcard(host: str) -> bool:
    found = ip_of(host)
    return found is not None and found.is_unspecified
