import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from rapport.communication.links import answer_link, answer_token, inbox_link
from rapport.core.detection import Detection, Undecided
from rapport.core.errors import TooFast
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from rapport.node.node import Node
from rapport.web.api.answers import LinkGuard
from rapport.web.inbox import InboxAccess

pytestmark = pytest.mark.slow


async def raised(api: Any) -> str:
    """A detection is put into the channel; gives the id of the message made of it."""
    found = Detection(
        policy="secure-building",
        time=SystemClock().now_ms(),
        bindings={"A": "p03", "R": "l<b>ab"},
        causes=((1, "e1"),),
    )
    await api.node.channels.channel("detections").append([found.to_event(source="test")])
    await api.node.channels.channel("log").wait_after(0, timeout_ms=10_000)
    await api.node.ledger.refresh()
    return str(api.node.ledger.messages()[0].message)


async def written(api: Any, *messages: str, time: int = 0) -> None:
    """Messages of these ids stand in the log, closed unless somebody has to answer."""
    now_ms = api.node.clock.now_ms()
    for id in messages:
        message = Message(
            type="TASK",
            subtype="REQUEST",
            sender=Identifier("component", "test"),
            id=id,
            receiver=Identifier("peer", "ana"),
            content="please come",
        )
        event = message.to_event(source="test", time=time or now_ms, fate="routed")
        await api.node.channels.channel("log").append([event])


def token_for(api: Any, message: str, peer: str) -> str:
    return answer_token(api.node._parts.communication.secret, message, peer)


