"""The inbox over HTTP: logging in, reading, answering, and the open page as a medium."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from rapport.communication.adapters.base import Confirmed, Failed, Sent
from rapport.communication.adapters.inbox import PageAdapter, PageSettings
from rapport.communication.answers import AnswerData
from rapport.communication.ledger_events import DELIVERY_PREFIX, LedgerLine
from rapport.communication.links import LinkEditions, inbox_link, inbox_token, is_answer_token
from rapport.core.errors import TooFast
from rapport.core.event import make_event
from rapport.core.message import Identifier, Message
from rapport.testing.suites.adapter import make_delivery

pytestmark = pytest.mark.slow

PASSWORD = "correct horse battery staple"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def tell(api: Any, *events: Any) -> None:
    await api.node.channels.channel("log").append(list(events))


def message_event(api: Any, id: str, text: str) -> Any:
    message = Message(
        type="NOTIFICATION",
        subtype="alarm",
        sender=Identifier("component", "policy"),
        receiver=Identifier("collective", "guards"),
        id=id,
        content=text,
        urgent=True,
    )
    return message.to_event(source="communication", time=api.node.clock.now_ms())


def line_event(api: Any, number: int, state: str, message: str, **line: Any) -> Any:
    return make_event(
        source="communication",
        id=f"line-{message}-{number}",
        type=DELIVERY_PREFIX + state,
        subject=message,
        time=api.node.clock.now_ms(),
        data=LedgerLine(message=message, **line),
    )


async def waiting(api: Any, id: str, text: str, *peers: str, adapter: str = "inbox") -> None:
    """A message that stands in the inboxes of these people."""
    address = f"{adapter}:"
    lines = [
        line_event(api, number, "handed", id, peer=peer, address=address, adapter=adapter)
        for number, peer in enumerate(peers)
    ]
    await tell(api, message_event(api, id, text), *lines)


async def log_in(api: Any, peer: str = "ana") -> dict[str, str]:
    """The headers of a browser that is logged in."""
    await api.node.logins.set_password(peer, PASSWORD, by="test")
    body = urlencode({"peer": peer, "password": PASSWORD}).encode()
    answer = await api.call("POST", "/inbox", body, FORM)
    assert (answer.status, answer.headers["location"]) == (303, f"/inbox/{peer}")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    return FORM | {"Cookie": cookie.split(";")[0]}


def form_in(page: bytes) -> str:
    return re.search(rb'name="form" value="(\w+)"', page)[1].decode()


async def answers(api: Any) -> list[AnswerData]:
    found = await api.node.channels.channel("control").read_after(0)
    return [
        one.event.payload_as(AnswerData)
        for one in found
        if one.event.type == "rapport.control.answer"
    ]


def test_a_person_logs_in_reads_and_answers(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await waiting(api, "m1", "Guest <b>5</b> alone", "ana", "ben")
            browser = await log_in(api)
            page = await api.call("GET", "/inbox/ana", None, browser)
            assert page.status == 200
            assert b"Guest &lt;b&gt;5&lt;/b&gt; alone" in page.body
            assert "default-src 'self'" in page.headers["content-security-policy"]
            sent = {"message": "m1", "form": form_in(page.body), "answer": "yes", "text": "coming"}
            answer = await api.call("POST", "/inbox/ana", urlencode(sent).encode(), browser)
            assert (answer.status, answer.headers["location"]) == (303, "/inbox/ana?note=answered")
            (found,) = [one for one in await answers(api) if one.message == "m1"]
            assert (found.peer, found.text) == ("ana", "yes: coming")
            secret = api.node._parts.communication.secret
            assert not found.token or is_answer_token(secret, "m1", "ana", found.token)

    asyncio.run(scenario())


def test_who_took_it_is_shown_and_what_was_decided_is_gone(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            await waiting(api, "m1", "First alarm", "ana", "ben")
            await tell(api, line_event(api, 8, "answered", "m1", peer="ben", answer="yes"))
            page = (await api.call("GET", "/inbox/ana", None, browser)).body.decode()
            assert "taken by ben at" in page
            assert 'data-message="m1"' in page
            await tell(api, line_event(api, 9, "closed", "m1", result="done"))
            page = (await api.call("GET", "/inbox/ana", None, browser)).body.decode()
            assert 'data-message="m1"' not in page
            assert "First alarm" in page.partition("Lately")[2]
            assert "taken by ben at" in page.partition("Lately")[2]
            form = form_in(page.encode())
            late = urlencode({"message": "m1", "form": form, "answer": "yes"}).encode()
            answer = await api.call("POST", "/inbox/ana", late, browser)
            assert answer.headers["location"].endswith("note=decided")
            assert await answers(api) == []

    asyncio.run(scenario())


def test_who_declined_can_after_all_while_it_is_open(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            await waiting(api, "m1", "First alarm", "ana", "ben")
            said = {"peer": "ana", "answer": "no", "declined": True}
            await tell(api, line_event(api, 8, "answered", "m1", **said))
            page = (await api.call("GET", "/inbox/ana", None, browser)).body
            assert b"I can after all" in page.partition(b"Lately")[2]
            sent = urlencode({"message": "m1", "form": form_in(page), "answer": "yes"}).encode()
            answer = await api.call("POST", "/inbox/ana", sent, browser)
            assert answer.headers["location"].endswith("note=answered")
            (found,) = await answers(api)
            assert (found.peer, found.text, found.declined) == ("ana", "yes", False)
            await tell(api, line_event(api, 9, "closed", "m1", result="failed"))
            page = (await api.call("GET", "/inbox/ana", None, browser)).body
            assert b"I can after all" not in page

    asyncio.run(scenario())


def test_what_nobody_has_to_answer_stays_until_it_is_seen(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            await waiting(api, "m1", "The lift works again", "ana")
            await tell(api, line_event(api, 9, "closed", "m1", result="done"))
            page = (await api.call("GET", "/inbox/ana", None, browser)).body
            assert b"The lift works again" in page.partition(b"For your information")[2]
            sent = urlencode({"message": "m1", "form": form_in(page), "answer": "seen"}).encode()
            answer = await api.call("POST", "/inbox/ana", sent, browser)
            assert answer.headers["location"].endswith("note=answered")
            assert [(one.peer, one.text) for one in await answers(api)] == [("ana", "seen")]
            await tell(api, line_event(api, 10, "answered", "m1", peer="ana", answer="seen"))
            page = (await api.call("GET", "/inbox/ana", None, browser)).body
            assert b"For your information" not in page
            assert b"you answered seen" in page.partition(b"Lately")[2]

    asyncio.run(scenario())


def test_all_that_needs_no_answer_is_seen_by_one_button(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            await waiting(api, "m1", "The lift works again", "ana")
            await tell(api, line_event(api, 9, "closed", "m1", result="done"))
            page = (await api.call("GET", "/inbox/ana", None, browser)).body
            assert b"All seen" not in page  # there is one
            await waiting(api, "m2", "The stairs are clean", "ana")
            await tell(api, line_event(api, 19, "closed", "m2", result="done"))
            await waiting(api, "m3", "Please come", "ana")
            page = (await api.call("GET", "/inbox/ana", None, browser)).body
            sent = urlencode({"form": form_in(page), "all": "seen"}).encode()
            assert (await api.call("POST", "/inbox/ana", sent, browser)).status == 303
            found = await answers(api)
            assert {(one.message, one.text) for one in found} == {("m1", "seen"), ("m2", "seen")}

    asyncio.run(scenario())


def test_who_answers_before_the_page_was_heard_of_is_heard(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            page = (await api.call("GET", "/inbox/ana", None, browser)).body
            queued = {"peer": "ana", "address": "ws:", "adapter": "ws"}
            await tell(
                api,
                message_event(api, "m1", "Quick"),
                line_event(api, 1, "queued", "m1", **queued),
            )
            sent = urlencode({"message": "m1", "form": form_in(page), "answer": "yes"}).encode()
            answer = await api.call("POST", "/inbox/ana", sent, browser)
            assert answer.headers["location"].endswith("note=answered")

    asyncio.run(scenario())


def test_a_message_walks_from_an_application_to_the_inbox_and_the_answer_back(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text='\n[peers.zoe]\naddresses = ["inbox:"]\n') as api:
            browser = await log_in(api, "zoe")
            message = Message(
                type="TASK",
                subtype="ASK",
                sender=Identifier("component", "desk"),
                receiver=Identifier("peer", "zoe"),
                content="Can you take the night shift?",
            )
            (id,) = await api.node.arrivals.send([message])
            page = b""
            for _ in range(200):
                page = (await api.call("GET", "/inbox/zoe", None, browser)).body
                if b"night shift" in page:
                    break
                await asyncio.sleep(0.05)
            sent = {"message": id, "form": form_in(page), "answer": "yes", "text": "gladly"}
            await api.call("POST", "/inbox/zoe", urlencode(sent).encode(), browser)
            row = None
            for _ in range(200):
                await api.node.ledger.refresh()
                row = api.node.ledger.message(id)
                if row.answered_by:
                    break
                await asyncio.sleep(0.05)
            assert (row.answered_by, row.answer) == ("zoe", "yes: gladly")

    asyncio.run(scenario())


def test_nobody_reads_or_answers_for_somebody_else(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await waiting(api, "m1", "For ben alone", "ben")
            browser = await log_in(api)
            own = await api.call("GET", "/inbox/ana", None, browser)
            assert b"For ben alone" not in own.body
            other = await api.call("GET", "/inbox/ben", None, browser)
            assert other.headers["location"] == "/inbox?why=session"
            assert (await api.call("GET", "/inbox/ana")).status == 303
            sent = urlencode({"message": "m1", "form": form_in(own.body), "answer": "yes"}).encode()
            answer = await api.call("POST", "/inbox/ana", sent, browser)
            assert answer.headers["location"].endswith("note=decided")
            assert (await api.call("POST", "/inbox/ben", sent, browser)).status == 303
            assert await answers(api) == []

    asyncio.run(scenario())


def test_a_form_that_another_page_made_is_refused(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await waiting(api, "m1", "Help", "ana")
            browser = await log_in(api)
            for form in ("", "form=" + "0" * 40):
                body = f"message=m1&answer=yes&{form}".encode()
                refused = await api.call("POST", "/inbox/ana", body, browser)
                assert (refused.status, b"<h1>This page was open" in refused.body) == (403, True)
            strange = {"Origin": "http://evil.example", **browser}
            assert (await api.call("POST", "/inbox/ana", b"", strange)).status == 403
            login = urlencode({"peer": "ana", "password": PASSWORD}).encode()
            framed = FORM | {"Origin": "null", "Sec-Fetch-Site": "cross-site"}
            assert (await api.call("POST", "/inbox", login, framed)).status == 403
            assert await answers(api) == []

    asyncio.run(scenario())


def test_a_wrong_password_leads_back_and_logging_out_ends_the_session(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            for body in (b"peer=ana&password=wrong", b"peer=nobody&password=x", b"", b"\xff"):
                answer = await api.call("POST", "/inbox", body, FORM)
                assert "set-cookie" not in answer.headers
                if body != b"\xff":
                    assert answer.headers["location"] in ("/inbox?why=wrong", "/inbox?why=fast")
            page = await api.call("GET", "/inbox?why=wrong")
            assert b"The name or the password is wrong." in page.body
            page = await api.call("GET", "/inbox/ana", None, browser)
            leave = f"form={form_in(page.body)}&leave=1".encode()
            answer = await api.call("POST", "/inbox/ana", leave, browser)
            assert "Max-Age=0" in answer.headers["set-cookie"]
            assert (await api.call("GET", "/inbox/ana", None, browser)).status == 303

    asyncio.run(scenario())


def test_one_guesser_behind_a_trusted_proxy_keeps_nobody_else_out(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(trusted_proxies=("127.0.0.1",)) as api:
            await log_in(api)
            begin = api.node.authenticating._attempts.begin
            now_ms = api.node.clock.now_ms()
            for number in range(25):
                with contextlib.suppress(TooFast):
                    begin(f"peer{number}", "10.0.0.66", now_ms)
            body = urlencode({"peer": "ana", "password": PASSWORD}).encode()
            for origin, place in (("10.0.0.66", "/inbox?why=fast"), ("10.0.0.7", "/inbox/ana")):
                answer = await api.call("POST", "/inbox", body, FORM | {"X-Forwarded-For": origin})
                assert answer.headers["location"] == place

    asyncio.run(scenario())


@pytest.mark.parametrize("peer", ["town/ana", "..", "jürgen"])
def test_a_person_of_any_name_reaches_their_inbox_by_password_and_by_link(
    served_node: Callable[..., Any], peer: str
) -> None:
    """Servers undo `%2F` before they take a path apart, and browsers take `..` out of it."""

    async def scenario() -> None:
        site_text = f'[peers."{peer}"]\naddresses = ["inbox:"]\n'
        async with served_node(site_text=site_text) as api:
            await waiting(api, "m1", "Help", peer)
            await api.node.logins.set_password(peer, PASSWORD, by="test")
            body = urlencode({"peer": peer, "password": PASSWORD}).encode()
            opened = await api.call("POST", "/inbox", body, FORM)
            path = opened.headers["location"]
            browser = FORM | {"Cookie": opened.headers["set-cookie"].split(";")[0]}
            page = await api.call("GET", path, None, browser)
            assert b"Help" in page.body
            sent = urlencode({"message": "m1", "form": form_in(page.body), "answer": "yes"})
            taken = await api.call("POST", path, sent.encode(), browser)
            assert taken.headers["location"] == f"{path}?note=answered"
            secret, now = api.node._parts.communication.secret, api.node.clock.now_ms()
            links = LinkEditions(api.node.channels.records, api.node.clock)
            link = inbox_link("", secret, peer, now + 60_000, await links.begin(peer))
            assert (await api.call("GET", link)).status == 200
            async with connect(api.url.replace("http", "ws") + f"{link}/socket") as socket:
                assert "changed" in json.loads(await socket.recv())

    asyncio.run(scenario())


def test_a_signed_link_opens_the_inbox_without_a_password(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await waiting(api, "m1", "Help", "ana")
            secret, now = api.node._parts.communication.secret, api.node.clock.now_ms()
            path = f"/inbox/ana/{inbox_token(secret, 'ana', now + 60_000)}"
            page = await api.call("GET", path)
            assert b"Help" in page.body
            assert b"Log out" not in page.body
            sent = urlencode({"message": "m1", "form": form_in(page.body), "answer": "no"}).encode()
            answer = await api.call("POST", path, sent, FORM)
            assert answer.headers["location"] == f"{path}?note=answered"
            over = f"/inbox/ana/{inbox_token(secret, 'ana', now - 1)}"
            of_ben = f"/inbox/ana/{inbox_token(secret, 'ben', now + 60_000)}"
            for wrong in (over, of_ben, "/inbox/ana/x.y"):
                assert (await api.call("GET", wrong)).headers["location"] == "/inbox?why=link"

    asyncio.run(scenario())


def test_who_may_change_the_node_makes_links_for_others(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            told = (await api.call("POST", "/peers/ana/inbox-link?days=1")).json()
            assert told["link"].startswith(f"{api.url}/inbox/ana/")
            page = await api.call("GET", told["link"].removeprefix(api.url))
            assert page.status == 200
            assert (await api.call("POST", "/peers/nobody/inbox-link")).status == 404
        async with served_node(token="the-token-of-the-node-1234567890") as api:
            assert (await api.call("POST", "/peers/ana/inbox-link")).status == 401

    asyncio.run(scenario())


def test_a_session_is_renewed_by_looking_and_forms_stay_good(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await waiting(api, "m1", "Help", "ana")
            browser = await log_in(api)
            page = await api.call("GET", "/inbox/ana", None, browser)
            assert "set-cookie" not in page.headers
            later = api.node.clock.now_ms() + 5 * 3_600_000
            monkeypatch.setattr(api.node.clock, "now_ms", lambda: later)
            renewed = await api.call("GET", "/inbox/ana", None, browser)
            fresh = browser | {"Cookie": renewed.headers["set-cookie"].split(";")[0]}
            assert fresh["Cookie"] != browser["Cookie"]
            sent = urlencode({"message": "m1", "form": form_in(page.body), "answer": "no"}).encode()
            answer = await api.call("POST", "/inbox/ana", sent, fresh)
            assert answer.headers["location"].endswith("note=answered")

    asyncio.run(scenario())


def test_an_open_page_gets_deliveries_confirms_them_and_hears_of_changes(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            adapter = PageAdapter(api.node.pages, PageSettings(wait_ms=5_000), api.node.clock)
            delivery = make_delivery("ws:", text="<i>Look</i>")
            assert isinstance(await adapter.send(delivery), Failed)
            url = api.url.replace("http", "ws") + "/inbox/ana/socket"
            async with connect(url, additional_headers={"Cookie": browser["Cookie"]}) as socket:
                first = json.loads(await socket.recv())
                assert set(first) == {"changed"}
                sending = asyncio.create_task(adapter.send(delivery))
                shown = json.loads(await socket.recv())["delivery"]
                assert (shown["text"], shown["key"]) == ("<i>Look</i>", delivery.key)
                await socket.send("nonsense")
                await socket.send('{"shown": 7}')
                await socket.send(json.dumps({"shown": shown["key"]}))
                assert await sending == Confirmed(delivery.key)
                await waiting(api, "m1", "Help", "ana")
                changed = json.loads(await asyncio.wait_for(socket.recv(), 10))
                assert changed["changed"] != first["changed"]
            await asyncio.sleep(0.1)
            assert isinstance(await adapter.send(delivery), Failed)

    asyncio.run(scenario())


def test_the_socket_of_a_session_that_was_ended_is_closed(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            url = api.url.replace("http", "ws") + "/inbox/ana/socket"
            async with connect(url, additional_headers={"Cookie": browser["Cookie"]}) as socket:
                await socket.recv()
                token = browser["Cookie"].partition("=")[2]
                await api.node.authenticating.log_out(token)
                await waiting(api, "m1", "For ana, who has left", "ana")
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(socket.recv(), 10)

    asyncio.run(scenario())


def test_a_page_that_stays_silent_is_handed_only(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            browser = await log_in(api)
            adapter = PageAdapter(api.node.pages, PageSettings(wait_ms=100), api.node.clock)
            url = api.url.replace("http", "ws") + "/inbox/ana/socket"
            async with connect(url, additional_headers={"Cookie": browser["Cookie"]}) as socket:
                await socket.recv()
                assert isinstance(await adapter.send(make_delivery("ws:")), Sent)

    asyncio.run(scenario())


def test_a_socket_without_proof_is_not_opened(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            url = api.url.replace("http", "ws") + "/inbox/ana/socket"
            for headers in ({}, {"Cookie": "rapport_inbox=forged"}):
                with pytest.raises(InvalidHandshake):
                    async with connect(url, additional_headers=headers):
                        pass
            assert not api.node.pages.is_open("ana")

    asyncio.run(scenario())


def test_a_link_ends_with_its_peer_and_with_a_new_password(served_node: Callable[..., Any]) -> None:
    """Who gets the name later does not get the links of who had it."""

    async def scenario() -> None:
        async with served_node() as api:

            async def opens(link: str) -> bool:
                page = await api.call("GET", link)
                assert page.status == 200 or page.headers["location"] == "/inbox?why=link"
                return bool(page.status == 200)

            async def new_link() -> str:
                told = (await api.call("POST", "/peers/eve/inbox-link")).json()
                return str(told["link"].removeprefix(api.url))

            people, eve = api.node.people, {"addresses": ["inbox:"]}
            await people.put_peer("eve", eve, by="test")
            first = await new_link()
            assert await opens(first)
            await people.put_peer("eve", {**eve, "delivery": "at-least-one"}, by="test")
            assert await opens(first)
            await people.remove_peer("eve", by="test")
            assert not await opens(first)
            await people.put_peer("eve", eve, by="test")
            assert not await opens(first)
            second = await new_link()
            assert await opens(second)
            await api.node.logins.set_password("eve", PASSWORD, by="test")
            assert not await opens(second)
            assert await opens(await new_link())

    asyncio.run(scenario())
