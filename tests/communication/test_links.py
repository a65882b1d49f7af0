"""Links to inboxes that count no more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.links import LONGEST_DAYS, LinkEditions, inbox_token, is_inbox_token
from rapport.communication.sessions.logins import Authenticator, Logins
from rapport.communication.sessions.passwords import Passwords
from rapport.communication.sessions.sessions import Sessions
from rapport.kernel.clock import ManualClock
from rapport.store.memory import MemoryRecordStore

DAY = 86_400_000
SECRET = b"s" * 32


def test_ending_links_ends_those_that_were_made_before_for_as_long_as_links_last():
    async def scenario():
        clock = ManualClock(1_772_452_800_000)
        records = open_memory(clock).records
        links = LinkEditions(records, clock)
        until_ms = clock.now_ms() + LONGEST_DAYS * DAY

        async def is_good(token: str) -> bool:
            edition = await links.edition("ana")
            return is_inbox_token(SECRET, "ana", token, clock.now_ms(), edition)

        first = inbox_token(SECRET, "ana", until_ms, await links.begin("ana"))
        assert await is_good(first)
        assert await links.peers() == ["ana"]
        await links.end("ana")
        assert not await is_good(first)
        assert await links.peers() == []  # nothing of them counts: nobody has to be looked for
        second = inbox_token(SECRET, "ana", until_ms, await links.begin("ana"))
        assert await is_good(second)
        assert second != first
        assert await LinkEditions(records, clock).peers() == ["ana"]
        clock.set_ms(until_ms - 1)
        assert await links.peers() == ["ana"]
        assert not await is_good(first)
        clock.set_ms(until_ms + 2 * DAY)
        assert await links.peers() == []
        assert not records.find("inbox.links")
        assert not await is_good(first)  # it is over

    asyncio.run(scenario())


def test_a_link_that_is_made_while_links_end_brings_none_back():
    class Slow(MemoryRecordStore):
        looked, ended = threading.Event(), threading.Event()

        def get(self, table, key):
            found = super().get(table, key)
            if not self.looked.is_set():
                self.looked.set()
                self.ended.wait(10)
            return found

    async def scenario():
        clock, records = ManualClock(1_772_452_800_000), Slow()
        records.looked.set()
        page, node = LinkEditions(records, clock), LinkEditions(records, clock)
        before = await page.begin("ana")
        records.looked.clear()
        making = asyncio.create_task(page.begin("ana"))
        await asyncio.to_thread(records.looked.wait, 10)
        await node.end("ana")
        records.ended.set()
        made = await making
        assert await node.edition("ana") == made != before
        assert await node.peers() == ["ana"]

    asyncio.run(scenario())


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "left"])
def test_the_links_of_who_left_while_nothing_ran_end_at_the_next_look(stays):
    async def scenario():
        clock = ManualClock(1_772_452_800_000)
        channels = open_memory(clock)
        records, names = channels.records, {"ana"} if stays else set()
        links = LinkEditions(records, clock)
        passwords = Passwords(records)
        door = Authenticator(channels, records, clock, Sessions(records, clock), passwords.check)
        door.after_ending.append(links.end)
        Logins(passwords, door, names.__contains__, others=links.peers)
        before = await links.begin("ana")
        for _ in range(2):
            await door.forget_old()
        assert (await links.edition("ana") == before) is stays
        told = [one.event.type for one in await channels.channel("auth").read_after(0)]
        assert told == ([] if stays else ["rapport.auth.ended"])  # once

    asyncio.run(scenario())
