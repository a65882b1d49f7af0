"""Addresses as people write them, and what can be told of them. [CX-2, CX-9]"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from rapport.core.errors import InvalidInput
from rapport.transport.base import Address
from rapport.transport.scopes import spelled, told_address

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
    """The host as an IP address; none for a name. Nothing is looked up."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(address: Address) -> bool:
    """Whether only this machine can be at the other end; a name is trusted only if `localhost`."""
    found = ip_of(address[0])
    return address[0] == "localhost" if found is None else found.is_loopback


async def resolve(address: Address) -> Address:
    """The address with an IP address as its host, which is all that endpoints send to, spelled as
    what comes from there is: whoever waits for an answer compares them.

    Raises InvalidInput for a name that nobody knows.
    """
    host, port = address
    if (known := ip_of(host)) is not None:
        return spelled(known), port
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        found = []
    # Names mostly stand for both families; brokers listen on IPv4 unless told otherwise.
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    if not found:
        raise InvalidInput(
            f"nobody knows the host {host!r}",
            code="transport.unknown_host",
            hint="check the name, or write an IP address",
        )
    return told_address(found[0][4])[0], port
