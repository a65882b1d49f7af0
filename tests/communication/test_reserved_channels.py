"""Every reserved channel of the source's section 1.3, and what stands in each after one walk: a
task goes out, a peer logs in, a pull adapter is asked to look and finds a question. [CO-12]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rapport.channel.backends.readonly import open_readonly
from rapport.channel.validation import is_node_channel
from rapport.communication.api import (
    Communication,
    Delivery,
    Identifier,
    Message,
    Outcome,
    Peer,
    Sent,
    adapter,
    open_communication,
)
from rapport.core.event import Event
from rapport.core.message import MESSAGE
from rapport.kernel.clock import SystemClock

APP, ANA = Identifier("component", "application"), Identifier("peer", "ana")
LOGIN = Message(type="AUTH", subtype="REQUEST", sender=ANA, content='{"password": "a secret"}')
WHAT = Message(type="MESSAGEINFO", subtype="REQUEST", sender=ANA, content="TASK")
TASK = Message(type="TASK", subtype="REQUEST", sender=APP, id="task", receiver=ANA)


class Letterbox:
    """A pull adapter: holds what peers said until it is looked into."""

    def __init__(self, *letters: Message) -> None:
        self._letters = list(letters)

    async def pull(self) -> Sequence[Message]:
        letters, self._letters = self._letters, []
        return letters


@adapter("note")
class Notes:
    async def send(self, _delivery: Delivery) -> Outcome:
        return Sent()

    async def close(self) -> None:
        return


async def walk(directory: Path) -> dict[str, list[Event]]:
    """One of everything; returns what then stands in each channel."""
    peers = (Peer(name="ana", addresses=("note:1",)),)
    async with open_communication(directory, peers=peers, outputs=[Notes]) as communication:
        heard: list[Message] = []
        await communication.add_notification_callback(heard.append)
        await communication.send(TASK)
        await communication._assembly.arrivals.publish([LOGIN], adapter="door", answers_back=True)
        await communication.add_pull_adapter(Letterbox(WHAT), None, name="box")
        await communication.request_pull("box")
        async with asyncio.timeout(15):
            while not heard or not {"TASK", "MESSAGEINFO"} <= await handled(communication):
                await SystemClock().sleep(20)
    channels = open_readonly(directory, SystemClock())
    return {
        name: [stored.event for stored in await channels.channel(name).read_after(0)]
        for name in channels.names()
    }


async def handled(communication: Communication) -> set[str]:
    """The types of messages whose fate is logged."""
    page = await communication.create_query().page()
    return {found.message.type for found in page.messages}


def test_each_reserved_channel_holds_what_is_its_own(tmp_path: Path) -> None:
    events = asyncio.run(walk(tmp_path))

    def types(channel: str) -> list[str]:
        """Of messages their own type, of other events the event's."""
        found = [(event.type, event.payload()) for event in events[channel]]
        return sorted(said["type"] if kind == MESSAGE else kind for kind, said in found)

    assert all(is_node_channel(name) for name in events)
    assert types("input") == ["MESSAGEINFO", "TASK"]
    assert types("auth") == ["rapport.auth.failed", "rapport.auth.request"]
    assert types("info") == ["MESSAGEINFO"]
    assert types("output.note") == ["rapport.output.delivery"]
    assert types("request.box") == ["rapport.input.request"]
    assert types("control") == ["rapport.control.ack"]
    logged = {
        said["type"]: said["fate"]
        for said in (event.payload() for event in events["log"] if event.type == MESSAGE)
    }
    assert logged == {"TASK": "queued", "MESSAGEINFO": "forwarded"}
    assert not any(b"a secret" in event.data for each in events.values() for event in each)
