"""Sending under a lease: only while the share is certainly ours. [CO-17]"""

from __future__ import annotations

import asyncio

import pytest

from rapport.communication.adapters.base import (
    BatchAdapter,
    Delivery,
    SendInterrupted,
    Sent,
    is_repeatable,
)
from rapport.communication.cluster import LeasedCalls, leased
from rapport.communication.cluster_leases import HeldShare, Lease
from rapport.kernel.clock import ManualClock
from support.adapters import GatedAdapter, ManyAdapter, ScriptedAdapter

DELIVERY = Delivery(message="m", peer="ana", address="mail:", attempt=1, text="x")


class Holding:
    def __init__(self, left_ms=6_000):
        self.clock = ManualClock()
        self.until_ms = left_ms
        held = HeldShare(1, Lease("me", 1), lambda: max(self.until_ms - self.clock.now_ms(), 0))
        self.sends = LeasedCalls(held, self.clock, least_ms=3_000)


def test_a_call_waits_until_the_share_is_ours_for_long_enough():
    async def scenario():
        holding, medium = Holding(2_000), ScriptedAdapter("mail")
        sending = asyncio.ensure_future(leased(medium, holding.sends).send(DELIVERY))
        await holding.clock.advance(1_000)
        assert medium.sent == []
        holding.until_ms = 8_000
        await holding.clock.advance(100)
        assert await sending == Sent()

    asyncio.run(scenario())


def test_a_call_ends_when_the_share_runs_out_and_goes_on_when_it_is_renewed():
    async def scenario():
        holding, medium = Holding(6_000), GatedAdapter()
        sending = asyncio.ensure_future(leased(medium, holding.sends).send(DELIVERY))
        await holding.clock.advance(5_000)
        holding.until_ms = 11_000
        await holding.clock.advance(5_000)
        assert not sending.done()
        await holding.clock.advance(1_100)
        with pytest.raises(SendInterrupted):
            await sending
        assert medium.ended == []

    asyncio.run(scenario())


def test_what_comes_to_a_share_in_doubt_waits_at_the_gate_and_is_not_begun():
    async def scenario():
        holding, medium = Holding(2_000), ScriptedAdapter("mail")
        waiting = asyncio.ensure_future(holding.sends.gate())
        await holding.clock.advance(60_000)
        assert not waiting.done()
        with pytest.raises(SendInterrupted):
            await leased(medium, holding.sends).send(DELIVERY)
        assert medium.sent == []
        holding.until_ms = 70_000
        await holding.clock.advance(100)
        assert waiting.done()

    asyncio.run(scenario())


def test_giving_up_a_share_waits_for_what_is_under_way_and_lets_nothing_begin():
    async def scenario():
        holding, medium = Holding(60_000), GatedAdapter()
        adapter = leased(medium, holding.sends)
        first = asyncio.ensure_future(adapter.send(DELIVERY))
        await medium.has_begun(1)
        quiet = asyncio.ensure_future(holding.sends.quiet(5_000))
        await holding.clock.advance(200)
        second = asyncio.ensure_future(adapter.send(DELIVERY))
        await holding.clock.advance(200)
        assert not quiet.done()
        medium.gate("ana").set()
        await holding.clock.advance(500)
        assert await first == Sent()
        assert quiet.done()
        assert len(medium.begun) == 1
        second.cancel()

    asyncio.run(scenario())


def test_what_an_adapter_can_do_it_can_do_under_a_lease():
    async def scenario():
        holding, many = Holding(), ManyAdapter(repeatable=True)
        adapter = leased(many, holding.sends)
        assert isinstance(adapter, BatchAdapter)
        assert is_repeatable(adapter)
        assert adapter.keeps_order
        assert await adapter.send_many([DELIVERY, DELIVERY]) == [Sent(), Sent()]
        assert not isinstance(leased(GatedAdapter(), holding.sends), BatchAdapter)
        await adapter.close()
        assert many.closed == 0

    asyncio.run(scenario())
