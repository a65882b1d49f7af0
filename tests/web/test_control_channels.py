"""What changes the node takes the right to change it, at every endpoint. [CH-15]"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect

from rapport.channel.validation import NODE_CHANGING_CHANNELS, NODE_CHANNELS
from rapport.channel.xmessages.envelope import SOAP_12, write_envelope

pytestmark = pytest.mark.slow

TOKENS = {"anywhere": "Kq7xW2mZ9pLr4TnV8cYd1BfG", "chief": "bH3sJ6vQ1zXw5RtN9kMe7UaP"}
ACCESS = """
[access.anywhere]
token = "env:ANYWHERE_TOKEN"
publish = ["*", "interpretations"]
subscribe = ["*"]
[access.chief]
token = "env:CHIEF_TOKEN"
publish = ["*"]
admin = true
"""
CONTROL = (*NODE_CHANGING_CHANNELS, *NODE_CHANNELS, "output.mail", "request.mail")
EVENT = {"id": "1", "source": "stranger", "type": "t", "data": {"a": 1}}
HANDED = {"node": "0123456789abcdef", "events": [EVENT]}
SOAP = write_envelope(
    SOAP_12,
    "<x:handleMessages><x:batch><x:messages><x:XEvent><x:type>t</x:type>"
    '<x:message contentType="application/json">{"n": 1}</x:message>'
    "</x:XEvent></x:messages></x:batch></x:handleMessages>",
)


def shown(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


@pytest.fixture
def open_node(served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, token in TOKENS.items():
        monkeypatch.setenv(f"{name.upper()}_TOKEN", token)
    return lambda: served_node(site_text=ACCESS)


async def published_by_socket(api: Any, channel: str) -> Any:
    address = api.url.replace("http", "ws") + f"/channels/{channel}/socket"
    async with connect(address, additional_headers=shown("anywhere")) as socket:
        await socket.send(json.dumps({"publish": [EVENT]}))
        return json.loads(await asyncio.wait_for(socket.recv(), 10))


async def strangers_events(api: Any, channel: str) -> int:
    kept = await api.node.channels.channel(channel).read_after(0, limit=1_000)
    return sum(one.event.source in ("stranger", "anywhere") for one in kept)


def test_who_may_publish_anywhere_appends_to_no_channel_that_steers_the_node(
    open_node: Any,
) -> None:
    async def scenario() -> None:
        async with open_node() as api:
            for channel in CONTROL:
                for path, body in (
                    (f"/channels/{channel}/events", EVENT),
                    (f"/federation/channels/{channel}/events", HANDED),
                    (f"/pipeline/channels/{channel}/events", [EVENT]),
                    (f"/soap/channels/{channel}", SOAP),
                ):
                    answer = await api.call("POST", path, body, shown("anywhere"))
                    assert answer.status == 403, path
                told = await published_by_socket(api, channel)
                assert "published" not in told, (channel, told)
                assert await strangers_events(api, channel) == 0, channel

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_interpretations_are_handed_over_by_who_may_change_the_node_alone(open_node: Any) -> None:
    async def scenario() -> None:
        async with open_node() as api:
            path = "/federation/channels/interpretations/events"
            refused = await api.call("POST", path, HANDED, shown("anywhere"))
            assert (refused.status, refused.json()["title"]) == (403, "access.not_admin")
            assert "admin = true" in refused.json()["hint"]
            taken = await api.call("POST", path, HANDED, shown("chief"))
            assert (taken.status, taken.json()["stored"]) == (200, 1)
            events = "/federation/channels/events/events"
            assert (await api.call("POST", events, HANDED, shown("anywhere"))).status == 200

    asyncio.run(asyncio.wait_for(scenario(), 60))
