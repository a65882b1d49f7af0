"""Messages through the endpoint, and what the ledger's endpoints say of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def message(to: str = "peer:zoe", **fields: Any) -> dict[str, Any]:
    return {
        "type": "TASK",
        "subtype": "REQUEST",
        "sender": "component:test",
        "receiver": to,
        "content": "come",
        **fields,
    }


async def until_over(api: Any, name: str) -> Any:
    for _ in range(300):
        shown = await api.call("GET", f"/ledger/messages/{name}")
        if shown.status == 200 and shown.json()["message"]["state"] != "open":
            return shown.json()
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} was not decided: {shown.body!r}")


def test_a_message_is_sent_to_a_person_of_the_store_and_the_ledger_tells_how_it_went(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("PUT", "/peers/zoe", {"addresses": ["inbox:"]})
            sent = await api.call("POST", "/messages", message())
            assert sent.status == 202
            (name,) = sent.json()["ids"]
            shown = await until_over(api, name)
            assert (shown["message"]["state"], shown["message"]["result"]) == ("closed", "done")
            assert shown["sentence"] == "1 told, 0 answered"
            assert [(one["peer"], one["fate"], one["by"]) for one in shown["people"]] == [
                ("zoe", "told", ["inbox:"])
            ]
            assert shown["timeline"][0]["state"] == "written"
            rows = await api.call("GET", f"/ledger?person=zoe&message={name}&state=handed")
            assert [row["adapter"] for row in rows.json()] == ["inbox"]

    asyncio.run(scenario())


def test_the_ledger_goes_on_by_its_link_and_says_what_it_cannot_be_asked(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("PUT", "/peers/zoe", {"addresses": ["inbox:"]})
            many = [message(**{"conversation-id": "c"}) for _ in range(5)]
            ids = (await api.call("POST", "/messages", many)).json()["ids"]
            assert len(set(ids)) == 5
            for name in ids:
                await until_over(api, name)
            path, found = "/ledger?person=zoe&limit=2", list[str]()
            while path:
                page = await api.call("GET", path)
                found += [row["message"] for row in page.json()]
                link = page.headers.get("link", "")
                path = link.partition(">")[0].removeprefix("<")
            assert sorted(found) == sorted(ids)
            wrong = await api.call("GET", "/ledger?state=handd")
            assert (wrong.status, wrong.json()["title"]) == (400, "ledger.unknown_state")
            assert "handed" in wrong.json()["hint"]
            assert (await api.call("GET", "/ledger?after=x")).status == 400
            assert (await api.call("GET", "/ledger?since=yesterday")).status == 400
            assert (await api.call("GET", "/ledger/messages/nothing")).status == 404
            closed = await api.call("GET", "/ledger/messages?state=closed&limit=10")
            assert {row["message"] for row in closed.json()} == set(ids)

    asyncio.run(scenario())


def test_a_wish_is_heard_and_a_wrong_one_refused(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("PUT", "/peers/zoe", {"addresses": ["inbox:"]})
            await api.call("PUT", "/collectives/all", {"members": ["zoe"]})
            wished = message("collective:all", wishes={"least": 1})
            (name,) = (await api.call("POST", "/messages", wished)).json()["ids"]
            for _ in range(300):
                shown = await api.call("GET", f"/ledger/messages/{name}?timeline=false")
                if shown.status == 200 and shown.json()["summary"]["told"]:
                    break
                await asyncio.sleep(0.02)
            # Told, but an answer is what counts.
            assert shown.json()["message"]["state"] == "open"
            assert shown.json()["timeline"] == []
            for wishes in ({"least": "three"}, {"least": -1}):
                refused = await api.call("POST", "/messages", message(wishes=wishes))
                assert (refused.status, refused.json()["title"]) == (400, "message.bad_wishes")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (message("peer:anna"), 404, "peer.unknown"),
        (message("collective:gards"), 404, "collective.unknown"),
        (message("nonsense:x"), 400, "message.bad_identifier"),
        ({"type": "TASK"}, 400, "message.not_a_message"),
        (b"[1", 400, "message.not_a_message"),
        (message(to="peer:ana", sender="peer:ben"), 403, "message.not_proven"),
        (message(to="peer:ana", content="x" * 1_100_000), 400, "message.too_long"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_a_reason(
    served_node: Callable[..., Any], body: Any, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            refused = await api.call("POST", "/messages", body)
            assert (refused.status, refused.json()["title"]) == (status, code)
            assert api.node.channels.channel("input").last_position() == 0

    asyncio.run(scenario())
