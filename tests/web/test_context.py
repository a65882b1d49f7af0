"""The endpoints to context: asking, telling, and who may. [CX-3, CX-9]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rapport.core.context_record import EntityRef

pytestmark = pytest.mark.slow

BROKER = '\n[context]\nlisten = "127.0.0.1:0"\n'
ROOM = "/context/room/r3/status"
OPEN = {"values": {"open": True, "celsius": 21.5}, "valid": "30s"}
ACCESS = """
[access.desk]
token = "env:DESK"
publish = ["context"]
subscribe = ["context"]
[access.reader]
token = "env:READER"
subscribe = ["context"]
[access.stranger]
token = "env:STRANGER"
subscribe = ["events"]
"""
RIGHTS = """
[context.rights.desk]
read = ["*"]
write = ["room/* status"]
[context.rights.reader]
read = ["room/r3 status"]
"""


def test_what_is_told_at_the_endpoint_is_found_there(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text=BROKER) as api:
            missing = await api.call("GET", f"{ROOM}?within=100ms")
            assert (missing.status, missing.json()["title"]) == (404, "context.not_found")
            told = await api.call("PUT", ROOM, OPEN)
            assert told.status == 200, told.body
            found = (await api.call("GET", ROOM)).json()
            assert found["values"] == OPEN["values"]
            assert (found["entity"], found["scope"], found["hops"]) == ("room/r3", "status", 0)
            assert found["valid_until"] > found["valid_from"]
            kept = await api.node.channels.channel("context").read_after(0)
            assert [stored.event.subject for stored in kept] == ["room/r3"]
            status = (await api.call("GET", "/context")).json()
            assert status["broker"]["records"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[", "context.bad_body"),
        ({"values": {}}, "context.bad_body"),
        ({"values": {"a": 1}, "valid": "0s"}, "context.bad_body"),
        ({"values": {"a": 1}, "valid": "soon"}, "time.bad_duration"),
    ],
)
def test_what_says_nothing_is_refused(
    served_node: Callable[..., Any], body: object, code: str
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=BROKER) as api:
            refused = await api.call("PUT", ROOM, body)
            assert (refused.status, refused.json()["title"]) == (400, code)
            late = await api.call("GET", f"{ROOM}?within=2h")
            assert (late.status, late.json()["title"]) == (400, "context.bad_deadline")

    asyncio.run(scenario())


def test_a_site_without_a_broker_says_so(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for method, path in (("GET", ROOM), ("PUT", ROOM), ("GET", "/context")):
                refused = await api.call(method, path, OPEN if method == "PUT" else None)
                assert (refused.status, refused.json()["title"]) == (404, "context.no_broker_here")

    asyncio.run(scenario())


def test_rights_of_the_channel_and_of_the_entity_are_both_needed(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("desk", "reader", "stranger")
    tokens = {name: f"{name}-f3a9c1e7b5d2846092718bce" for name in names}
    for name, token in tokens.items():
        monkeypatch.setenv(name.upper(), token)
    bearer = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}

    async def scenario() -> None:
        async with served_node(token="t" * 40, site_text=BROKER + RIGHTS + ACCESS) as api:

            async def asked(method: str, path: str, who: str) -> int:
                body = OPEN if method == "PUT" else None
                return int((await api.call(method, path, body, headers=bearer[who])).status)

            assert await asked("PUT", ROOM, "desk") == 200
            assert await asked("PUT", "/context/room/r3/secret", "desk") == 403
            assert await asked("PUT", ROOM, "reader") == 403
            assert await asked("GET", ROOM, "reader") == 200
            assert await asked("GET", "/context/room/r4/status?within=50ms", "reader") == 403
            assert await asked("GET", ROOM, "stranger") == 403
            assert await asked("GET", "/context", "desk") == 403
            assert (await api.call("GET", ROOM)).status == 401
            found = await api.node.context.broker.ask(EntityRef("room", "r3"), "status")
            assert found.record.provider == "desk"

    asyncio.run(scenario())
