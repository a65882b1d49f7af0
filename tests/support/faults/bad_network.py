"""A bad network around one endpoint, in both directions, that is told what to do. [CX-4, CX-5]"""

from __future__ import annotations

from rapport.kernel.clock import Chance
from rapport.transport.addresses import parse_address
from rapport.transport.base import Address, DatagramHandler, Endpoint
from support.faults.lossy import LossyEndpoint


class BadNetwork:
    """Loses what is sent and what is heard. Both ends of a way have one, and each does half of it:
    a datagram arrives with the chance 1 - share.
    """

    def __init__(self, endpoint: Endpoint, chance: Chance) -> None:
        self.sending = LossyEndpoint(endpoint, chance)
        self.address, self.max_datagram = endpoint.address, endpoint.max_datagram
        self._chance = chance

    def obey(self, line: str) -> None:
        """`lose SHARE` or `cut HOST:PORT...`."""
        what, *words = line.split()
        if what == "lose":
            self.lose(float(words[0]))
        elif what == "cut":
            self.sending.cut_off = {parse_address(word) for word in words}

    def lose(self, share: float) -> None:
        """So many of all datagrams between two of these do not arrive."""
        self.sending.loss = 1 - (1 - share) ** 0.5

    def send(self, datagram: bytes, to: Address) -> None:
        """Towards one address, if chance wills."""
        self.sending.send(datagram, to)

    def broadcast(self, datagram: bytes) -> None:
        """To all in range."""
        self.sending.broadcast(datagram)

    def receive(self, handler: DatagramHandler) -> None:
        """Calls the handler for what is not lost."""

        def hear(datagram: bytes, sender: Address) -> None:
            if self._chance.random() >= self.sending.loss:
                handler(datagram, sender)

        self.sending.receive(hear)

    async def close(self) -> None:
        """Closes the endpoint."""
        await self.sending.close()