def test_a_link_of_any_message_leads_to_its_page(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for message in ("a/b", "..", "50% ?#"):
                secret = api.node._parts.communication.secret
                link = answer_link("", secret, message, "ana")
                await written(api, message)
                form = {"Content-Type": "application/x-www-form-urlencoded"}
                shown = await api.call("GET", link)
                assert "please come" in shown.body.decode()
                assert (await api.call("POST", link, b"answer=yes", form)).status == 200
            said = await api.node.channels.channel("control").read_after(0)
            answered = [one.event for one in said if one.event.type == "rapport.control.answer"]
            assert [event.payload()["message"] for event in answered] == ["a/b", "..", "50% ?#"]

    asyncio.run(scenario())


def test_an_answer_that_is_no_text_is_refused_with_a_code(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await written(api, "m1")
            path = f"/answer/m1/ana/{token_for(api, 'm1', 'ana')}"
            for body in (b'{"answer": "\xff"}', b'{"answer": 5}', b"[" * 100_000, b"{}"):
                refused = await api.call("POST", path, body, {"Content-Type": "application/json"})
                assert (refused.status, refused.json()["title"]) == (400, "answer.bad")
            for body in (b"\xff", b" "):
                refused = await api.call("POST", path, body, {"Content-Type": "text/plain"})
                assert (refused.status, refused.json()["title"]) == (400, "answer.bad")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("head", "content"),
    [
        (b"", b"\xff\xfe"),
        (b"\r\nContent-Type: text/plain; charset=klingon", b"yes"),
        (b'; filename="answer.txt"', b"yes"),
    ],
    ids=["no text", "unknown letters", "a file"],
)
def test_a_form_in_parts_that_holds_no_words_is_refused_and_records_nothing(
    served_node: Callable[..., Any], head: bytes, content: bytes
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await written(api, "m1")
            path = f"/answer/m1/ana/{token_for(api, 'm1', 'ana')}"
            named = b'--x\r\nContent-Disposition: form-data; name="answer"'
            body = named + head + b"\r\n\r\n" + content + b"\r\n--x--\r\n"
            kind = {"Content-Type": "multipart/form-data; boundary=x", "Accept": "application/json"}
            refused = await api.call("POST", path, body, kind)
            assert (refused.status, refused.json()["title"]) == (400, "answer.bad")
            assert api.node.channels.channel("control").last_position() == 0

    asyncio.run(scenario())


def test_a_plain_text_is_the_answer_and_not_a_yes(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            message = await raised(api)
            path = f"/answer/{message}/ana/{token_for(api, message, 'ana')}"
            plain = {"Content-Type": "text/plain; charset=utf-8"}
            assert (await api.call("POST", path, b"kann nicht", plain)).status == 200
            await _until_answered(api, message)
            rows = (await api.call("GET", "/ledger")).json()
            assert "kann nicht" in {row["answer"] for row in rows if row["peer"] == "ana"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "kind", ["Application/JSON", "application/json ; charset=utf-8"], ids=["capitals", "space"]
)
def test_a_no_in_json_is_a_no_however_the_media_type_is_written(
    served_node: Callable[..., Any], kind: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await written(api, "m1")
            path = f"/answer/m1/ana/{token_for(api, 'm1', 'ana')}"
            body = b'{"answer": "no"}'
            assert (await api.call("POST", path, body, {"Content-Type": kind})).status == 200
            said = await api.node.channels.channel("control").read_after(0)
            (answer,) = [one.event.payload() for one in said if "answer" in one.event.type]
            assert (answer["text"], answer["declined"]) == ("no", True)

    asyncio.run(scenario())


def test_no_link_of_a_person_stands_in_a_log_when_the_node_fails(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_arguments: Any) -> None:
        raise RuntimeError("a fault of ours")

    async def scenario() -> None:
        async with served_node() as api:
            secret, now = api.node._parts.communication.secret, api.node.clock.now_ms()
            links = [
                answer_link("", secret, "m1", "ana"),
                inbox_link("", secret, "ana", now + 60_000),
            ]
            monkeypatch.setattr(Node, "linked_message", failing)
            monkeypatch.setattr(InboxAccess, "look", failing)
            with capture_logs() as entries:
                for link in links:
                    assert (await api.call("GET", link)).status == 500
            paths = [one["path"] for one in entries if one["event"] == "request failed"]
            assert paths == ["/answer/m1/ana/***", "/inbox/ana/***"]

    asyncio.run(scenario())


def test_opening_the_link_is_no_answer_but_pressing_the_button_is(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            message = await raised(api)
            path = f"/answer/{message}/ana/{token_for(api, message, 'ana')}"
            page = await api.call("GET", path)
            assert page.status == 200
            assert b"badge E200-03 is alone in l&lt;b&gt;ab" in page.body
            assert api.node.channels.channel("control").last_position() == 0 or not [
                event
                for event in await api.node.channels.channel("control").read_after(0)
                if event.event.type == "rapport.control.answer"
            ]
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            assert (await api.call("POST", path, b"answer=yes", form)).status == 200
            await _until_answered(api, message)
            rows = (await api.call("GET", "/ledger")).json()
            assert ("ana", "answered", "yes") in {
                (row["peer"], row["state"], row["answer"]) for row in rows
            }

    asyncio.run(scenario())


def test_a_forged_link_answers_nothing(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            message = await raised(api)
            token = token_for(api, message, "ana")
            for path in (
                f"/answer/{message}/ben/{token}",
                f"/answer/{message}/ana/{token[:-1]}0x",
                f"/answer/other/ana/{token}",
            ):
                assert (await api.call("GET", path)).status == 403
                assert (await api.call("POST", path, {"answer": "yes"})).status == 403

    asyncio.run(scenario())


def test_a_bad_or_old_link_gives_a_page_in_peoples_words(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            now_ms = api.node.clock.now_ms()
            await written(api, "old", time=now_ms - 31 * 86_400_000)
            await written(api, "young", time=now_ms - 29 * 86_400_000)
            old = f"/answer/old/ana/{token_for(api, 'old', 'ana')}"
            gone = f"/answer/gone/ana/{token_for(api, 'gone', 'ana')}"
            pages = [
                (old, 403, "This link is too old"),
                (gone, 403, "This link is too old"),
                (old[:-3], 403, "This link does not work"),
                ("/answer/old/ana", 404, "This link does not work"),
                ("/inbox/ana/cut/off/here", 404, "This link does not work"),
            ]
            for path, status, said in pages:
                page = await api.call("GET", path, headers={"Accept": "text/html,*/*"})
                assert (page.status, page.headers["content-type"][:9]) == (status, "text/html")
                assert f"<h1>{said}</h1>" in page.body.decode(), path
                assert "urn:rapport" not in page.body.decode()
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            refused = await api.call("POST", old, b"answer=yes", form)
            assert (refused.status, b"too old" in refused.body) == (403, True)
            young = f"/answer/young/ana/{token_for(api, 'young', 'ana')}"
            assert (await api.call("GET", young)).status == 200
            program = await api.call("GET", old, headers={"Accept": "application/json"})
            assert program.json()["title"] == "answer.link_over"
            assert api.node.channels.channel("control").last_position() == 0

    asyncio.run(scenario())


def test_an_answer_token_proves_messages_no_longer_than_its_link(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            now_ms = api.node.clock.now_ms()
            await written(api, "old", time=now_ms - 31 * 86_400_000)
            await written(api, "young", time=now_ms - 29 * 86_400_000)
            for message, status in (("old", 403), ("gone", 403), ("young", 202)):
                body = {
                    "type": "ANSWER",
                    "subtype": "",
                    "sender": "peer:ana",
                    "content": "yes",
                    "refers-to": message,
                    "session-token": token_for(api, message, "ana"),
                }
                shown = await api.call("POST", "/sessions/messages", body)
                assert shown.status == status, (message, shown.body)
                if status == 403:
                    assert shown.json()["title"] == "answer.link_over"
            assert api.node.channels.channel("input").last_position() == 1

    asyncio.run(scenario())


def test_the_lifetime_of_links_is_the_sites_to_say(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text='\n[arriving]\nanswer_links = "2 hours"\n') as api:
            await written(api, "m1", time=api.node.clock.now_ms() - 3 * 3_600_000)
            path = f"/answer/m1/ana/{token_for(api, 'm1', 'ana')}"
            assert (await api.call("GET", path)).status == 403

    asyncio.run(scenario())


def test_an_answer_given_twice_counts_once_and_another_one_replaces_it(
    served_node: Callable[..., Any],
) -> None:
    async def given(api: Any) -> list[str]:
        said = await api.node.channels.channel("control").read_after(0)
        answers = [one.event for one in said if one.event.type == "rapport.control.answer"]
        return [event.payload()["text"] for event in answers]

    async def scenario() -> None:
        async with served_node() as api:
            message = await raised(api)
            path = f"/answer/{message}/ana/{token_for(api, message, 'ana')}"
            clicks = [api.call("POST", path, {"answer": "yes"}) for _ in range(4)]
            assert {answer.status for answer in await asyncio.gather(*clicks)} == {200}
            await _until_answered(api, message)
            again = await api.call("POST", path, {"answer": "yes"})
            assert "was recorded already" in again.body.decode()
            assert await given(api) == ["yes"]
            page = (await api.call("GET", path)).body.decode()
            assert "You answered “I take care of it” on" in page
            for text in ("no", "yes"):
                await api.call("POST", path, {"answer": text})
                for _ in range(200):
                    if (await api.node.answer_of(message, "ana")).answer == text:
                        break
                    await asyncio.sleep(0.02)
            assert await given(api) == ["yes", "no", "yes"]

    asyncio.run(scenario())


def test_whoever_tries_links_has_to_wait_and_a_right_link_still_opens(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await written(api, "m1")
            path = f"/answer/m1/ana/{token_for(api, 'm1', 'ana')}"
            for number in range(500):
                answer = await api.call("GET", f"/answer/m1/ana/{number:040x}")
                if answer.status == 429:
                    break
            assert b"<h1>Please wait a moment</h1>" in answer.body
            assert "retry-after" in answer.headers
            assert (await api.call("GET", path)).status == 200

    asyncio.run(scenario())


def test_one_link_takes_ten_answers_at_once_and_then_one_a_second() -> None:
    guard = LinkGuard()
    for _ in range(10):
        guard.check_answers("m1", "ana", now_ms=1_000)
    with pytest.raises(TooFast):
        guard.check_answers("m1", "ana", now_ms=1_000)
    guard.check_answers("m1", "ben", now_ms=1_000)
    guard.check_answers("m1", "ana", now_ms=2_001)


def test_the_answer_page_says_who_asks_what_and_when_on_the_readers_clock(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text="\n") as api:
            settings = {"addresses": ["inbox:"], "zone": "Asia/Tokyo"}
            await api.call("PUT", "/peers/zoe", settings)
            body = {
                "type": "TASK",
                "subtype": "REQUEST",
                "sender": "component:desk",
                "receiver": "peer:zoe",
                "content": "come",
                "conversation-id": "c7",
            }
            (message,) = (await api.call("POST", "/messages", body)).json()["ids"]
            path = f"/answer/{message}/zoe/{token_for(api, message, 'zoe')}"
            for _ in range(300):
                page = await api.call("GET", path)
                if page.status == 200:
                    break
                await asyncio.sleep(0.02)
            for fact in ("<dd>desk<", "<dd>Task: request<", "<dd>c7<", " JST<"):
                assert fact in page.body.decode()

    asyncio.run(scenario())


def test_the_page_and_what_it_shows(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_keys="open_sources = true") as api:
            await raised(api)
            await api.call("POST", "/sources/strange", {"a": 1})
            await api.node.channels.channel("quarantine").wait_after(0, timeout_ms=10_000)
            page = await api.call("GET", "/")
            assert b"secure-building" in page.body
            assert "default-src 'self'" in page.headers["content-security-policy"]
            assert (await api.call("GET", "/static/rapport.css")).status == 200
            assert (await api.call("GET", "/static/..%2Fapp.py")).status == 404
            shown = (await api.call("GET", "/overview")).json()
            assert shown["detections"][0]["bindings"] == {"A": "p03", "R": "l<b>ab"}
            assert shown["quarantine"][0]["reason"] == "source.unbound"
            assert {"ana", "ben"} <= {row["peer"] for row in shown["deliveries"]}

    asyncio.run(scenario())


def test_the_page_shows_what_is_undecided_and_which_source_was_silent(
    served_node: Callable[..., Any],
) -> None:
    unsure = Undecided(
        policy="secure-building",
        time=5,
        bindings={"A": "p08", "R": "depot"},
        causes=((1, "e1"),),
        silent=("gate",),
    )

    async def scenario() -> None:
        async with served_node() as api:
            detections = api.node.channels.channel("detections")
            await detections.append([unsure.to_event(source="secure-building")])
            (shown,) = (await api.call("GET", "/overview")).json()["detections"]
            assert (shown["bindings"], shown["silent"]) == (unsure.bindings, ["gate"])
            assert (await api.call("GET", "/ledger")).json() == []

    asyncio.run(scenario())


def test_service_endpoints_tell_how_the_node_is(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("POST", "/sources/readers", {"a": 1})
            assert (await api.call("GET", "/readyz")).json() == {
                "status": "ready",
                "reasons": [],
            }
            text = (await api.call("GET", "/metrics")).body.decode()
            assert 'rapport_channel_events_total{channel="raw.readers"} 1.0' in text
            assert 'rapport_output_waiting{adapter="inbox"} 0.0' in text
            assert (
                (await api.call("GET", "/schema/openapi.json")).json()["openapi"].startswith("3.")
            )
            unknown = await api.call("GET", "/explain/nothing")
            assert (unknown.status, unknown.json()["title"]) == (404, "event.unknown")

    asyncio.run(scenario())


async def _until_answered(api: Any, message: str) -> None:
    for _ in range(200):
        await api.node.ledger.refresh()
        if api.node.ledger.message(message).answered_by:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the answer did not arrive")
