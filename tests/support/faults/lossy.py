"""A bad network before a good endpoint: what is sent through it is lost, repeated, late, out of
order. [CX-2, CX-5]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rapport.kernel.clock import Chance
from rapport.transport.base import Address, DatagramHandler, Endpoint


class LossyEndpoint:
    """Wraps an endpoint of real sockets; delays on the loop's real time. Only what it sends
    suffers: with one on either side both ways do.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        chance: Chance,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
    ) -> None:
        self.address, self.max_datagram = endpoint.address, endpoint.max_datagram
        self.loss, self.duplication = loss, duplication
        self.delay_ms, self.jitter_ms = delay_ms, jitter_ms
        self.cut_off: set[Address] = set()
        """Addresses that nothing is sent to or heard from: a partition, as seen from here."""
        self.lost = self.duplicated = 0
        self._endpoint, self._chance = endpoint, chance
        self._is_closed = False

    def send(self, datagram: bytes, to: Address) -> None:
        """Towards one address, if chance wills."""
        if to in self.cut_off:
            self.lost += 1
            return
        self._suffer(lambda: self._endpoint.send(datagram, to))

    def broadcast(self, datagram: bytes) -> None:
        """To all in range, all or none of them."""
        self._suffer(lambda: self._endpoint.broadcast(datagram))

    def receive(self, handler: DatagramHandler) -> None:
        """Calls the handler for each datagram that is not from one cut off."""

        def hear(datagram: bytes, sender: Address) -> None:
            if sender not in self.cut_off:
                handler(datagram, sender)

        self._endpoint.receive(hear)

    async def close(self) -> None:
        """Closes the endpoint; what is late is lost."""
        self._is_closed = True
        await self._endpoint.close()

    def _suffer(self, send: Callable[[], None]) -> None:
        if self._chance.random() < self.loss:
            self.lost += 1
            return
        self._send_late(send)
        if self._chance.random() < self.duplication:
            self.duplicated += 1
            self._send_late(send)

    def _send_late(self, send: Callable[[], None]) -> None:
        delay_ms = self.delay_ms + self._chance.random() * self.jitter_ms
        if not delay_ms:
            send()
            return
        asyncio.get_running_loop().call_later(delay_ms / 1_000, self._send_unless_closed, send)

    def _send_unless_closed(self, send: Callable[[], None]) -> None:
        if not self._is_closed:
            send()
