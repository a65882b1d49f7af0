"""The public API on a running node, and with time moved by hand. [CO-15]"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rapport.communication.api import (
    Delivery,
    DeliveryOptions,
    Identifier,
    Message,
    Outcome,
    Peer,
    Question,
    Sent,
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
            message = await communication.send(
                task(), options=DeliveryOptions(answer_within=600_000)
            )
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


def test_messages_accepted_before_a_removal_still_go_out(tmp_path: Path) -> None:
    sent: list[str] = []

    @adapter("note")
    class Notes:
        async def send(self, delivery: Delivery) -> None:
            await SystemClock().sleep(1)
            sent.append(delivery.text)

        async def close(self) -> None:
            sent.append("closed")

    async def scenario() -> None:
        peers = [Peer(name="ana", addresses=("note:1",))]
        async with open_communication(tmp_path, peers=peers, outputs=[Notes]) as communication:
            texts = [f"text {number}" for number in range(50)]
            await communication.send_all([task(content=text) for text in texts])
            async with asyncio.timeout(DEADLINE_SECONDS):
                removals = [communication.remove_output_adapter("note") for _ in range(2)]
                assert await asyncio.gather(*removals) == [True, True]
            assert sent == [*texts, "closed"]
            assert await communication.remove_output_adapter("note") is False

    asyncio.run(scenario())


@pytest.mark.slow
def test_messages_that_wait_for_a_removal_when_the_process_is_killed_go_out_later(
    tmp_path: Path,
) -> None:
    """The application registers its medium a moment after it has opened communication again."""
    child = Path(__file__).with_name("removal_to_kill.py")
    with subprocess.Popen(
        [sys.executable, str(child), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "removing\n"
        process.kill()
    sent: set[str] = set()

    @adapter("note")
    class Notes:
        async def send(self, delivery: Delivery) -> None:
            sent.add(delivery.message)

        async def close(self) -> None:
            """Nothing to let go of."""

    async def scenario() -> None:
        peers = [Peer(name=f"p{n}", addresses=(f"note:{n}",)) for n in range(20)]
        async with open_communication(tmp_path, peers=peers) as communication:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not (await communication.ledger.find(Question(state="failed"))).rows:
                    await SystemClock().sleep(10)
            await communication.register_output_adapter(Notes)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while len(sent) < 20:
                    await SystemClock().sleep(10)

    asyncio.run(scenario())
