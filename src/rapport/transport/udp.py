"""Datagrams over UDP: one non-blocking socket on the loop, and one more where it broadcasts.
[CX-2, EN-10]

The socket is read and written directly, without asyncio's transports: they cost a callback and a
queue per datagram.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from rapport.core.errors import InvalidInput, Unavailable, Unsupported
from rapport.transport.addresses import format_address, ip_of
from rapport.transport.base import MAX_DATAGRAM, Address, Handler
from rapport.transport.delivery import check_size, tell_failure
from rapport.transport.scopes import SocketAddress, socket_address, told_address
from rapport.transport.udp_broadcast import Group, own_host, prepare_sending, receiving_socket

LARGEST_DATAGRAM = 65_507
"""What UDP over IPv4 can carry at all."""
_AT_ONCE = 64
"""Datagrams read before others on the loop get their turn."""
_RECEIVE_BYTES = 4 * 1024 * 1024
_ANY_SIZE = 65_535
_MOST_KNOWN = 65_536


@dataclass(slots=True)
class UdpCounters:
    """What an endpoint did; only ever growing."""

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
        self, main: socket.socket, shared: socket.socket | None, group: Group | None, size: int
    ) -> None:
        self.address: Address = told_address(main.getsockname())
        self.max_datagram = size
        self.counters = UdpCounters()
        self._main, self._shared, self._group = main, shared, group
        self._own = (own_host(main, group), self.address[1]) if group else self.address
        self._is_ipv6 = main.family == socket.AF_INET6
        self._places: dict[Address, SocketAddress] = {}
        self._names: dict[tuple[str, int], str] = {}
        """Hosts of link-local senders as they are told, by host and number of the interface."""
        self._handler: Handler = _nobody
        self._loop = asyncio.get_running_loop()

    @staticmethod
    async def open(
        host: str,
        port: int = 0,
        *,
        max_datagram: int = MAX_DATAGRAM,
        group: Group | None = None,
        receive_bytes: int = _RECEIVE_BYTES,
    ) -> UdpEndpoint:
        """An endpoint at an IP address of this machine; port 0 takes a free one.

        Args:
            max_datagram: larger ones are refused by `send`; any size is received.
            group: who is meant by `broadcast`; without it, it is Unsupported.
            receive_bytes: what the kernel keeps for us while we are busy; it may give less.
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
        """Towards one address; raises InvalidInput when larger than `max_datagram`."""
        if len(datagram) > self.max_datagram:
            check_size(datagram, self.max_datagram)
        place = self._places.get(to) or self._place_of(to)
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
        """To the group; raises Unsupported when the endpoint was opened without one."""
        if self._group is None:
            raise Unsupported(
                "broadcasting", "this UDP endpoint", hint="open it with group=Group(...)"
            )
        self.send(datagram, (self._group.host, self._group.port))

    def receive(self, handler: Handler) -> None:
        """Calls the handler for each datagram, up to 64 at each turn of the loop."""
        is_first = self._handler is _nobody
        self._handler = handler
        if is_first and self._main.fileno() >= 0:
            self._loop.add_reader(self._main, self._drain, self._main)
            if self._shared is not None:
                self._loop.add_reader(self._shared, self._drain, self._shared)

    async def close(self) -> None:
        """Closes the sockets; what the kernel still kept is dropped."""
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
                # An error that an earlier datagram of ours met, or closed meanwhile by a handler.
                if opened.fileno() < 0:
                    return
                continue
            if is_ipv6:
                sender = self._told(sender) if sender[3] else sender[:2]
            if sender == own:
                continue  # our own broadcast came back
            counters.received += 1
            try:
                self._handler(datagram, sender)
            except Exception as error:
                counters.failed += 1
                tell_failure(error, sender)

    def _told(self, sender: tuple[str, int, int, int]) -> Address:
        """A sender with a scope, so that an answer finds the way back; a name is asked for once."""
        host, port, _, index = sender
        named = self._names.get((host, index))
        if named is None:
            if len(self._names) >= _MOST_KNOWN:
                self._names.clear()
            named = self._names[host, index] = told_address(sender)[0]
        return named, port

    def _place_of(self, to: Address) -> SocketAddress | None:
        """Where a datagram goes; none when it cannot. A name would make the kernel's library look
        it up and everything else wait.
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
        if len(self._places) >= _MOST_KNOWN:
            self._places.clear()
        self._places[to] = place
        return place


def host_towards(other: Address) -> str:
    """The address by which this machine is seen from another; nothing is sent to find out.

    Raises Unavailable when there is no way there.
    """
    with socket.socket(_family(*other, LARGEST_DATAGRAM), socket.SOCK_DGRAM) as opened:
        try:
            opened.connect(socket_address(other))
        except OSError as error:
            raise Unavailable(
                f"there is no way to {format_address(other)}: {error.strerror}",
                code="transport.cannot_open",
            ) from None
        return told_address(opened.getsockname())[0]


def _nobody(datagram: bytes, sender: Address) -> None:
    """Stands where no handler was given yet."""


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
    with contextlib.suppress(OSError):  # a smaller buffer loses more under load, that is all
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
