"""Datagrams over UDP, with multicast or broadcast. [CX-2, EN-10]

A non-blocking socket on the loop, and a second one for the group. The sockets are read and written
directly, because asyncio's transports cost a callback and a queue entry per datagram.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

from rapport.core.errors import InvalidInput, Unavailable, Unsupported
from rapport.transport.addresses import (
    SocketAddress,
    display_address,
    format_address,
    ip_of,
    socket_address,
)
from rapport.transport.base import (
    MAX_DATAGRAM,
    Address,
    DatagramHandler,
    check_size,
    report_failure,
)


@dataclass(frozen=True, slots=True)
class MulticastGroup:
    """A multicast group (`239.x.y.z`, `ff02::...`) or a broadcast address, and a port for it.

    All endpoints of a group receive from each other, also several on one machine.
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
        """Raises InvalidInput unless it is a group of this family."""
        found = ip_of(self.host)
        version = 4 if family == socket.AF_INET else 6
        if found is None or found.version != version or not 0 < self.port <= 65_535:
            raise InvalidInput(
                f"{self.host}:{self.port} is no group for IPv{version}",
                code="transport.bad_address",
                hint="a multicast or broadcast IP address and a port, such as 239.7.4.1 and 7412",
            )

    def is_multicast(self) -> bool:
        """Whether receivers have to join; false for a broadcast address."""
        found = ip_of(self.host)
        return found is not None and found.is_multicast

    def interface_index(self) -> int:
        """The interface's number; 0 leaves the choice to the system. Raises OSError."""
        return socket.if_nametoindex(self.interface) if self.interface else 0


def prepare_sending(opened: socket.socket, group: MulticastGroup, host: str) -> None:
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


def receiving_socket(group: MulticastGroup, host: str) -> socket.socket:
    """A socket that receives only datagrams to the group; several processes may have one."""
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


def own_host(opened: socket.socket, group: MulticastGroup) -> str:
    """The source address of datagrams to the group; determined without sending."""
    bound = display_address(opened.getsockname())[0]
    if not _is_wildcard(bound):
        return bound
    with socket.socket(opened.family, socket.SOCK_DGRAM) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        asking.connect(_socket_address(group))
        return display_address(asking.getsockname())[0]


def _join(opened: socket.socket, group: MulticastGroup, host: str) -> None:
    if opened.family == socket.AF_INET6:
        index = struct.pack("@I", group.interface_index())
        membership = socket.inet_pton(socket.AF_INET6, group.host) + index
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)
    else:
        place = "0.0.0.0" if _is_wildcard(host) else host
        membership = socket.inet_aton(group.host) + socket.inet_aton(place)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)


def _socket_address(group: MulticastGroup) -> tuple[str, int] | tuple[str, int, int, int]:
    if ":" in group.host:
        return group.host, group.port, 0, group.interface_index()
    return group.host, group.port


def _is_wildcard(host: str) -> bool:
    found = ip_of(host)
    return found is not None and found.is_unspecified


LARGEST_DATAGRAM = 65_507
"""What UDP over IPv4 can carry at all."""
_AT_ONCE = 64
"""Datagrams read before other callbacks of the loop run."""
_RECEIVE_BYTES = 4 * 1024 * 1024
_ANY_SIZE = 65_535
_MOST_KNOWN = 65_536


@dataclass(slots=True)
class UdpCounters:
    sent: int = 0
    received: int = 0
    full: int = 0
    """Not sent: the kernel's buffer was full."""
    unsendable: int = 0
    """Not sent: no IP address of the socket's family, or the kernel refused it."""
    failed: int = 0
    """Received, but the handler raised; it is in the log."""


