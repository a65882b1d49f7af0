"""The scope of a link-local address: which of this machine's networks it is an address in. [CX-2]

`fe80::1%eth0` and `fe80::1%eth1` are two places. People and addresses say the scope by the name of
the interface, sockets by its number, beside host and port. It means something on this machine only.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from errno import ENODEV
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from rapport.transport.base import Address

SocketAddress = tuple[str, int] | tuple[str, int, int, int]

_HIGHEST_INDEX = 2**32 - 1


def told_address(found: Sequence[Any]) -> Address:
    """Host and port of what a socket tells, the host with its scope where it has one.

    >>> told_address(("10.0.0.1", 7)), told_address(("2001:db8::1", 7, 0, 0))
    (('10.0.0.1', 7), ('2001:db8::1', 7))
    """
    host, port, *more = found
    index = more[1] if more else 0
    return (f"{without_scope(host)}%{_name(index)}" if index else host), port


def socket_address(address: Address) -> SocketAddress:
    """The address as sockets take it: what stands in the host alone would be left out by them.

    Raises OSError for a scope that this machine does not have.
    """
    host, mark, scope = address[0].partition("%")
    return (host, address[1], 0, _index(scope)) if mark else address


def spelled(found: IPv4Address | IPv6Address) -> str:
    """The host as it is told of who sends from there: with a scope only where it means something,
    by name.
    """
    plain, _, scope = found.compressed.partition("%")
    if not scope or not (found.is_link_local or found.is_multicast):
        return plain
    return f"{plain}%{_name(int(scope)) if _is_index(scope) else scope}"


def without_scope(host: str) -> str:
    """The host as any machine would write it."""
    return host.partition("%")[0]


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:  # it went meanwhile
        return str(index)


def _index(scope: str) -> int:
    if _is_index(scope):
        return int(scope)
    try:
        return socket.if_nametoindex(scope)
    except ValueError:  # what cannot be a name
        raise OSError(ENODEV, "no such network interface") from None


def _is_index(scope: str) -> bool:
    is_number = scope.isascii() and scope.isdigit() and len(scope) <= 10
    return is_number and int(scope) <= _HIGHEST_INDEX
