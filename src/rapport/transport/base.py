"""What every medium promises: datagrams, best effort, sized, to one or to all in range.
[CX-2, EN-4, EN-10]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

Address = tuple[str, int]
"""Host and port; in memory and in simulations any name and any number."""

Handler = Callable[[bytes, Address], None]
"""Gets a datagram and the address it came from."""


class Now(NamedTuple):
    """A moment, as pure machines are told it."""

    wall_ms: int
    """Milliseconds since 1970 UTC: decides what is valid; may jump when a clock is set."""
    steady_ms: float
    """Milliseconds that never go back: decides what is due; only differences mean something."""


class Sender(NamedTuple):
    """Who sent a message, as far as it was proven."""

    address: Address
    identity: str = ""
    """The owner of the key that sealed it; empty where nothing is sealed."""
    kind: str = "network"
    """`network`: a member of the network; `client`: one that only talks to members."""


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