class UdpEndpoint:
    """An endpoint on a UDP socket; lives on the loop it was opened on."""

    def __init__(
        self,
        main: socket.socket,
        shared: socket.socket | None,
        group: MulticastGroup | None,
        size: int,
    ) -> None:
        self.address: Address = display_address(main.getsockname())
        self.max_datagram = size
        self.counters = UdpCounters()
        self._main, self._shared, self._group = main, shared, group
        self._own = (own_host(main, group), self.address[1]) if group else self.address
        self._is_ipv6 = main.family == socket.AF_INET6
        self._socket_addresses: dict[Address, SocketAddress] = {}
        self._names: dict[tuple[str, int], str] = {}
        """Display hosts of link-local senders by host and interface number."""
        self._handler: DatagramHandler = _nobody
        self._loop = asyncio.get_running_loop()

    @staticmethod
    async def open(
        host: str,
        port: int = 0,
        *,
        max_datagram: int = MAX_DATAGRAM,
        group: MulticastGroup | None = None,
        receive_bytes: int = _RECEIVE_BYTES,
    ) -> UdpEndpoint:
        """Opens an endpoint at an IP address of this machine; port 0 chooses a free one.

        Args:
            max_datagram: Limit of `send`; any size is received.
            group: The receivers of `broadcast`, which needs it.
            receive_bytes: Requested size of the kernel's receive buffer.
        """
        family = _family(host, port, max_datagram)
        if group is not None:
            group.check(family)
        shared: socket.socket | None = None
        main = socket.socket(family, socket.SOCK_DGRAM)
        try:
            _prepare(main, receive_bytes)
            main.bind(socket_address((host, port)))
            if group is not None:
                prepare_sending(main, group, host)
                shared = receiving_socket(group, host)
                _prepare(shared, receive_bytes)
            return UdpEndpoint(main, shared, group, max_datagram)
        except OSError as error:
            main.close()
            if shared is not None:
                shared.close()
            raise Unavailable(
                f"cannot open {format_address((host, port))}: {error.strerror}",
                code="transport.cannot_open",
                hint="is the address one of this machine, and the port free?",
            ) from None

    def send(self, datagram: bytes, to: Address) -> None:
        """Sends to one address; raises InvalidInput if larger than `max_datagram`."""
        if len(datagram) > self.max_datagram:
            check_size(datagram, self.max_datagram)
        place = self._socket_addresses.get(to) or self._resolve(to)
        if place is None:
            self.counters.unsendable += 1
            return
        try:
            self._main.sendto(datagram, place)
            self.counters.sent += 1
        except BlockingIOError:
            self.counters.full += 1
        except OSError:
            self.counters.unsendable += 1

    def broadcast(self, datagram: bytes) -> None:
        """Sends to the group; raises Unsupported if the endpoint has none."""
        if self._group is None:
            raise Unsupported(
                "broadcasting", "this UDP endpoint", hint="open it with group=MulticastGroup(...)"
            )
        self.send(datagram, (self._group.host, self._group.port))

    def receive(self, handler: DatagramHandler) -> None:
        """Calls the handler for each datagram, up to 64 at each turn of the loop."""
        is_first = self._handler is _nobody
        self._handler = handler
        if is_first and self._main.fileno() >= 0:
            self._loop.add_reader(self._main, self._drain, self._main)
            if self._shared is not None:
                self._loop.add_reader(self._shared, self._drain, self._shared)

    async def close(self) -> None:
        """Closes the sockets; datagrams in kernel buffers are dropped."""
        for opened in (self._main, self._shared):
            if opened is not None and opened.fileno() >= 0:
                self._loop.remove_reader(opened)
                opened.close()

    def _drain(self, opened: socket.socket) -> None:
        counters, is_ipv6 = self.counters, self._is_ipv6
        own = self._own if opened is self._shared else None
        for _ in range(_AT_ONCE):
            try:
                datagram, sender = opened.recvfrom(_ANY_SIZE)
            except BlockingIOError:
                return
            except OSError:
                # An ICMP error of an earlier datagram, or a handler closed the socket.
                if opened.fileno() < 0:
                    return
                continue
            if is_ipv6:
                sender = self._scoped_sender(sender) if sender[3] else sender[:2]
            if sender == own:
                continue  # our own broadcast came back
            counters.received += 1
            try:
                self._handler(datagram, sender)
            except Exception as error:
                counters.failed += 1
                report_failure(error, sender)

    def _scoped_sender(self, sender: tuple[str, int, int, int]) -> Address:
        """A sender with its scope, which answers need; interface names are cached."""
        host, port, _, index = sender
        named = self._names.get((host, index))
        if named is None:
            if len(self._names) >= _MOST_KNOWN:
                self._names.clear()
            named = self._names[host, index] = display_address(sender)[0]
        return named, port

    def _resolve(self, to: Address) -> SocketAddress | None:
        """The socket address; None for host names, which `sendto` would resolve while the loop
        waits, and for addresses of another family.
        """
        host, port = to
        found = ip_of(host) if isinstance(host, str) else None
        fits = found is not None and (found.version == 6) == self._is_ipv6
        if not fits or not isinstance(port, int) or not 0 < port <= 65_535:
            return None
        try:
            place = socket_address(to)
        except OSError:
            return None
        if len(self._socket_addresses) >= _MOST_KNOWN:
            self._socket_addresses.clear()
        self._socket_addresses[to] = place
        return place


def host_towards(other: Address) -> str:
    """The source address for datagrams to another machine; determined without sending.

    Raises Unavailable if there is no route.
    """
    with socket.socket(_family(*other, LARGEST_DATAGRAM), socket.SOCK_DGRAM) as opened:
        try:
            opened.connect(socket_address(other))
        except OSError as error:
            raise Unavailable(
                f"there is no route to {format_address(other)}: {error.strerror}",
                code="transport.cannot_open",
            ) from None
        return display_address(opened.getsockname())[0]


def _nobody(datagram: bytes, sender: Address) -> None:
    """The handler before `receive`."""


def _family(host: str, port: int, max_datagram: int) -> socket.AddressFamily:
    found = ip_of(host)
    if found is None or not 0 <= port <= 65_535 or not 0 < max_datagram <= LARGEST_DATAGRAM:
        raise InvalidInput(
            f"cannot open {host}:{port} for datagrams of {max_datagram} bytes",
            code="transport.bad_address",
            hint="an IP address, a port up to 65535, datagrams up to 65507 bytes",
        )
    return socket.AF_INET if found.version == 4 else socket.AF_INET6


def _prepare(opened: socket.socket, receive_bytes: int) -> None:
    opened.setblocking(False)
    with contextlib.suppress(OSError):  # a smaller buffer only loses more under load
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
