"""Removing an adapter while deliveries wait for their next attempt: nothing ends silently."""

from __future__ import annotations

import asyncio
from typing import Any

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent
from rapport.communication.adapters.outputs import RETRIES_WITHIN_MS, Outputs
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.engine import CommunicationEngine
from rapport.communication.ledger import Ledger
from rapport.communication.peers import Peer, SiteDirectory
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock

NOON = 1_772_452_800_000
PEERS = {
    "ana": Peer(name="ana", addresses=("mail:ana@example.org",)),
    "ben": Peer(
        name="ben",
        addresses=("mail:ben@example.org", "sms:1"),
        delivery="preferred",
        fallback=True,
    ),
}


class Medium:
    """Fails the first attempts, then takes everything."""

    def __init__(self, name: str, failures: int = 0) -> None:
        self.name, self._failures = name, failures
        self.sent: list[Delivery] = []
        self.closed = 0

    async def send(self, delivery: Delivery) -> Outcome:
        if self._failures:
            self._failures -= 1
            return Failed("busy", retry=True)
        self.sent.append(delivery)
        return Sent()

    async def close(self) -> None:
        self.closed += 1


class Site:
    """An engine with two media."""

    def __init__(self, mail: Medium) -> None:
        self.clock = ManualClock(NOON)
        self.channels = open_memory(self.clock)
        records = self.channels.records
        self.mail, self.sms = mail, Medium("sms")
        self.outputs = Outputs(
            self.channels,
            records,
            self.clock,
            report=lambda found: self.engine.apply_outcomes(found),
        )
        self.engine = CommunicationEngine(
            self.channels,
            records,
            self.clock,
            EngineParts(
                directory=SiteDirectory(PEERS, {}),
                actions={},
                phrases={},
                adapters=self.outputs.names,
            ),
        )
        self.outputs.engine = self.engine
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Site:
        for medium in (self.mail, self.sms):
            await self.outputs.use(medium)
        self._running = [asyncio.create_task(self.engine.run())]
        await self.engine.opened.wait()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.outputs.close()

    async def send(self, peer: str) -> str:
        message = Message(
            type="TASK",
            subtype="",
            sender=Identifier("component", "app"),
            receiver=Identifier("peer", peer),
            content="please come",
            id=f"to-{peer}",
        )
        event = message.to_event(source="app", time=NOON)
        event.headers["proof"] = "application"
        await self.channels.channel("input").append([event])
        return message.id

    async def until(self, condition: Any, *, step_ms: int = 0) -> None:
        """Waits for a condition; with `step_ms` time passes meanwhile."""
        async with asyncio.timeout(20):
            while not await condition():
                if step_ms:
                    await self.clock.advance(step_ms)
                await SystemClock().sleep(2)

    async def states(self, message: str) -> list[str]:
        ledger = Ledger(self.channels)
        await ledger.refresh()
        return [f"{row.address} {row.state}" for row in ledger.rows(message=message) if row.address]

    async def is_failing(self, message: str) -> bool:
        return any(state.endswith("failed") for state in await self.states(message))


def play(mail: Medium, peer: str, check: Any) -> None:
    async def scenario() -> None:
        async with Site(mail) as site:
            message = await site.send(peer)
            await site.until(lambda: site.is_failing(message))
            removing = asyncio.create_task(site.outputs.remove("mail"))

            async def is_removed() -> bool:
                return removing.done()

            await site.until(is_removed, step_ms=200)
            assert await removing
            await check(site, message)

    asyncio.run(scenario())


def test_a_delivery_in_a_retry_pause_goes_out_before_its_adapter_is_removed() -> None:
    async def check(site: Site, message: str) -> None:
        assert [one.message for one in site.mail.sent] == [message]
        assert site.mail.closed == 1
        assert site.clock.now_ms() - NOON < RETRIES_WITHIN_MS

    play(Medium("mail", failures=1), "ana", check)


def test_what_still_fails_then_goes_to_the_next_address_at_once() -> None:
    async def check(site: Site, message: str) -> None:
        async def is_sent() -> bool:
            return bool(site.sms.sent)

        await site.until(is_sent)
        assert [one.message for one in site.sms.sent] == [message]
        assert site.mail.sent == []

    play(Medium("mail", failures=1_000), "ben", check)


def test_what_still_fails_then_and_has_no_other_address_fails_visibly() -> None:
    async def check(site: Site, message: str) -> None:
        async def is_closed() -> bool:
            ledger = Ledger(site.channels)
            await ledger.refresh()
            row = ledger.message(message)
            return row is not None and (row.state, row.result) == ("closed", "failed")

        await site.until(is_closed)
        assert site.clock.now_ms() - NOON < 2 * RETRIES_WITHIN_MS

    play(Medium("mail", failures=1_000), "ana", check)
