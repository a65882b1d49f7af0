"""The endpoints of communication against oversized requests and invalid tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from rapport.channel.push import signed_headers
from rapport.communication.adapters.input_base import AdapterState
from rapport.communication.adapters.webhook import WebhookInput, WebhookInputSettings
from rapport.communication.arrival_checks import never
from rapport.communication.links import answer_token, inbox_token

pytestmark = pytest.mark.slow

HUGE = 50_000_000
PIECE = b"x" * 65_536
MOST_MEMORY = 40_000_000
"""Less than what is sent: nobody holds it whole. The limit of a body is 8 MiB."""
SECRET = "a-secret-of-some-length"
CHEAP = "\n[sessions]\nmemory_kib = 19456\npasses = 2\nlanes = 1\n"
PASSWORD = "correct horse battery staple"
FORM = "application/x-www-form-urlencoded"
ENDPOINTS = [
    ("POST", "/messages", "application/json"),
    ("POST", "/sessions", "application/json"),
    ("POST", "/sessions/messages", "application/json"),
    ("POST", "/inbox", FORM),
    ("POST", "/inbox/ana", FORM),
    ("POST", "/inbox/ana/LINK", FORM),
    ("POST", "/inputs/gateway", "application/json"),
    ("POST", "/answer/m1/ana/ANSWER", FORM),
    ("PUT", "/peers/zoe", "application/json"),
    ("PUT", "/collectives/crowd", "application/json"),
]

EXPECTED = {
    "/inbox/ana": ("303", "413"),  # to the page where people log in
    "/sessions/messages": ("401", "413"),
}


class Way:
    """What `Inputs` gives an input: the way into the engine."""

    def __init__(self, api: Any, name: str) -> None:
        self.name = name
        self.state = AdapterState(name, api.node.channels.records)
        self._api = api

    async def publish(self, messages: Any) -> Any:
        return await self._api.node.arrivals.publish(messages, adapter=self.name, trusted=never)


async def open_input(api: Any) -> None:
    endpoint = WebhookInput(WebhookInputSettings(secret=SECRET))
    api.node._parts.communication.web_inputs["gateway"] = endpoint
    await endpoint.start(Way(api, "gateway"))


def secret_of(api: Any) -> bytes:
    return api.node._parts.communication.secret


# --- far too large ---


def pour(url: str, method: str, path: str, kind: str, *, chunked: bool) -> str:
    """Sends 50 MB without holding them; the head of the answer, which may come before the end."""
    host, port = url.removeprefix("http://").split(":")
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {HUGE}"
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n{length}\r\n\r\n"
    piece = b"%x\r\n%s\r\n" % (len(PIECE), PIECE) if chunked else PIECE
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(head.encode())
            for _ in range(HUGE // len(PIECE)):
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough; what it said may still be there
        try:
            return connection.recv(4_096).decode("latin-1")
        except ConnectionResetError:
            return ""


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in pieces"])
def test_fifty_megabytes_are_refused_at_every_endpoint_and_the_node_goes_on(
    served_node: Callable[..., Any], chunked: bool
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            await open_input(api)
            secret, now_ms = secret_of(api), api.node.clock.now_ms()
            token, link = answer_token(secret, "m1", "ana"), inbox_token(secret, "ana", 2 * now_ms)
            for method, path, kind in ENDPOINTS:
                tracemalloc.start()
                where = path.replace("ANSWER", token).replace("LINK", link)
                head = await asyncio.to_thread(pour, api.url, method, where, kind, chunked=chunked)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                # A server that hangs up in the middle may take its answer with it.
                assert not head or head.split()[1] in EXPECTED.get(path, ("413",)), (path, head)
                assert peak < MOST_MEMORY, (path, peak)
                assert (await api.call("GET", "/healthz")).status == 200, path
            ledger = await api.call("GET", "/ledger")
            assert ledger.json() == []

    asyncio.run(scenario())


def test_a_content_over_the_limit_is_refused_with_its_code_and_harms_nothing(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            await open_input(api)
            said = {"type": "TASK", "subtype": "REQUEST", "content": "x" * 2_000_000}
            own = said | {"sender": "component:app", "receiver": "peer:ana"}
            refused = await api.call("POST", "/messages", own)
            assert (refused.status // 100, refused.json()["title"]) == (4, "message.too_long")
            body = json.dumps(said | {"sender": "peer:ana"}).encode()
            headers = signed_headers(SECRET, body, api.node.clock.now_ms())
            at_input = await api.call("POST", "/inputs/gateway", body, headers)
            assert at_input.status // 100 == 4
            assert len(at_input.body) < 2_000
            small = own | {"content": "look"}
            assert (await api.call("POST", "/messages", small)).status == 202

    asyncio.run(scenario())


def test_a_long_answer_and_a_huge_name_are_refused(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            token = answer_token(secret_of(api), "m1", "ana")
            path = f"/answer/m1/ana/{token}"
            long = await api.call("POST", path, {"answer": "x" * 1_000_000})
            assert (long.status, long.json()["title"]) == (400, "answer.too_long")
            for name in ("x" * 10_000, "\r\nX-Evil: 1", "\0", "\u202e", "<script>"):
                where = f"/answer/{quote(name, safe='')}/ana/{token}"
                refused = await api.call("GET", where)
                assert refused.status in (400, 403, 404)
                assert "x-evil" not in refused.headers
                assert b"<script>" not in refused.body

    asyncio.run(scenario())


# --- tokens ---


async def session_of(api: Any, peer: str) -> str:
    await api.node.logins.set_password(peer, PASSWORD, by="test")
    opened = await api.call("POST", "/sessions", {"peer": peer, "password": PASSWORD})
    return str(opened.json()["token"])


def spoiled(token: str) -> list[str]:
    """Wrong in every way a token can be."""
    changed = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")
    return [
        changed,
        token[:-1],
        token + "x",
        token[::-1],
        "",
        "x",
        "null",
        "ses_" * 1_000,
        "\\u0000",
    ]


def say(sender: str, **fields: str) -> dict[str, str]:
    return {"type": "REPLY", "subtype": "TEXT", "sender": sender, "content": "I go"} | fields


async def position(api: Any) -> int:
    return int(api.node.channels.channel("input").last_position())


def test_a_session_token_that_is_not_good_is_answered_alike_and_lets_nothing_in(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            token, before = await session_of(api, "ana"), await position(api)
            answers = []
            for wrong in spoiled(token):
                shown = {"Authorization": f"Session {wrong}"}
                answers.append(await api.call("POST", "/sessions/messages", say("peer:ana"), shown))
            # The right token, but of another peer; and the same inside of the message.
            shown = {"Authorization": f"Session {token}"}
            answers.append(await api.call("POST", "/sessions/messages", say("peer:ben"), shown))
            inside = say("peer:ben") | {"session-token": token}
            answers.append(await api.call("POST", "/sessions/messages", inside))
            assert {answer.status for answer in answers} == {401}
            for answer in answers:
                assert answer.json()["title"] == "session.invalid"
                assert token.encode() not in answer.body
                assert b"ana" not in answer.body
            assert await position(api) == before
            log = await api.node.channels.channel("log").read_after(0)
            refused = [one for one in log if one.event.type.endswith("refused")]
            assert refused, "what was refused is written down"
            assert token not in str([one.event for one in log])

    asyncio.run(scenario())


def test_an_answer_token_of_another_peer_or_message_answers_nothing_at_any_endpoint(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            await open_input(api)
            before = await position(api)
            right = answer_token(secret_of(api), "m1", "ana")
            for sender, refers_to, token in (
                ("peer:ben", "m1", right),
                ("peer:ana", "m2", right),
                ("peer:ana", "m1", right[:-1] + "0x"[right[-1] == "0"]),
                ("peer:ana", "m1", right.upper() + " "),
            ):
                said = say(sender) | {"refers-to": refers_to, "session-token": token}
                body = json.dumps(said).encode()
                headers = signed_headers(SECRET, body, api.node.clock.now_ms())
                refused = await api.call("POST", "/inputs/gateway", body, headers)
                assert refused.status == 403
                assert refused.json()["title"] == "session.invalid"
                assert right.encode() not in refused.body
                peer = sender.removeprefix("peer:")
                path = f"/answer/{refers_to}/{peer}/{quote(token)}"
                for method in ("GET", "POST"):
                    link = await api.call(method, path)
                    assert link.status == 403
                    assert b"m1" not in link.body.replace(path.encode(), b"")
            assert await position(api) == before

    asyncio.run(scenario())


def test_an_inbox_link_that_is_over_forged_or_of_another_peer_shows_nothing(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=CHEAP) as api:
            now_ms, secret = api.node.clock.now_ms(), secret_of(api)
            good = inbox_token(secret, "ana", now_ms + 60_000)
            assert (await api.call("GET", f"/inbox/ana/{good}")).status == 200
            over = inbox_token(secret, "ana", now_ms - 1)
            prolonged = f"{now_ms + 999_999}.{good.partition('.')[2]}"
            others = inbox_token(secret, "ben", now_ms + 60_000)
            answer = answer_token(secret, "m1", "ana")
            refused = [
                await api.call("GET", f"/inbox/ana/{quote(token, safe='')}")
                for token in (over, prolonged, others, answer, "x", good[:-1], "9" * 5_000)
            ]
            session = await session_of(api, "ben")
            cookie = {"Cookie": f"rapport_inbox={session}"}
            refused.append(await api.call("GET", "/inbox/ana", headers=cookie))
            for page in refused:
                assert page.status in (303, 401, 403, 404)
                assert b"please log in" not in page.body.lower() or b"Inbox of" not in page.body
                assert session.encode() not in page.body
                assert good.encode() not in page.body

    asyncio.run(scenario())
