"""Who is told of an alarm in the secure building, and when; a whole node on a clock by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.ledger_rows import MessageRow
from rapport.core.event import make_event
from rapport.core.times import format_time
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.scenarios.secure_building.people import answer_link_of
from rapport.scenarios.webhook_sink import WebhookSink
from rapport.site.site import load_site

pytestmark = pytest.mark.slow

NIGHT_MS = 1_772_492_400_000  # 23:00 UTC: ben, in Berlin, has his quiet hours


class Alarm:
    """A guest alone in the lab at `began`; mails and calls as they come."""

    def __init__(self, node: Node, clock: ManualClock, mailbox: LocalMailServer) -> None:
        self.node, self.clock, self.mailbox = node, clock, mailbox
        self.phone = WebhookSink()
        self.began = clock.now_ms()

    async def pass_seconds(self, seconds: int) -> None:
        """Moves the clock by single seconds and lets everybody act in each."""
        for _ in range(seconds):
            await self.clock.advance(1_000)
            await SystemClock().sleep(10)

    async def raise_it(self) -> None:
        seen = {"reader": "r1", "tag": "E200-01", "dx": 0, "dy": 0, "t": format_time(self.began)}
        event = make_event(source="readers", id="1", type="readers.raw", time=self.began, data=seen)
        await self.node.append("raw.readers", [event])
        while not await self.messages():
            await self.pass_seconds(1)
        await self.mailbox.wait_for(2)

    async def answer(self, text: str) -> None:
        """What the page behind the link of the first mail does."""
        link = answer_link_of(self.mailbox.mails[0])
        assert link is not None
        message, peer, token = link.partition("/answer/")[2].split("/")
        await self.node.answer(message, peer, token, text)

    async def messages(self) -> list[MessageRow]:
        await self.node.ledger.refresh()
        return self.node.ledger.messages()

    def told(self) -> set[str]:
        return {address for to in self.mailbox.recipients for address in to}


@asynccontextmanager
async def alarm(directory: Path) -> AsyncIterator[Alarm]:
    """The site as it is shipped, with its minute, and an alarm that the guards got by mail."""
    clock = ManualClock(NIGHT_MS)
    async with LocalMailServer() as mailbox, WebhookSink() as phone:
        site = prepare_site(
            directory / "site", mail_port=mailbox.port, phone_url=phone.url, answer_within="60s"
        )
        node = make_node(load_site(site), NodeSettings(), clock, channels=open_memory(clock))
        node.public_url = "http://building.example"
        raised = Alarm(node, clock, mailbox)
        raised.phone = phone
        try:
            async with asyncio.timeout(60):
                await node.start()
                await raised.raise_it()
                yield raised
        finally:
            await node.stop()


def test_an_urgent_alarm_reaches_both_guards_at_night_and_shows_the_badge_not_the_name(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with alarm(tmp_path) as raised:
            assert raised.told() == {"ana@example.org", "ben@example.org"}
            for mail in raised.mailbox.mails:
                assert "E200-01" in str(mail["Subject"])
                assert "lab" in str(mail["Subject"])
                assert "Grace" not in mail.as_string()

    asyncio.run(scenario())


def test_when_a_guard_answers_the_lead_is_not_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with alarm(tmp_path) as raised:
            await raised.answer("on my way")
            await raised.pass_seconds(130)
            assert raised.phone.posted == []
            await raised.node.ledger.refresh()
            assert "answered" in {row.state for row in raised.node.ledger.rows()}

    asyncio.run(scenario())


def test_when_nobody_answers_the_lead_is_asked_after_60_s(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with alarm(tmp_path) as raised:
            [message] = await raised.messages()
            left = message.time + 60_000 - raised.clock.now_ms()
            await raised.clock.advance(left - 1)
            await SystemClock().sleep(100)
            assert raised.phone.posted == []
            await raised.pass_seconds(1)
            await raised.phone.wait_for(1)
            assert len(raised.phone.posted) == 1

    asyncio.run(scenario())
