"""Addresses as people write them, and the scopes of link-local addresses. [CX-2, CX-9]

`fe80::1%eth0` and `fe80::1%eth1` are different addresses. People name the scope by the interface,
sockets by its number beside host and port. A scope is valid on this machine only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from errno import ENODEV
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from rapport.core.errors import InvalidInput
from rapport.transport.base import Address

SocketAddress = tuple[str, int] | tuple[str, int, int, int]

_HIGHEST_INDEX = 2**32 - 1


def display_address(found: Sequence[Any]) -> Address:
    """Host and port of an address from a socket; the host has its scope, if any.

    >>> display_address(("10.0.0.1", 7)), display_address(("2001:db8::1", 7, 0, 0))
    (('10.0.0.1', 7), ('2001:db8::1', 7))
    """
    host, port, *more = found
    index = more[1] if more else 0
    return (f"{without_scope(host)}%{_name(index)}" if index else host), port


def socket_address(address: Address) -> SocketAddress:
    """The address in the form of sockets, which ignore a scope in the host.

    Raises OSError for a scope that this machine does not have.
    """
    host, mark, scope = address[0].partition("%")
    return (host, address[1], 0, _index(scope)) if mark else address


def canonical_address(found: IPv4Address | IPv6Address) -> str:
    """The host in the same spelling as `display_address`: with a scope, by interface name, only for
    link-local and multicast addresses.
    """
    plain, _, scope = found.compressed.partition("%")
    if not scope or not (found.is_link_local or found.is_multicast):
        return plain
    return f"{plain}%{_name(int(scope)) if _is_index(scope) else scope}"


def without_scope(host: str) -> str:
    return host.partition("%")[0]


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:  # the interface is gone
        return str(index)


def _index(scope: str) -> int:
    if _is_index(scope):
        return int(scope)
    try:
        return socket.if_nametoindex(scope)
    except ValueError:  # not a valid name
        raise OSError(ENODEV, "no such network interface") from None


def _is_index(scope: str) -> bool:
    is_number = scope.isascii() and scope.isdigit() and len(scope) <= 10
    return is_number and int(scope) <= _HIGHEST_INDEX


_HIGHEST_PORT = 65_535


def parse_address(text: str) -> Address:
    """Host and port of `127.0.0.1:7411`, `[::1]:7411`, `[fe80::1%eth0]:7411` or `name:7411`; raises
    InvalidInput.

    >>> parse_address("127.0.0.1:7411"), parse_address("[::1]:7411")
    (('127.0.0.1', 7411), ('::1', 7411))
    """
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= _HIGHEST_PORT
    is_host = bool(host) and (bracketed or ":" not in host) and not set(host) & set(" /@[]")
    if not (colon and is_port and is_host):
        raise InvalidInput(
            f"{text!r} is not an address",
            code="transport.bad_address",
            hint="write HOST:PORT, such as 127.0.0.1:7411 or [::1]:7411",
        )
    return host, int(port)


def format_address(address: Address) -> str:
    """The address as `parse_address` reads it.

    >>> format_address(("::1", 7411))
    '[::1]:7411'
    """
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The host as an IP address; None for a name, which is not resolved."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(address: Address) -> bool:
    """Whether the address is on this machine; of names only `localhost` is."""
    found = ip_of(address[0])
    return address[0] == "localhost" if found is None else found.is_loopback


async def resolve(address: Address) -> Address:
    """Resolves the host to an IP address, in the same spelling as addresses of senders, so that
    they can be compared. Raises InvalidInput for an unknown name.
    """
    host, port = address
    if (known := ip_of(host)) is not None:
        return canonical_address(known), port
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        found = []
    # Most names resolve to both families; brokers listen on IPv4 by default.
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    if not found:
        raise InvalidInput(
            f"the host {host!r} is unknown",
            code="transport.unknown_host",
            hint="check the name, or write an IP address",
        )
    return display_address(found[0][4])[0], port
