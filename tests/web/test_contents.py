"""A message whose content does not fit its type's JSON Schema is refused. [CO-14]"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

SITE = """
[sessions]
memory_kib = 19456
passes = 2
lanes = 1

[messages.TASK.REQUEST]
text = "Please check a machine."
schema = { type = "object", required = ["machine"], properties = { load = { maximum = 5 } } }
"""
TASK = {"type": "TASK", "subtype": "REQUEST", "sender": "component:planner", "receiver": "ana"}


def with_content(content: object, **fields: str) -> dict[str, str]:
    return {**TASK, **fields, "content": json.dumps(content)}


def test_an_application_is_told_the_place_and_where_the_schema_is(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            good = with_content({"machine": "m-1", "load": 5})
            assert (await api.call("POST", "/messages", good)).status == 202
            bad = with_content({"machine": "m-1", "load": 6})
            refused = await api.call("POST", "/messages", bad)
            told = refused.json()
            assert (refused.status, told["title"]) == (400, "message.bad_content")
            assert " at /load: the value is greater than the maximum of 5" in told["detail"]
            assert "GET /messages/info/TASK/REQUEST" in told["hint"]
            both = await api.call("POST", "/messages", [good, bad])
            assert both.status == 400
            assert len(await api.node.channels.channel("input").read_after(0)) == 1

    asyncio.run(scenario())


def test_a_schema_that_is_put_at_run_time_holds_from_then_on(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            said = with_content({"machine": 1})
            assert (await api.call("POST", "/messages", said)).status == 202
            stricter = {"text": "x", "schema": {"properties": {"machine": {"type": "string"}}}}
            path = "/messages/info/TASK/REQUEST"
            assert (await api.call("PUT", path, stricter)).status == 200
            assert (await api.call("POST", "/messages", said)).status == 400
            assert (await api.call("DELETE", path)).status == 200
            assert (await api.call("POST", "/messages", said)).status == 202

    asyncio.run(scenario())


def test_of_a_peers_messages_the_fitting_ones_are_taken_and_the_others_explained(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            opened = await api.node.authenticating.sessions.begin("ana")
            session = {"Authorization": f"Session {opened.token}"}
            bad = with_content({}, sender="peer:ana", receiver="component:planner")
            good = with_content({"machine": "m"}, sender="peer:ana", receiver="component:planner")
            path = "/sessions/messages"
            answer = await api.call("POST", path, [bad, good], session)
            assert answer.status == 202
            first, second = answer.json()["messages"]
            assert (first["reason"], second["accepted"]) == ("message.bad_content", True)
            assert '"machine" is a required property' in first["fault"]["message"]
            alone = await api.call("POST", path, bad, session)
            assert (alone.status, alone.json()["title"]) == (400, "message.bad_content")
            lines = await api.node.channels.channel("log").read_after(0)
            refused = [one for one in lines if one.event.type == "rapport.arriving.refused"]
            assert [one.event.payload()["reason"] for one in refused] == ["message.bad_content"] * 2

    asyncio.run(scenario())
