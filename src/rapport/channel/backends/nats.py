"""The address of NATS as a site names it, and the store there. [CH-13]"""

from __future__ import annotations

from urllib.parse import urlunsplit

import msgspec

from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.urls import address_parts
from rapport.store.base import SharedLogStore

_SCHEMES = ("nats", "tls", "ws", "wss")
_PREFIX = "rapport"


class NatsAddress(msgspec.Struct, frozen=True):
    """The servers of one cluster, and the prefix of the streams that nodes share."""

    servers: tuple[str, ...]
    prefix: str = _PREFIX


def read_address(text: str) -> NatsAddress:
    """Servers separated by commas; the path of the last one, if any, is the prefix.

    >>> read_address("nats://a:4222,nats://b:4222/building").prefix
    'building'
    """
    servers, prefix = [], _PREFIX
    for part in text.split(","):
        url = address_parts(part.strip())
        if url.scheme not in _SCHEMES or not url.hostname:
            raise InvalidInput(
                "this is no address of NATS",
                code="channel.bad_address",
                hint="as in nats://user:password@host:4222/prefix; several with commas between",
            )
        prefix = url.path.strip("/") or prefix
        servers.append(urlunsplit((url.scheme, url.netloc, "", "", "")))
    return NatsAddress(tuple(servers), prefix)


def open_nats_store(text: str) -> SharedLogStore:
    """The logs at an address; raises InvalidInput, Unsupported or StoreUnavailable."""
    address = read_address(text)
    try:
        from rapport.store.nats_store import NatsLogStore
    except ModuleNotFoundError as error:
        raise Unsupported(
            "keeping channels in NATS", "this installation", hint="pip install 'rapport[nats]'"
        ) from error
    return NatsLogStore(address.servers, prefix=address.prefix)
