"""Output adapters that do as told, for tests of what drives adapters. [CO-4]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rapport.communication.adapters.base import Delivery, Outcome, Sent, adapter
from rapport.kernel.clock import Chance, Clock


class ScriptedAdapter:
    """Does what its script says, then takes everything; keeps what it was handed."""

    def __init__(self, name: str, *script: Outcome | BaseException) -> None:
        self.name, self.script = name, list(script)
        self.sent: list[Delivery] = []
        self.closed = 0

    async def send(self, delivery: Delivery) -> Outcome:
        """The next of the script."""
        self.sent.append(delivery)
        outcome = self.script.pop(0) if self.script else Sent()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Counted."""
        self.closed += 1


class GatedAdapter:
    """Its sends wait until their peer is let through."""

    name = "mail"

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.begun: list[Delivery] = []
        self.ended: list[Delivery] = []
        self.most_at_once = self.at_once = 0
        self.closed = 0
        self._news = asyncio.Event()

    def gate(self, peer: str) -> asyncio.Event:
        """Set it to let the peer's sends through."""
        return self.gates.setdefault(peer, asyncio.Event())

    async def has_begun(self, count: int) -> None:
        """Returns when that many sends have begun."""
        async with asyncio.timeout(10):
            while len(self.begun) < count:
                self._news.clear()
                await self._news.wait()

    async def send(self, delivery: Delivery) -> Outcome:
        """Waits for the peer's gate."""
        self.begun.append(delivery)
        self._news.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate(delivery.peer).wait()
        finally:
            self.at_once -= 1
        self.ended.append(delivery)
        return Sent()

    async def close(self) -> None:
        """Counted."""
        self.closed += 1


class FaltersAdapter:
    """Takes its time, drawn from a seeded generator, and fails or raises now and then; keeps what
    arrived at the other side in the order in which it did.
    """

    def __init__(self, name: str, clock: Clock, chance: Chance, *outcomes: Outcome) -> None:
        self.name, self._clock, self._chance = name, clock, chance
        self._outcomes = (Sent(), *outcomes)
        self.arrived: list[Delivery] = []
        self.closed = 0

    async def send(self, delivery: Delivery) -> Outcome:
        """Arrives after a while; then it says so, says otherwise, or breaks."""
        await self._clock.sleep(self._chance.choice((0, 0, 1, 2, 5)))
        self.arrived.append(delivery)
        if self._chance.random() < 0.1:
            raise RuntimeError("broken")
        return self._chance.choice(self._outcomes)

    async def close(self) -> None:
        """Counted."""
        self.closed += 1


@adapter("many")
class ManyAdapter:
    """Takes many at once and does nothing with them; the cheapest medium there can be."""

    name = "many"
    keeps_order = True

    def __init__(self, *, keeps_order: bool = True, repeatable: bool = False) -> None:
        self.keeps_order, self.repeatable = keeps_order, repeatable
        self.calls: list[list[Delivery]] = []
        self.closed = 0

    async def send(self, delivery: Delivery) -> Outcome:
        """One alone."""
        return (await self.send_many([delivery]))[0]

    async def send_many(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """All are taken."""
        self.calls.append(list(deliveries))
        return [Sent()] * len(deliveries)

    async def close(self) -> None:
        """Counted."""
        self.closed += 1
