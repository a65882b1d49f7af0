"""The endpoints around messages: query, information, routing rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from rapport.core.message import Identifier, Message

pytestmark = pytest.mark.slow

ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")


async def log_messages(api: Any, count: int) -> None:
    """Messages as the engine logs them."""
    events = [
        Message(
            id=f"m{number}",
            type="TASK",
            subtype="REQUEST",
            sender=ANA,
            receiver=BEN,
            conversation=f"c{number % 2}",
            content=f"Check pump {number}",
        ).to_event(source="test", time=1_772_452_800_000 + number, fate="queued")
        for number in range(count)
    ]
    await api.node.channels.channel("log").append(events)


def test_messages_are_found_by_criteria_and_gone_through_by_token(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await log_messages(api, 5)
            first = (await api.call("GET", "/messages?type=TASK&limit=2")).json()
            assert [one["id"] for one in first["messages"]] == ["m4", "m3"]
            one = first["messages"][0]
            assert one["sender"] == "peer:ana"
            assert one["conversation-id"] == "c0"
            assert (one["fate"], one["time"]) == ("open", "2026-03-02T12:00:00.004Z")
            second = (await api.call("GET", f"/messages?token={first['next_token']}")).json()
            assert [one["id"] for one in second["messages"]] == ["m2", "m1"]
            again = (await api.call("GET", f"/messages?token={first['token']}")).json()
            assert again == first
            oldest = (await api.call("GET", "/messages?conversation=c1&order=oldest")).json()
            assert [one["id"] for one in oldest["messages"]] == ["m1", "m3"]
            found = (await api.call("GET", "/messages?contains=PUMP%203&sender=ana")).json()
            assert [one["id"] for one in found["messages"]] == ["m3"]
            assert (await api.call("GET", "/messages?id=m2")).json()["messages"][0]["id"] == "m2"
            for wrong in ("order=x", "limit=0", "sender=a:b", "token=x", "fate=x", "since=x"):
                assert (await api.call("GET", f"/messages?{wrong}")).status in (400, 404)

    asyncio.run(scenario())


def test_only_who_may_read_the_log_sees_messages(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        access = """
[access.reader]
token = "env:READER_TOKEN"
subscribe = ["events"]
"""
        async with served_node(token="secret", site_text=access) as api:
            assert (await api.call("GET", "/messages")).status == 401
            own = {"Authorization": "Bearer secret"}
            assert (await api.call("GET", "/messages", headers=own)).status == 200
            reader = {"Authorization": "Bearer " + "reading" * 4}
            assert (await api.call("GET", "/messages", headers=reader)).status == 403
            assert (await api.call("GET", "/routing", headers=reader)).status == 403
            path = "/messages/info/CONTROL/ACK"
            assert (await api.call("GET", path, headers=reader)).status == 200
            put = await api.call("PUT", path, {"text": "x"}, headers=reader)
            assert put.status == 403
            added = await api.call("POST", "/routing", {"to": ["peer:ana"]}, headers=reader)
            assert added.status == 403

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READER_TOKEN", "reading" * 4)
        asyncio.run(scenario())


def test_what_a_message_means_is_told_and_replaced_at_run_time(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        site = '\n[messages.TASK]\ntext = "Something to do."\n'
        async with served_node(site_text=site) as api:
            path = "/messages/info/TASK"
            told = (await api.call("GET", f"{path}/REQUEST")).json()
            assert (told["text"], told["origin"]) == ("Something to do.", "site")
            new = {
                "text": "Check a machine.",
                "schema": {"type": "object"},
                "answers": [{"type": "TASK", "subtype": "DONE"}],
            }
            put = await api.call("PUT", f"{path}/REQUEST", new)
            assert (put.status, put.json()["origin"]) == (200, "added")
            told = (await api.call("GET", f"{path}/REQUEST")).json()
            assert told["schema"] == {"type": "object"}
            assert told["answers"] == [{"type": "TASK", "subtype": "DONE", "text": ""}]
            await log_messages(api, 1)
            assert (await api.call("GET", "/messages/info?id=m0")).json() == told
            everything = (await api.call("GET", "/messages/info")).json()
            assert ("TASK", "REQUEST") in {(one["type"], one["subtype"]) for one in everything}
            assert (await api.call("DELETE", f"{path}/REQUEST")).status == 200
            assert (await api.call("DELETE", f"{path}/REQUEST")).status == 404
            unknown = await api.call("GET", "/messages/info/TSAK")
            assert unknown.status == 404
            assert unknown.json()["title"] == "message.unknown"
            assert unknown.json()["hint"] == "did you mean 'TASK'?"
            bad = await api.call("PUT", path, {"text": "x", "schema": {"type": "text"}})
            assert (bad.status, bad.json()["title"]) == (400, "info.bad_schema")
            for body in ({}, {"text": "x", "more": 1}, b"{", {"text": ""}):
                assert (await api.call("PUT", path, body)).status == 400

    asyncio.run(scenario())


def test_routing_rules_are_in_force_when_the_endpoint_answers(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        site = '\n[[routing]]\nid = "watch"\ntype = "NOTE"\nto = "peer:ana"\n'
        async with served_node(site_text=site) as api:
            added = await api.call("POST", "/routing", {"type": "TASK", "to": ["peer:ben"]})
            assert added.status == 201
            task = Message(type="TASK", subtype="X", sender=ANA)
            assert api.node.services.routing.recipients(task) == (BEN,)
            rules = (await api.call("GET", "/routing")).json()
            assert [(rule["type"], rule["origin"]) for rule in rules] == [
                ("TASK", "added") if rule["type"] == "TASK" else ("NOTE", "site") for rule in rules
            ]
            path = f"/routing/{quote(added.json()['id'])}"
            assert (await api.call("DELETE", path)).json()["to"] == ["peer:ben"]
            assert api.node.services.routing.recipients(task) == ()
            gone = await api.call("DELETE", path)
            assert (gone.status, gone.json()["title"]) == (404, "routing.unknown")
            kept = await api.call("DELETE", "/routing/watch")
            assert (kept.status, kept.json()["title"]) == (409, "routing.of_site")
            for body, code in (
                ({"to": ["peer:ana"]}, "routing.matches_everything"),
                ({"type": "TASK", "to": []}, "routing.no_recipient"),
                ({"type": "TASK", "to": ["ana"]}, "message.bad_identifier"),
                ({"type": "TASK"}, "routing.bad_rule"),
                (b"[", "routing.bad_rule"),
            ):
                refused = await api.call("POST", "/routing", body)
                assert (refused.status, refused.json()["title"]) == (400, code)

    asyncio.run(scenario())


async def _until(api: Any, path: str) -> list[dict[str, Any]]:
    """The messages at a path as soon as there are any."""
    log = api.node.channels.channel("log")
    for _turn in range(100):
        seen = log.last_position()
        found = (await api.call("GET", path)).json()["messages"]
        if found:
            return list(found)
        await log.wait_after(seen, timeout_ms=10_000)
    raise AssertionError(f"nothing came at {path}")


def test_a_peer_that_asks_what_a_message_means_is_sent_the_answer(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text='\n[messages.TASK]\ntext = "To do."\n') as api:
            asked = Message(
                type="MESSAGEINFO", subtype="REQUEST", sender=ANA, content="TASK", conversation="c9"
            )
            (arrived,) = await api.node.arrivals.publish(
                [asked], adapter="test", trusted=lambda _message: True
            )
            assert arrived.accepted
            (reply,) = await _until(api, "/messages?type=MESSAGEINFO&subtype=REPLY")
            assert (reply["receiver"], reply["refers-to"]) == ("peer:ana", arrived.id)
            assert (reply["conversation-id"], reply["sender"]) == ("c9", "component:info")
            assert reply["content"].startswith("TASK\nTo do.")
            (request,) = await _until(api, f"/messages?id={arrived.id}")
            assert request["fate"] == "forwarded"

    asyncio.run(scenario())


@pytest.mark.parametrize(("token", "expected"), [("shopping" * 4, ()), ("secret", ("ben",))])
def test_rules_see_the_identity_that_sends_not_the_name_it_gives(
    served_node: Callable[..., Any], token: str, expected: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        access = """
