"""A panel on the wall: told by MQTT, answering by MQTT, through a whole node. [CO-16]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from support.servers.mqtt import Device
from support.servers.nats import NatsServer

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "hall"
[concepts.room.attributes]
temperature = "number"
[peers.panel]
addresses = ["mqtt:panels/panel/show"]
[adapters.mqtt]
broker = "mqtt://127.0.0.1:{port}"
[inputs.panels]
adapter = "mqtt"
broker = "mqtt://127.0.0.1:{port}"
topics = ["panels/answers"]
"""


async def until(condition: Callable[[], Any], seconds: int = 20) -> None:
    for _ in range(seconds * 20):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come about")


def play(tmp_path: Path, scenario: Any) -> None:
    async def run(broker: NatsServer) -> None:
        (tmp_path / "site.toml").write_text(SITE.format(port=broker.mqtt_port))
        node = make_node(load_site(tmp_path), NodeSettings(port=0), SystemClock())
        with Device(broker.mqtt_port, "panels/panel/show") as device:
            try:
                await node.start()
                await scenario(node, device)
            finally:
                await node.stop()

    with NatsServer(mqtt=True) as broker:
        asyncio.run(run(broker))


async def told(node: Node, device: Device) -> tuple[str, dict[str, Any]]:
    message = Message(
        type="TASK",
        subtype="ASK",
        sender=Identifier("component", "desk"),
        receiver=Identifier("peer", "panel"),
        content="Is the door shut?",
    )
    (id,) = await node.arrivals.send([message])
    _, heard = await asyncio.to_thread(device.next, 20)
    return id, heard


def test_a_panel_hears_a_message_and_its_answer_is_known_as_its_own(tmp_path: Path) -> None:
    async def scenario(node: Node, device: Device) -> None:
        id, heard = await told(node, device)
        assert (heard["id"], heard["content"]) == (id, "Is the door shut?")
        reply = {
            "type": "REPLY",
            "subtype": "TEXT",
            "sender": "peer:panel",
            "refers-to": id,
            "content": "yes",
        }
        channel = node.channels.channel("input")
        before = channel.last_position()
        device.publish("panels/answers", reply | {"session-token": heard["answer"]})

        async def has_come() -> bool:
            return channel.last_position() > before

        await until(has_come)
        (stored,) = await channel.read_after(before)
        assert stored.event.headers["proof"] == "answer"
        assert "session-token" not in stored.event.payload()

        async def is_answered() -> bool:
            await node.ledger.refresh()
            row = node.ledger.message(id)
            return row is not None and row.answered_by == "panel"

        await until(is_answered)

    play(tmp_path, scenario)


def test_an_answer_with_another_token_is_refused_and_written_down(tmp_path: Path) -> None:
    async def scenario(node: Node, device: Device) -> None:
        id, _heard = await told(node, device)
        forged = {"type": "R", "subtype": "T", "sender": "peer:panel", "refers-to": id}
        device.publish("panels/answers", forged | {"session-token": "0" * 40})
        log = node.channels.channel("log")

        async def is_refused() -> bool:
            stored = await log.read_after(0)
            return any("refused" in one.event.type for one in stored)

        await until(is_refused)

    play(tmp_path, scenario)
