"""The interface of all media: datagrams of limited size, best effort, to one address or to all in
range. [CX-2, EN-4, EN-10]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rapport.core.errors import TooLarge
from rapport.kernel.clock import Now as Now
from rapport.kernel.telemetry import get_logger

Address = tuple[str, int]
"""Host and port; in memory and in simulations any name and any number."""

MAX_DATAGRAM = 1_432
"""The largest datagram that an Ethernet carries unfragmented, over IPv4 and IPv6, with room for a
tunnel: 1,500 less 48 for the headers, less 20.
"""

DatagramHandler = Callable[[bytes, Address], None]
"""Receives a datagram and its sender's address."""


class Sender(NamedTuple):
    """The sender of a message, as far as it was proven."""

    address: Address
    identity: str = ""
    """The owner of the key that sealed the message; empty without sealing."""
    kind: str = "network"
    """`network`: a member of the network; `client`: talks to members only."""
    to_all: bool = False
    """Whether it was a broadcast; false if unknown."""


class Endpoint(Protocol):
    """An address on a medium. Sending never waits and never fails because of the receiver: a
    datagram arrives once, several times, out of order or never.
    """

    address: Address
    max_datagram: int

    def send(self, datagram: bytes, to: Address) -> None:
        """Sends to one address; raises InvalidInput if larger than `max_datagram`."""

    def broadcast(self, datagram: bytes) -> None:
        """Sends to all in range; raises Unsupported if the medium cannot."""

    def receive(self, handler: DatagramHandler) -> None:
        """Sets the handler of datagrams; replaces an earlier one."""

    async def close(self) -> None:
        """Stops receiving; closing twice is no error."""


_log = get_logger(__name__)


def check_size(datagram: bytes, max_datagram: int) -> None:
    """Raises TooLarge (an InvalidInput) for a datagram that the medium cannot carry."""
    if len(datagram) > max_datagram:
        raise TooLarge(
            f"a datagram of {len(datagram)} bytes; this medium carries {max_datagram}",
            code="transport.too_large",
            hint="send it through a Station, which cuts messages into datagrams",
        )


def report_failure(error: Exception, sender: Address) -> None:
    """Logs an exception of a handler; it must not stop later datagrams."""
    _log.error("a datagram's handler failed", sender=sender, error=repr(error))
