"""A controller: commands brokers to join, leave and watch their neighbours. [CX-3, CX-4]"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.context.broker_status import BrokerStatus
from rapport.context.clients.broker_link import ContextClient
from rapport.context.connections import ContextNotFound
from rapport.context.protocol import Command, Message, Status
from rapport.core.errors import Corrupt, Unavailable
from rapport.transport.addresses import format_address, resolve
from rapport.transport.base import Address

_WITHIN_MS = 10_000


class ContextController(ContextClient):
    """Needs the right `control`. Each call names the broker to control."""

    async def join(
        self, broker: Address, brokers: Sequence[Address], *, within_ms: int = _WITHIN_MS
    ) -> None:
        """Has a broker look for neighbours among others; returns when it has joined.

        Raises Unavailable when it could not, or does not answer.
        """
        await self._find_neighbours(broker, "join", brokers, within_ms)

    async def connect(
        self, broker: Address, brokers: Sequence[Address], *, within_ms: int = _WITHIN_MS
    ) -> None:
        """Has a broker be the neighbour of exactly these, however far: a topology made by hand.

        Raises Unavailable when it could not, or does not answer.
        """
        await self._find_neighbours(broker, "connect", brokers, within_ms)

    async def leave(self, broker: Address, *, within_ms: int = _WITHIN_MS) -> None:
        """Has a broker leave its neighbours; it goes on to serve its own clients."""
        await self._command(broker, "leave", (), within_ms)

    async def monitor(self, broker: Address, *, within_ms: int = _WITHIN_MS) -> None:
        """Has a broker begin to ping its neighbours."""
        await self._command(broker, "monitor", (), within_ms)

    async def status(self, broker: Address, *, within_ms: int = 2_000) -> BrokerStatus:
        answer = await self._command(broker, "status", (), within_ms)
        try:
            return msgspec.json.decode(answer.why, type=BrokerStatus)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Corrupt(f"the broker's state cannot be read: {error}") from None

    async def _find_neighbours(
        self, broker: Address, what: str, brokers: Sequence[Address], within_ms: int
    ) -> None:
        known = tuple([await resolve(one) for one in brokers])
        try:
            await self._command(broker, what, known, within_ms)
        except ContextNotFound as error:
            raise Unavailable(
                f"{format_address(broker)} did not join: {error.message.partition(': ')[2]}",
                code="context.not_joined",
                hint="are the others running, and with the same keys?",
            ) from None

    async def _command(
        self, broker: Address, what: str, brokers: tuple[Address, ...], within_ms: int
    ) -> Status:
        def make(id: int, _left_ms: int) -> Message:
            return Command(id, what, brokers)

        there = await resolve(broker)
        answer = await self._link.call(
            make,
            within_ms=within_ms,
            what=what,
            to=there,
            received_ends=what in ("leave", "monitor"),
        )
        if not isinstance(answer, Status):
            raise Corrupt(f"the broker answered {what} with a record")
        return answer
