"""Peers log in, renew and log out at the endpoints; strangers learn nothing there."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from rapport.communication.sessions.seals import Seal, from_text, seal_message
from rapport.core.errors import TooFast
from rapport.core.message import Identifier, Message

ADMIN = "n0de-t0ken-of-the-node-itself-1234567890"
AS_NODE = {"Authorization": f"Bearer {ADMIN}"}
PASSWORD = "correct horse battery"
CHEAP = "\n[sessions]\nmemory_kib = 19456\npasses = 2\nlanes = 1\n"
LOGIN = {"peer": "ana", "password": PASSWORD}


def with_session(token: str) -> dict[str, str]:
    return {"Authorization": f"Session {token}"}


@pytest.mark.slow
def test_a_peer_logs_in_renews_and_logs_out(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token=ADMIN, site_text=CHEAP) as api:
            path = "/peers/ana/password"
            body = {"password": PASSWORD}
            assert (await api.call("POST", path, body)).status == 401
            assert (await api.call("POST", path, body, AS_NODE)).json() == {"ended": 0}
            opened = await api.call("POST", "/sessions", LOGIN)
            assert opened.status == 201
            assert opened.headers["cache-control"] == "no-store"
            token = opened.json()["token"]
            assert await api.node.authenticating.sessions.peer_of(token) == "ana"
            renewed = await api.call("POST", "/sessions", {"peer": "ana", "token": token})
            assert renewed.status == 201
            assert renewed.json()["seal_key"] == opened.json()["seal_key"]
            other = await api.call("POST", "/sessions", {"peer": "ben", "token": token})
            assert other.status == 401
            for status in (200, 401):
                gone = await api.call("DELETE", "/sessions", headers=with_session(token))
                assert gone.status == status
            assert await api.node.authenticating.sessions.peer_of(token) is None

    asyncio.run(scenario())


def test_a_session_token_opens_no_other_endpoint(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token=ADMIN, site_text=CHEAP) as api:
            await api.node.logins.set_password("ana", PASSWORD, by="test")
            token = (await api.call("POST", "/sessions", LOGIN)).json()["token"]
            for headers in (with_session(token), {"Authorization": f"Bearer {token}"}):
                assert (await api.call("GET", "/ledger", headers=headers)).status == 401

    asyncio.run(scenario())


def test_all_wrong_logins_are_answered_alike_and_then_slowed_down(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            await api.node.logins.set_password("ana", PASSWORD, by="test")
            wrong = [
                {"peer": "ana", "password": "a wrong guess"},
                {"peer": "nobody", "password": PASSWORD},
                {"peer": "ben", "password": PASSWORD},
                {"peer": "x" * 5_000, "password": "y" * 5_000},
                {"peer": "", "password": PASSWORD},
            ]
            answers = [await api.call("POST", "/sessions", body) for body in wrong]
            assert {answer.status for answer in answers} == {401}
            assert len({answer.body for answer in answers}) == 1
            for _ in range(4):
                await api.call("POST", "/sessions", wrong[0])
            slowed = await api.call("POST", "/sessions", LOGIN)
            assert slowed.status == 429
            assert int(slowed.headers["retry-after"]) >= 1
            assert slowed.json()["title"] == "auth.too_fast"

    asyncio.run(scenario())


def test_people_behind_a_proxy_that_the_site_trusts_are_told_apart(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP, trusted_proxies=("127.0.0.1",)) as api:
            await api.node.logins.set_password("ana", PASSWORD, by="test")
            begin = api.node.authenticating._attempts.begin
            now_ms = api.node.clock.now_ms()
            for number in range(25):
                with contextlib.suppress(TooFast):
                    begin(f"peer{number}", "10.0.0.66", now_ms)
            for origin, status in (("10.0.0.66", 429), ("10.0.0.66, 10.0.0.7", 201)):
                answer = await api.call("POST", "/sessions", LOGIN, {"X-Forwarded-For": origin})
                assert answer.status == status

    asyncio.run(scenario())


def test_a_body_that_cannot_be_read_is_not_repeated(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            for body in (
                b'{"peer": "ana", "password": hunter2}',
                b'{"peer": "ana", "pasword": "hunter2"}',
                b'{"peer": "ana", "password": ["hunter2"]}',
                b'"hunter2"',
                b"\xff\xfehunter2",
                b"hunter2" * 10_000,
                b"",
            ):
                answer = await api.call("POST", "/sessions", body)
                assert answer.status == 400
                assert answer.json()["title"] == "auth.bad_request"
                assert b"hunter2" not in answer.body

    asyncio.run(scenario())


def test_a_new_password_ends_sessions_and_bad_ones_are_refused(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            path = "/peers/ana/password"
            assert (await api.call("POST", path, {"password": PASSWORD})).status == 200
            token = (await api.call("POST", "/sessions", LOGIN)).json()["token"]
            short = await api.call("POST", path, {"password": "short"})
            assert short.json()["title"] == "password.bad_length"
            unknown = await api.call("POST", "/peers/nobody/password", {"password": PASSWORD})
            assert unknown.status == 404
            assert await api.node.authenticating.sessions.peer_of(token) == "ana"
            assert (await api.call("DELETE", path)).json() == {"ended": 1}
            assert await api.node.authenticating.sessions.peer_of(token) is None
            assert (await api.call("POST", "/sessions", LOGIN)).status == 401

    asyncio.run(scenario())


def test_a_logged_in_peer_sends_messages_and_nobody_else_does(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(token=ADMIN, site_text=CHEAP) as api:
            await api.node.logins.set_password("ana", PASSWORD, by="test")
            token = (await api.call("POST", "/sessions", LOGIN)).json()["token"]
            hello = {"type": "HELLO", "subtype": "", "sender": "peer:ana", "content": "hi"}
            path = "/sessions/messages"
            assert (await api.call("POST", path, hello)).status == 401
            wrong = {**hello, "session-token": token[:-4] + "AAAA"}
            assert (await api.call("POST", path, wrong)).status == 401
            of_ben = {**hello, "sender": "peer:ben"}
            assert (await api.call("POST", path, of_ben, with_session(token))).status == 401
            component = {**hello, "sender": "component:policy"}
            assert (await api.call("POST", path, component, with_session(token))).status == 403
            sent = await api.call("POST", path, [hello, of_ben], with_session(token))
            assert sent.status == 202
            first, second = sent.json()["messages"]
            assert first["accepted"]
            assert second == {"accepted": False, "reason": "session.invalid"}
            assert (await api.call("POST", path, b"[]")).status == 400
            assert (await api.call("POST", path, b"[1]")).status == 400
            assert (await api.call("POST", path, b"nonsense")).status == 400
            assert (await api.call("POST", path, [hello] * 101, with_session(token))).status == 413
            found = await api.node.channels.channel("input").read_after(0)
            ours = [one.event for one in found if one.event.headers.get("adapter") == "sessions"]
            assert [event.id for event in ours] == [first["id"]]

    asyncio.run(scenario())


def test_a_sealed_message_is_opened_at_the_endpoint_and_cannot_be_changed(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            await api.node.logins.set_password("ana", PASSWORD, by="test")
            got = (await api.call("POST", "/sessions", LOGIN)).json()
            ana = Identifier("peer", "ana")
            message = Message(type="CODE", subtype="", sender=ana, content="the gate is 4711")
            now_ms, nonce = api.node.clock.now_ms(), bytes(12)
            seal = Seal("encrypted", "ana", got["session"], nonce, now_ms)
            key = from_text(got["seal_key"])
            assert key is not None
            body = seal_message(key, message, seal, "from-peer").to_json()
            for sent, status in ((body.replace(b"CODE", b"CODF"), 401), (body, 202), (body, 202)):
                answer = await api.call("POST", "/sessions/messages", sent)
                assert answer.status == status
            found = await api.node.channels.channel("input").read_after(0)
            contents = [Message.from_event(one.event).content for one in found]
            assert contents == ["the gate is 4711"]

    asyncio.run(scenario())


def test_an_auth_request_is_answered_at_the_endpoint(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token=ADMIN, site_text=CHEAP) as api:
            await api.node.logins.set_password("ana", PASSWORD, by="test")
            request = {"type": "AUTH", "subtype": "REQUEST", "sender": "peer:ana"}
            for password, subtype in ((PASSWORD, "REPLY"), ("a wrong guess", "FAILED")):
                content = json.dumps({"password": password})
                answer = await api.call(
                    "POST", "/sessions/messages", {**request, "content": content}
                )
                [told] = answer.json()["messages"]
                assert told["reply"]["subtype"] == subtype
            assert (await api.node.channels.channel("auth").read_after(0)) != []

    asyncio.run(scenario())
