"""A rule that hides or changes events holds at every door, for the identity that reads. [CH-10]"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

from rapport.channel.interceptors.chain import InterceptorSpec
from rapport.cli.main import run
from rapport.core.event import StoredEvent, make_event

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
ACCESS = '[access.local]\nsubscribe = ["*"]\ntake = ["*"]\n'
"""Callers of these tests are `local`, who may read and not change the node."""


class Masks:
    """Shows nobody what stands in `pin`; notes who read."""

    def __init__(self) -> None:
        self.readers: set[str] = set()

    def on_delivery(self, _channel: str, reader: str, stored: StoredEvent) -> Sequence[StoredEvent]:
        self.readers.add(reader)
        data = msgspec.json.decode(stored.event.data)
        if "pin" not in data:
            return (stored,)
        masked = msgspec.json.encode({**data, "pin": "-"})
        event = msgspec.structs.replace(stored.event, data=masked)
        return (StoredEvent(stored.position, stored.received, event),)


async def fill(doors: Any, *numbers: int, channel: str = "mine") -> None:
    """Odd ones are masked, even ones are hidden."""
    events = [
        make_event(
            source="s",
            id=f"e{number}",
            type="t" if number % 2 else "hidden",
            time=number,
            data={"n": number, "pin": f"SECRET-{number}"},
        )
        for number in numbers
    ]
    await doors.node.channels.channel(channel).append(events)


async def hide(doors: Any, channel: str = "mine") -> Masks:
    masks, chain = Masks(), doors.node.channels.interceptors
    await chain.declare("hide", channel, "drop", {"where": "type = 'hidden'"}, at="delivery")
    chain.add(channel, masks, at="delivery")
    return masks


def through(with_doors: Open, look: Callable[[Any], Awaitable[str]], access: str = ACCESS) -> str:
    """What a door shows of five events of which two are hidden and three are masked."""

    async def scenario() -> str:
        async with with_doors(site_text=access) as doors:
            masks = await hide(doors)
            await fill(doors, 1, 2, 3, 4, 5)
            shown = await look(doors)
            assert masks.readers <= {"local"}
            return shown

    shown = asyncio.run(scenario())
    assert "SECRET" not in shown
    return shown


def ids(shown: str) -> list[str]:
    return [event["id"] for event in json.loads(shown)["events"]]


async def asked(doors: Any, **members: Any) -> str:
    answer = await doors.ask("POST", "/channels/mine/requests", members)
    assert answer.status == 200, answer.body
    return answer.body.decode()


def test_plain_reading_and_the_long_poll(with_doors: Open) -> None:
    async def look(doors: Any) -> str:
        answer = await doors.ask("GET", "/channels/mine/events?after=0&wait=1s")
        assert answer.json()["next"] == 5
        hidden = await doors.ask("GET", "/channels/mine/events?after=3&limit=1&wait=1s")
        assert (hidden.json()["events"], hidden.json()["next"]) == ([], 4)
        return answer.body.decode()

    assert ids(through(with_doors, look)) == ["e1", "e3", "e5"]


def test_requests_and_their_tokens(with_doors: Open) -> None:
    async def look(doors: Any) -> str:
        first = await asked(doors, query={}, max_messages=5)
        again = await asked(doors, token=json.loads(first)["current_token"])
        assert json.loads(first)["events"] == json.loads(again)["events"]
        return first

    assert ids(through(with_doors, look)) == ["e1", "e3", "e5"]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("data.pin = 'SECRET-3'", []),
        ("data.pin LIKE 'SECRET%' OR data.n = 1", ["e1"]),
        ("data.pin = '-'", ["e1", "e3", "e5"]),
        ("type = 'hidden'", []),
        ("data.n > 1", ["e3", "e5"]),
    ],
)
def test_conditions_are_asked_of_what_the_reader_sees(
    with_doors: Open, condition: str, found: list[str]
) -> None:
    async def look(doors: Any) -> str:
        first = await asked(doors, query=condition)
        token = json.loads(first)["current_token"]
        assert ids(await asked(doors, token=token)) == ids(first)
        return first

    assert ids(through(with_doors, look)) == found


def test_an_index_does_not_tell_what_is_hidden(with_doors: Open) -> None:
    index = ACCESS + '[channels.mine]\nindex = ["data.pin", "data.n"]\n'
    found = through(with_doors, lambda doors: asked(doors, query="data.pin = 'SECRET-3'"), index)
    assert ids(found) == []


def test_taking_leaves_what_the_taker_does_not_see(with_doors: Open) -> None:
    async def look(doors: Any) -> str:
        taken = await asked(doors, query={}, take=True)
        await doors.node.channels.interceptors.remove("hide")
        assert ids(await asked(doors, query={})) == ["e2", "e4"]
        return taken

    assert ids(through(with_doors, look)) == ["e1", "e3", "e5"]


@pytest.mark.parametrize("condition", ["", "position <= 5"])
def test_the_stream(with_doors: Open, condition: str) -> None:
    async def look(doors: Any) -> str:
        asking = f"/channels/mine/stream?query={urllib.parse.quote(condition)}"

        def read() -> str:
            text = ""
            with urllib.request.urlopen(doors.url + asking, timeout=10) as answer:
                while "id: 5" not in text:
                    text += answer.readline().decode()
                return text + answer.readline().decode()

        return await asyncio.to_thread(read)

    shown = through(with_doors, look)
    assert [f'"e{number}"' in shown for number in range(1, 6)] == [True, False, True, False, True]


@pytest.mark.parametrize("condition", [None, "data.n >= 1"])
def test_the_socket_also_when_a_rule_comes_while_it_is_open(
    with_doors: Open, condition: str | None
) -> None:
    """Texts that were written for others before the rule are not handed out after it."""

    async def scenario() -> None:
        async with with_doors(site_text=ACCESS) as doors:
            address = doors.url.replace("http://", "ws://") + "/channels/mine/socket"
            async with connect(address) as early, connect(address) as late:
                for socket, start in ((early, 0), (late, 0)):
                    asking = {"id": "a", "query": condition, "after": start, "max_batch": 10}
                    await socket.send(json.dumps({"subscribe": asking | {"credit": 1}}))
                    await asyncio.wait_for(socket.recv(), 10)
                await fill(doors, 1, 2, 3)
                before = [await asyncio.wait_for(socket.recv(), 10) for socket in (early, late)]
                assert all("SECRET" in text for text in before)
                await hide(doors)
                await fill(doors, 4, 5)
                await early.send(json.dumps({"credit": 1, "id": "a"}))
                after = str(await asyncio.wait_for(early.recv(), 10))
                assert "SECRET" not in after
                assert '"e5"' in after
                assert '"e4"' not in after
                again = {"id": "b", "query": condition, "max_batch": 10}
                await late.send(json.dumps({"subscribe": again}))
                await asyncio.wait_for(late.recv(), 10)
                assert "SECRET" not in str(await asyncio.wait_for(late.recv(), 10))

    asyncio.run(scenario())


def test_looking_an_event_up(with_doors: Open) -> None:
    async def look(doors: Any) -> str:
        hidden = await doors.ask("GET", "/explain/e2")
        assert hidden.status == 404
        shown = await doors.ask("GET", "/explain/e3")
        assert shown.status == 200
        return (shown.body + hidden.body).decode()

    assert '"e3"' in through(with_doors, look)


def test_doors_with_a_form_of_their_own_show_nothing_of_a_channel_with_such_rules(
    with_doors: Open,
) -> None:
    async def scenario() -> None:
        async with with_doors(site_text=ACCESS) as doors:
            assert (await doors.ask("GET", "/ledger")).status == 200
            for channel in ("log", "quarantine", "detections"):
                await hide_all(doors, channel)
            for path in ("/ledger", "/quarantine", "/policies/x/why-not"):
                answer = await doors.ask("GET", path)
                assert (answer.status, answer.json()["title"]) == (403, "access.intercepted"), path
            overview = (await doors.ask("GET", "/overview")).json()
            assert [overview[name] for name in ("detections", "deliveries", "quarantine")] == [
                *([], [], [])
            ]

    async def hide_all(doors: Any, channel: str) -> None:
        doors.node.channels.interceptors.add(channel, Masks(), at="delivery", name=f"on-{channel}")

    asyncio.run(scenario())


def test_reading_the_log_from_the_terminal(
    with_doors: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            await hide(doors)
            await fill(doors, 1, 2, 3)

    asyncio.run(scenario())
    capsys.readouterr()
    assert run(["read", "mine", "--site", str(tmp_path / "site"), "--json"]) == 0
    shown = capsys.readouterr().out
    assert [json.loads(line)["id"] for line in shown.splitlines()] == ["e1", "e3"]


def test_where_a_rule_cannot_be_made_every_door_says_so_and_shows_nothing(
    with_doors: Open,
) -> None:
    """The plug-in of a kept rule is gone after a restart: nobody knows what it would hide."""

    def streamed(url: str) -> str:
        with urllib.request.urlopen(f"{url}/channels/mine/stream", timeout=20) as answer:
            return str(answer.read().decode())

    async def scenario() -> None:
        async with with_doors(site_text=ACCESS) as doors:
            await fill(doors, 1, 2, 3)
            chain = doors.node.channels.interceptors
            await chain._make_again(
                InterceptorSpec(name="hide", channels="mine", kind="no-such-kind", at="delivery")
            )
            assert [one.state for one in chain.listed()] == ["holds back"]
            requests = "/channels/mine/requests"
            answers = [
                await doors.ask("GET", "/channels/mine/events?after=0"),
                await doors.ask("GET", "/explain/e1"),
                await doors.ask("POST", requests, {"query": {}}),
                await doors.ask("POST", requests, {"query": {}, "take": True}),
                await doors.ask("POST", requests, {"query": "type = 't'"}),
            ]
            for answer in answers:
                assert (answer.status, answer.json()["title"]) == (503, "interceptor.missing")
                assert "intercept remove hide" in answer.json()["hint"]
                assert "retry-after" in answer.headers
            shown = await asyncio.to_thread(streamed, doors.url)
            assert "interceptor.missing" in shown
            async with connect(f"{doors.url.replace('http', 'ws')}/channels/mine/socket") as socket:
                await socket.send(json.dumps({"subscribe": {"id": "a", "query": {}}}))
                told = [str(await socket.recv()), str(await socket.recv())]
            assert "interceptor.missing" in told[1]
            everything = "".join([shown, *told, *(str(answer.body) for answer in answers)])
            assert "SECRET" not in everything
            await chain.remove("hide")
            read = await doors.ask("GET", "/channels/mine/events?after=0")
            assert len(read.json()["events"]) == 3

    asyncio.run(scenario())
