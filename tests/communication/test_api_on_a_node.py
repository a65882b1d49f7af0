"""The public API on a running node, and with time moved by hand. [CO-15]"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rapport.communication.api import (
    Delivery,
    Identifier,
    Message,
    Outcome,
    Peer,
    Question,
    Sent,
    Wishes,
    adapter,
    open_communication,
)
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site

APP, ANA = Identifier("component", "app"), Identifier("peer", "ana")
NOON = 1_772_452_800_000
DEADLINE_SECONDS = 20
SITE = """
[site]
name = "hall"
[concepts.room.attributes]
area = "rectangle"
[peers.ana]
addresses = ["inbox:"]
"""


def task(**others: Any) -> Message:
    return Message(type="TASK", subtype="REQUEST", sender=APP, receiver=ANA, **others)


def test_a_node_has_the_same_api(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "site.toml").write_text(SITE)
        node = make_node(load_site(tmp_path), NodeSettings(port=0), SystemClock())
        await node.start()
        try:
            heard: asyncio.Queue[Message] = asyncio.Queue()
            await node.communication.add_notification_callback(heard.put)
            message = await node.communication.send(task(content="come"))
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert (await heard.get()).refers_to == message
            page = await node.communication.ledger.find(Question(message=message))
            assert [(row.peer, row.state) for row in page.rows] == [("ana", "handed")]
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_deadlines_follow_the_clock_that_is_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(NOON)
        peers = [Peer(name="ana", addresses=("inbox:",))]
        async with open_communication(tmp_path, peers=peers, clock=clock) as communication:
            heard: asyncio.Queue[Message] = asyncio.Queue()
            await communication.add_notification_callback(heard.put)
            message = await communication.send(task(), wishes=Wishes(answer_within=600_000))
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not (await communication.ledger.find(Question(state="handed"))).rows:
                    await SystemClock().sleep(10)
                assert heard.empty()
                clock.set_ms(NOON + 600_001)
                told = await heard.get()
            assert (told.subtype, told.refers_to) == ("TIMEOUT", message)

    asyncio.run(scenario())


def test_a_medium_given_at_opening_can_be_removed_and_registered_again(tmp_path: Path) -> None:
    sent: list[str] = []

    @adapter("note")
    class Notes:
        async def send(self, delivery: Delivery) -> Outcome:
            sent.append(delivery.text)
            return Sent()

        async def close(self) -> None:
            sent.append("closed")

    async def scenario() -> None:
        peers = [Peer(name="ana", addresses=("note:1",))]
        async with open_communication(tmp_path, peers=peers, outputs=[Notes]) as communication:
            heard: asyncio.Queue[Message] = asyncio.Queue()
            await communication.add_notification_callback(heard.put)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await communication.send(task(content="one"))
                await heard.get()
                assert await communication.remove_output_adapter("note") is True
                assert await communication.register_output_adapter(Notes) == "note"
                await communication.send(task(content="two"))
                assert (await heard.get()).subtype == "ACK"
            assert sent == ["one", "closed", "two"]
        assert sent[-1] == "closed"

    asyncio.run(scenario())
