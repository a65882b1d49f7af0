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


async def raised(doors: Any) -> str:
    """A detection is put into the channel; gives the id of the message made of it."""
    found = Detection(
        policy="secure-building",
        time=SystemClock().now_ms(),
        bindings={"A": "p03", "R": "l<b>ab"},
        causes=((1, "e1"),),
    )
    await doors.node.channels.channel("detections").append([found.to_event(source="test")])
    await doors.node.channels.channel("log").wait_after(0, timeout_ms=10_000)
    await doors.node.ledger.refresh()
    return str(doors.node.ledger.messages()[0].message)


async def written(doors: Any, *messages: str, time: int = 0) -> None:
    """Messages of these ids stand in the log, closed unless somebody has to answer."""
    now_ms = doors.node.clock.now_ms()
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
        await doors.node.channels.channel("log").append([event])


def token_for(doors: Any, message: str, peer: str) -> str:
    return answer_token(doors.node._parts.communication.secret, message, peer)


def test_a_link_of_any_message_leads_to_its_page(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            for message in ("a/b", "..", "50% ?#"):
                secret = doors.node._parts.communication.secret
                link = answer_link("", secret, message, "ana")
                await written(doors, message)
                form = {"Content-Type": "application/x-www-form-urlencoded"}
                shown = await doors.ask("GET", link)
                assert "please come" in shown.body.decode()
                assert (await doors.ask("POST", link, b"answer=yes", form)).status == 200
            said = await doors.node.channels.channel("control").read_after(0)
            answered = [one.event for one in said if one.event.type == "rapport.control.answer"]
            assert [event.payload()["message"] for event in answered] == ["a/b", "..", "50% ?#"]

    asyncio.run(scenario())


def test_an_answer_that_is_no_text_is_refused_with_a_code(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            await written(doors, "m1")
            path = f"/answer/m1/ana/{token_for(doors, 'm1', 'ana')}"
            for body in (b'{"answer": "\xff"}', b'{"answer": 5}', b"[" * 100_000, b"{}"):
                refused = await doors.ask("POST", path, body, {"Content-Type": "application/json"})
                assert (refused.status, refused.json()["title"]) == (400, "answer.bad")
            for body in (b"\xff", b" "):
                refused = await doors.ask("POST", path, body, {"Content-Type": "text/plain"})
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
    with_doors: Callable[..., Any], head: bytes, content: bytes
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            await written(doors, "m1")
            path = f"/answer/m1/ana/{token_for(doors, 'm1', 'ana')}"
            named = b'--x\r\nContent-Disposition: form-data; name="answer"'
            body = named + head + b"\r\n\r\n" + content + b"\r\n--x--\r\n"
            kind = {"Content-Type": "multipart/form-data; boundary=x", "Accept": "application/json"}
            refused = await doors.ask("POST", path, body, kind)
            assert (refused.status, refused.json()["title"]) == (400, "answer.bad")
            assert doors.node.channels.channel("control").last_position() == 0

    asyncio.run(scenario())


def test_a_plain_text_is_the_answer_and_not_a_yes(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            message = await raised(doors)
            path = f"/answer/{message}/ana/{token_for(doors, message, 'ana')}"
            plain = {"Content-Type": "text/plain; charset=utf-8"}
            assert (await doors.ask("POST", path, b"kann nicht", plain)).status == 200
            await _until_answered(doors, message)
            rows = (await doors.ask("GET", "/ledger")).json()
            assert "kann nicht" in {row["answer"] for row in rows if row["peer"] == "ana"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "kind", ["Application/JSON", "application/json ; charset=utf-8"], ids=["capitals", "space"]
)
def test_a_no_in_json_is_a_no_however_the_media_type_is_written(
    with_doors: Callable[..., Any], kind: str
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            await written(doors, "m1")
            path = f"/answer/m1/ana/{token_for(doors, 'm1', 'ana')}"
            body = b'{"answer": "no"}'
            assert (await doors.ask("POST", path, body, {"Content-Type": kind})).status == 200
            said = await doors.node.channels.channel("control").read_after(0)
            (answer,) = [one.event.payload() for one in said if "answer" in one.event.type]
            assert (answer["text"], answer["declined"]) == ("no", True)

    asyncio.run(scenario())


def test_no_link_of_a_person_stands_in_a_log_when_the_node_fails(
    with_doors: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_arguments: Any) -> None:
        raise RuntimeError("a fault of ours")

    async def scenario() -> None:
        async with with_doors() as doors:
            secret, now = doors.node._parts.communication.secret, doors.node.clock.now_ms()
            links = [
                answer_link("", secret, "m1", "ana"),
                inbox_link("", secret, "ana", now + 60_000),
            ]
            monkeypatch.setattr(Node, "linked_message", failing)
            monkeypatch.setattr(InboxAccess, "look", failing)
            with capture_logs() as entries:
                for link in links:
                    assert (await doors.ask("GET", link)).status == 500
            paths = [one["path"] for one in entries if one["event"] == "request failed"]
            assert paths == ["/answer/m1/ana/***", "/inbox/ana/***"]

    asyncio.run(scenario())


def test_opening_the_link_is_no_answer_but_pressing_the_button_is(
    with_doors: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            message = await raised(doors)
            path = f"/answer/{message}/ana/{token_for(doors, message, 'ana')}"
            page = await doors.ask("GET", path)
            assert page.status == 200
            assert b"badge E200-03 is alone in l&lt;b&gt;ab" in page.body
            assert doors.node.channels.channel("control").last_position() == 0 or not [
                event
                for event in await doors.node.channels.channel("control").read_after(0)
                if event.event.type == "rapport.control.answer"
            ]
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            assert (await doors.ask("POST", path, b"answer=yes", form)).status == 200
            await _until_answered(doors, message)
            rows = (await doors.ask("GET", "/ledger")).json()
            assert ("ana", "answered", "yes") in {
                (row["peer"], row["state"], row["answer"]) for row in rows
            }

    asyncio.run(scenario())


def test_a_forged_link_answers_nothing(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            message = await raised(doors)
            token = token_for(doors, message, "ana")
            for path in (
                f"/answer/{message}/ben/{token}",
                f"/answer/{message}/ana/{token[:-1]}0x",
                f"/answer/other/ana/{token}",
            ):
                assert (await doors.ask("GET", path)).status == 403
                assert (await doors.ask("POST", path, {"answer": "yes"})).status == 403

    asyncio.run(scenario())


def test_a_bad_or_old_link_gives_a_page_in_peoples_words(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            now_ms = doors.node.clock.now_ms()
            await written(doors, "old", time=now_ms - 31 * 86_400_000)
            await written(doors, "young", time=now_ms - 29 * 86_400_000)
            old = f"/answer/old/ana/{token_for(doors, 'old', 'ana')}"
            gone = f"/answer/gone/ana/{token_for(doors, 'gone', 'ana')}"
            pages = [
                (old, 403, "This link is too old"),
                (gone, 403, "This link is too old"),
                (old[:-3], 403, "This link does not work"),
                ("/answer/old/ana", 404, "This link does not work"),
                ("/inbox/ana/cut/off/here", 404, "This link does not work"),
            ]
            for path, status, said in pages:
                page = await doors.ask("GET", path, headers={"Accept": "text/html,*/*"})
                assert (page.status, page.headers["content-type"][:9]) == (status, "text/html")
                assert f"<h1>{said}</h1>" in page.body.decode(), path
                assert "urn:rapport" not in page.body.decode()
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            refused = await doors.ask("POST", old, b"answer=yes", form)
            assert (refused.status, b"too old" in refused.body) == (403, True)
            young = f"/answer/young/ana/{token_for(doors, 'young', 'ana')}"
            assert (await doors.ask("GET", young)).status == 200
            program = await doors.ask("GET", old, headers={"Accept": "application/json"})
            assert program.json()["title"] == "answer.link_over"
            assert doors.node.channels.channel("control").last_position() == 0

    asyncio.run(scenario())


def test_an_answer_token_proves_messages_no_longer_than_its_link(
    with_doors: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            now_ms = doors.node.clock.now_ms()
            await written(doors, "old", time=now_ms - 31 * 86_400_000)
            await written(doors, "young", time=now_ms - 29 * 86_400_000)
            for message, status in (("old", 403), ("gone", 403), ("young", 202)):
                body = {
                    "type": "ANSWER",
                    "subtype": "",
                    "sender": "peer:ana",
                    "content": "yes",
                    "refers-to": message,
                    "session-token": token_for(doors, message, "ana"),
                }
                shown = await doors.ask("POST", "/sessions/messages", body)
                assert shown.status == status, (message, shown.body)
                if status == 403:
                    assert shown.json()["title"] == "answer.link_over"
            assert doors.node.channels.channel("input").last_position() == 1

    asyncio.run(scenario())


def test_the_lifetime_of_links_is_the_sites_to_say(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors(site_text='\n[arriving]\nanswer_links = "2 hours"\n') as doors:
            await written(doors, "m1", time=doors.node.clock.now_ms() - 3 * 3_600_000)
            path = f"/answer/m1/ana/{token_for(doors, 'm1', 'ana')}"
            assert (await doors.ask("GET", path)).status == 403

    asyncio.run(scenario())


def test_an_answer_given_twice_counts_once_and_another_one_replaces_it(
    with_doors: Callable[..., Any],
) -> None:
    async def given(doors: Any) -> list[str]:
        said = await doors.node.channels.channel("control").read_after(0)
        answers = [one.event for one in said if one.event.type == "rapport.control.answer"]
        return [event.payload()["text"] for event in answers]

    async def scenario() -> None:
        async with with_doors() as doors:
            message = await raised(doors)
            path = f"/answer/{message}/ana/{token_for(doors, message, 'ana')}"
            clicks = [doors.ask("POST", path, {"answer": "yes"}) for _ in range(4)]
            assert {answer.status for answer in await asyncio.gather(*clicks)} == {200}
            await _until_answered(doors, message)
            again = await doors.ask("POST", path, {"answer": "yes"})
            assert "was recorded already" in again.body.decode()
            assert await given(doors) == ["yes"]
            page = (await doors.ask("GET", path)).body.decode()
            assert "You answered “I take care of it” on" in page
            for text in ("no", "yes"):
                await doors.ask("POST", path, {"answer": text})
                for _ in range(200):
                    if (await doors.node.answer_of(message, "ana")).answer == text:
                        break
                    await asyncio.sleep(0.02)
            assert await given(doors) == ["yes", "no", "yes"]

    asyncio.run(scenario())


def test_whoever_tries_links_has_to_wait_and_a_right_link_still_opens(
    with_doors: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            await written(doors, "m1")
            path = f"/answer/m1/ana/{token_for(doors, 'm1', 'ana')}"
            for number in range(500):
                answer = await doors.ask("GET", f"/answer/m1/ana/{number:040x}")
                if answer.status == 429:
                    break
            assert b"<h1>Please wait a moment</h1>" in answer.body
            assert "retry-after" in answer.headers
            assert (await doors.ask("GET", path)).status == 200

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
    with_doors: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with with_doors(site_text="\n") as doors:
            settings = {"addresses": ["inbox:"], "zone": "Asia/Tokyo"}
            await doors.ask("PUT", "/peers/zoe", settings)
            body = {
                "type": "TASK",
                "subtype": "REQUEST",
                "sender": "component:desk",
                "receiver": "peer:zoe",
                "content": "come",
                "conversation-id": "c7",
            }
            (message,) = (await doors.ask("POST", "/messages", body)).json()["ids"]
            path = f"/answer/{message}/zoe/{token_for(doors, message, 'zoe')}"
            for _ in range(300):
                page = await doors.ask("GET", path)
                if page.status == 200:
                    break
                await asyncio.sleep(0.02)
            for fact in ("<dd>desk<", "<dd>Task: request<", "<dd>c7<", " JST<"):
                assert fact in page.body.decode()

    asyncio.run(scenario())


def test_the_page_and_what_it_shows(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors(site_keys="open_sources = true") as doors:
            await raised(doors)
            await doors.ask("POST", "/sources/strange", {"a": 1})
            await doors.node.channels.channel("quarantine").wait_after(0, timeout_ms=10_000)
            page = await doors.ask("GET", "/")
            assert b"secure-building" in page.body
            assert "default-src 'self'" in page.headers["content-security-policy"]
            assert (await doors.ask("GET", "/static/rapport.js")).status == 200
            assert (await doors.ask("GET", "/static/..%2Fapp.py")).status == 404
            shown = (await doors.ask("GET", "/overview")).json()
            assert shown["detections"][0]["bindings"] == {"A": "p03", "R": "l<b>ab"}
            assert shown["quarantine"][0]["reason"] == "source.unbound"
            assert {"ana", "ben"} <= {row["peer"] for row in shown["deliveries"]}

    asyncio.run(scenario())


def test_the_page_shows_what_is_undecided_and_which_source_was_silent(
    with_doors: Callable[..., Any],
) -> None:
    unsure = Undecided(
        policy="secure-building",
        time=5,
        bindings={"A": "p08", "R": "depot"},
        causes=((1, "e1"),),
        silent=("gate",),
    )

    async def scenario() -> None:
        async with with_doors() as doors:
            detections = doors.node.channels.channel("detections")
            await detections.append([unsure.to_event(source="secure-building")])
            (shown,) = (await doors.ask("GET", "/overview")).json()["detections"]
            assert (shown["bindings"], shown["silent"]) == (unsure.bindings, ["gate"])
            assert (await doors.ask("GET", "/ledger")).json() == []

    asyncio.run(scenario())


def test_service_doors_tell_how_the_node_is(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            await doors.ask("POST", "/sources/readers", {"a": 1})
            assert (await doors.ask("GET", "/readyz")).json() == {"status": "ready", "reasons": []}
            text = (await doors.ask("GET", "/metrics")).body.decode()
            assert 'rapport_channel_events_total{channel="raw.readers"} 1.0' in text
            assert 'rapport_output_waiting{adapter="inbox"} 0.0' in text
            assert (
                (await doors.ask("GET", "/schema/openapi.json")).json()["openapi"].startswith("3.")
            )
            unknown = await doors.ask("GET", "/explain/nothing")
            assert (unknown.status, unknown.json()["title"]) == (404, "event.unknown")

    asyncio.run(scenario())


async def _until_answered(doors: Any, message: str) -> None:
    for _ in range(200):
        await doors.node.ledger.refresh()
        if doors.node.ledger.message(message).answered_by:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the answer did not arrive")
