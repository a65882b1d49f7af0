"""Open pages as a medium: handed, confirmed, or nobody there."""

from __future__ import annotations

import asyncio

from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Sent
from rapport.communication.adapters.inbox import OpenPages, PageAdapter, PageSettings
from rapport.kernel.clock import ManualClock
from rapport.testing.suites.adapter import make_delivery


class Page:
    """A page that takes so many deliveries."""

    def __init__(self, room: int = 10) -> None:
        self.room = room
        self.shown: list[Delivery] = []

    def take(self, delivery: Delivery) -> bool:
        if len(self.shown) >= self.room:
            return False
        self.shown.append(delivery)
        return True


def with_adapter(scenario):
    async def play():
        clock, pages = ManualClock(), OpenPages()
        await scenario(PageAdapter(pages, PageSettings(wait_ms=5_000), clock), pages, clock)

    asyncio.run(play())


def test_without_an_open_page_it_is_worth_a_retry_and_another_address_at_once():
    async def scenario(adapter, pages, _clock):
        pages.enter("ben", Page())
        outcome = await adapter.send(make_delivery("ws:", peer="ana"))
        assert outcome == Failed("no page of this person is open", retry=True, unavailable=True)

    with_adapter(scenario)


def test_a_page_that_says_it_shows_the_message_confirms_it():
    async def scenario(adapter, pages, _clock):
        first, second = Page(), Page()
        pages.enter("ana", first)
        pages.enter("ana", second)
        delivery = make_delivery("ws:")
        sending = asyncio.create_task(adapter.send(delivery))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert first.shown == second.shown == [delivery]
        pages.shown("ben", delivery.key)  # of another person: counts for nothing
        pages.shown("ana", "other")
        pages.shown("ana", delivery.key)
        assert await sending == Confirmed(delivery.key)
        pages.shown("ana", delivery.key)  # said again later: no error

    with_adapter(scenario)


def test_a_page_that_took_it_and_says_nothing_is_handed_not_confirmed():
    async def scenario(adapter, pages, clock):
        pages.enter("ana", Page())
        delivery = make_delivery("ws:")
        sending = asyncio.create_task(adapter.send(delivery))
        await clock.advance(5_001)
        assert await sending == Sent(delivery.key)

    with_adapter(scenario)


def test_a_page_that_is_full_or_closed_takes_nothing():
    async def scenario(adapter, pages, _clock):
        full, closed = Page(room=0), Page()
        pages.enter("ana", full)
        pages.enter("ana", closed)
        pages.leave("ana", closed)
        pages.leave("ana", closed)
        assert isinstance(await adapter.send(make_delivery("ws:")), Failed)
        assert pages.is_open("ana")
        pages.leave("ana", full)
        assert not pages.is_open("ana")

    with_adapter(scenario)
