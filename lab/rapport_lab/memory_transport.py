"""Datagrams between endpoints of one process, without loss and in order. [CX-2, CX-7]"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container

from rapport.core.errors import DuplicateName
from rapport.transport.base import (
    MAX_DATAGRAM,
    Address,
    DatagramHandler,
    check_size,
    report_failure,
)

_AT_ONCE = 64
"""Datagrams delivered before other callbacks of the loop run."""
_MOST_WAITING = 100_000
"""Maximum of unread datagrams of an endpoint; more are lost, as with a socket."""


class MemoryMedium:
    """Connects memory endpoints, all of them in range of each other."""

    def __init__(self, *, max_datagram: int = MAX_DATAGRAM) -> None:
        self._max_datagram = max_datagram
        self._places: dict[Address, MemoryEndpoint] = {}
        self._number = 0

    def open(self, address: Address | None = None) -> MemoryEndpoint:
        """Opens an endpoint, by default at a free address; raises DuplicateName."""
        if address is None:
            self._number += 1
            address = ("memory", self._number)
        check_is_free(address, self._places)
        endpoint = MemoryEndpoint(self, address, self._max_datagram)
        self._places[address] = endpoint
        return endpoint

    def carry(self, datagram: bytes, sender: Address, to: Address) -> None:
        """Delivers a datagram, or drops it if there is no endpoint."""
        place = self._places.get(to)
        if place is not None:
            place.put(datagram, sender)

    def carry_to_all(self, datagram: bytes, sender: Address) -> None:
        """Delivers a datagram to every other endpoint."""
        for address, place in self._places.items():
            if address != sender:
                place.put(datagram, sender)

    def remove(self, address: Address) -> None:
        self._places.pop(address, None)


class MemoryEndpoint:
    """An endpoint of a MemoryMedium; lives on the running loop."""

    def __init__(self, medium: MemoryMedium, address: Address, max_datagram: int) -> None:
        self.address, self.max_datagram = address, max_datagram
        self._medium = medium
        self._handler: DatagramHandler | None = None
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._is_woken = self._is_closed = False

    def send(self, datagram: bytes, to: Address) -> None:
        """Sends to one address; raises InvalidInput if larger than `max_datagram`."""
        check_size(datagram, self.max_datagram)
        if not self._is_closed:
            self._medium.carry(datagram, self.address, to)

    def broadcast(self, datagram: bytes) -> None:
        """Sends to all other endpoints of the medium."""
        check_size(datagram, self.max_datagram)
        if not self._is_closed:
            self._medium.carry_to_all(datagram, self.address)

    def receive(self, handler: DatagramHandler) -> None:
        """Sets the handler, also for unread datagrams."""
        self._handler = handler
        self._wake()

    async def close(self) -> None:
        """Leaves the medium and drops unread datagrams."""
        self._is_closed = True
        self._handler = None
        self._waiting.clear()
        self._medium.remove(self.address)

    def put(self, datagram: bytes, sender: Address) -> None:
        """Receives a datagram."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((datagram, sender))
        self._wake()

    def _wake(self) -> None:
        if self._waiting and not self._is_woken and self._handler is not None:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_woken = False
        for _ in range(min(len(self._waiting), _AT_ONCE)):
            if self._handler is None or not self._waiting:
                break
            datagram, sender = self._waiting.popleft()
            try:
                self._handler(datagram, sender)
            except Exception as error:
                report_failure(error, sender)
        self._wake()


def check_is_free(address: Address, taken: Container[Address]) -> None:
    """Raises DuplicateName if the address has an endpoint."""
    if address in taken:
        raise DuplicateName(
            f"there is an endpoint at {address[0]}:{address[1]} already",
            code="transport.address_taken",
            hint="choose another address, or close the other endpoint",
        )