[access.shop]
token = "env:SHOP_TOKEN"
publish = ["input"]

[[routing]]
sender = "component:policy"
to = "peer:ben"
"""
        async with served_node(token="secret", site_text=access) as api:
            news = {"type": "NEWS", "subtype": "X", "sender": "component:policy"}
            bearer = {"Authorization": f"Bearer {token}"}
            sent = await api.call(
                "POST", "/messages", news | {"receiver": "component:app"}, headers=bearer
            )
            (message,) = sent.json()["ids"]
            own = {"Authorization": "Bearer secret"}
            logged: list[Any] = []
            while not logged:
                await api.node.channels.channel("log").wait_after(0, timeout_ms=10_000)
                found = await api.call("GET", f"/messages?id={message}", headers=own)
                logged = found.json()["messages"]
            stored = await api.node.channels.channel("log").read_after(0)
            (event,) = [one.event for one in stored if one.event.id == message]
            receivers = [one for one in event.payload()["receivers"] if one.startswith("peer:")]
            assert receivers == [f"peer:{name}" for name in expected]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_TOKEN", "shopping" * 4)
        asyncio.run(scenario())


def test_a_routed_message_reaches_who_the_rule_names(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("POST", "/routing", {"type": "NEWS", "to": ["peer:ben"]})
            news = {"type": "NEWS", "subtype": "X", "sender": "component:app"}
            sent = await api.call("POST", "/messages", news | {"receiver": "peer:ana"})
            (message,) = sent.json()["ids"]
            log, lines = api.node.channels.channel("log"), set()
            position = 0
            while not {"ana", "ben"} <= lines:
                assert await log.wait_after(position, timeout_ms=10_000)
                for stored in await log.read_after(position):
                    position = stored.position
                    if stored.event.subject == message:
                        lines.add(stored.event.payload().get("peer"))
            (found,) = await _until(api, f"/messages?id={message}")
            assert found["receiver"] == "peer:ana"

    asyncio.run(scenario())
