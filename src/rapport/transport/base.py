"""What every medium promises: datagrams, best effort, sized, to one or to all in range.
[CX-2, EN-4, EN-10]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rapport.kernel.clock import Now as Now

Address = tuple[str, int]
"""Host and port; in memory and in simulations any name and any number."""

MAX_DATAGRAM = 1_432
"""What passes an Ethernet whole, over IPv4 and IPv6, with room for a tunnel: 1,500 less 48 for the
headers, less 20. Larger ones are cut by IP and lost whole when one piece is.
"""

Handler = Callable[[bytes, Address], None]
"""Gets a datagram and the address it came from."""


class Sender(NamedTuple):
    """Who sent a message, as far as it was proven."""

    address: Address
    identity: str = ""
    """The owner of the key that sealed it; empty where nothing is sealed."""
    kind: str = "network"
    """`network`: a member of the network; `client`: one that only talks to members."""
    to_all: bool = False
    """It was said to all in range; false where that is not known."""


class Endpoint(Protocol):
    """A place on a medium.

    Sending never waits and never fails because of who is at the other end: a datagram arrives
    once, several times, out of order or never.
    """

    address: Address
    max_datagram: int

    def send(self, datagram: bytes, to: Address) -> None:
        """Towards one address; raises InvalidInput when larger than `max_datagram`."""

    def broadcast(self, datagram: bytes) -> None:
        """To all in range; raises Unsupported where the medium cannot."""

    def receive(self, handler: Handler) -> None:
        """Calls the handler for each datagram from now on; a second call replaces the first."""

    async def close(self) -> None:
        """Nothing is received after it returns; closing twice is no error."""
