"""A rule that hides or changes events holds at every endpoint, by the reader. [CH-10]"""

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


async def fill(api: Any, *numbers: int, channel: str = "mine") -> None:
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
    await api.node.channels.channel(channel).append(events)


async def hide(api: Any, channel: str = "mine") -> Masks:
    masks, chain = Masks(), api.node.channels.interceptors
    await chain.declare("hide", channel, "drop", {"where": "type = 'hidden'"}, at="delivery")
    chain.add(channel, masks, at="delivery")
    return masks


def through(served_node: Open, look: Callable[[Any], Awaitable[str]], access: str = ACCESS) -> str:
    """What a endpoint shows of five events of which two are hidden and three are masked."""

    async def scenario() -> str:
        async with served_node(site_text=access) as api:
            masks = await hide(api)
            await fill(api, 1, 2, 3, 4, 5)
            shown = await look(api)
            assert masks.readers <= {"local"}
            return shown

    shown = asyncio.run(scenario())
    assert "SECRET" not in shown
    return shown


def ids(shown: str) -> list[str]:
    return [event["id"] for event in json.loads(shown)["events"]]


async def asked(api: Any, **members: Any) -> str:
    answer = await api.call("POST", "/channels/mine/requests", members)
    assert answer.status == 200, answer.body
    return answer.body.decode()


def test_plain_reading_and_the_long_poll(served_node: Open) -> None:
    async def look(api: Any) -> str:
        answer = await api.call("GET", "/channels/mine/events?after=0&wait=1s")
        assert answer.json()["next"] == 5
        hidden = await api.call("GET", "/channels/mine/events?after=3&limit=1&wait=1s")
        assert (hidden.json()["events"], hidden.json()["next"]) == ([], 4)
        return answer.body.decode()

    assert ids(through(served_node, look)) == ["e1", "e3", "e5"]


def test_requests_and_their_tokens(served_node: Open) -> None:
    async def look(api: Any) -> str:
        first = await asked(api, query={}, max_messages=5)
        again = await asked(api, token=json.loads(first)["current_token"])
        assert json.loads(first)["events"] == json.loads(again)["events"]
        return first

    assert ids(through(served_node, look)) == ["e1", "e3", "e5"]


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
    served_node: Open, condition: str, found: list[str]
) -> None:
    async def look(api: Any) -> str:
        first = await asked(api, query=condition)
        token = json.loads(first)["current_token"]
        assert ids(await asked(api, token=token)) == ids(first)
        return first

    assert ids(through(served_node, look)) == found


def test_an_index_does_not_tell_what_is_hidden(served_node: Open) -> None:
    index = ACCESS + '[channels.mine]\nindex = ["data.pin", "data.n"]\n'
    found = through(served_node, lambda api: asked(api, query="data.pin = 'SECRET-3'"), index)
    assert ids(found) == []


def test_taking_leaves_what_the_taker_does_not_see(served_node: Open) -> None:
    async def look(api: Any) -> str:
        taken = await asked(api, query={}, take=True)
        await api.node.channels.interceptors.remove("hide")
        assert ids(await asked(api, query={})) == ["e2", "e4"]
        return taken

    assert ids(through(served_node, look)) == ["e1", "e3", "e5"]


@pytest.mark.parametrize("condition", ["", "position <= 5"])
def test_the_stream(served_node: Open, condition: str) -> None:
    async def look(api: Any) -> str:
        asking = f"/channels/mine/stream?query={urllib.parse.quote(condition)}"

        def read() -> str:
            text = ""
            with urllib.request.urlopen(api.url + asking, timeout=10) as answer:
                while "id: 5" not in text:
                    text += answer.readline().decode()
                return text + answer.readline().decode()

        return await asyncio.to_thread(read)

    shown = through(served_node, look)
    assert [f'"e{number}"' in shown for number in range(1, 6)] == [True, False, True, False, True]


@pytest.mark.parametrize("condition", [None, "data.n >= 1"])
def test_the_socket_also_when_a_rule_comes_while_it_is_open(
    served_node: Open, condition: str | None
) -> None:
    """Texts that were written for others before the rule are not handed out after it."""

    async def scenario() -> None:
        async with served_node(site_text=ACCESS) as api:
            address = api.url.replace("http://", "ws://") + "/channels/mine/socket"
            async with connect(address) as early, connect(address) as late:
                for socket, start in ((early, 0), (late, 0)):
                    asking = {"id": "a", "query": condition, "after": start, "max_batch": 10}
                    await socket.send(json.dumps({"subscribe": asking | {"credit": 1}}))
                    await asyncio.wait_for(socket.recv(), 10)
                await fill(api, 1, 2, 3)
                before = [await asyncio.wait_for(socket.recv(), 10) for socket in (early, late)]
                assert all("SECRET" in text for text in before)
                await hide(api)
                await fill(api, 4, 5)
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


def test_looking_an_event_up(served_node: Open) -> None:
    async def look(api: Any) -> str:
        hidden = await api.call("GET", "/explain/e2")
        assert hidden.status == 404
        shown = await api.call("GET", "/explain/e3")
        assert shown.status == 200
        return (shown.body + hidden.body).decode()

    assert '"e3"' in through(served_node, look)


def test_endpoints_with_a_form_of_their_own_show_nothing_of_a_channel_with_such_rules(
    served_node: Open,
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=ACCESS) as api:
            assert (await api.call("GET", "/ledger")).status == 200
            for channel in ("log", "quarantine", "detections"):
                await hide_all(api, channel)
            for path in ("/ledger", "/quarantine", "/policies/x/why-not"):
                answer = await api.call("GET", path)
                assert (answer.status, answer.json()["title"]) == (403, "access.intercepted"), path
            overview = (await api.call("GET", "/overview")).json()
            assert [overview[name] for name in ("detections", "deliveries", "quarantine")] == [
                *([], [], [])
            ]

    async def hide_all(api: Any, channel: str) -> None:
        api.node.channels.interceptors.add(channel, Masks(), at="delivery", name=f"on-{channel}")

    asyncio.run(scenario())


def test_reading_the_log_from_the_terminal(
    served_node: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await hide(api)
            await fill(api, 1, 2, 3)

    asyncio.run(scenario())
    capsys.readouterr()
    assert run(["read", "mine", "--site", str(tmp_path / "site"), "--json"]) == 0
    shown = capsys.readouterr().out
    assert [json.loads(line)["id"] for line in shown.splitlines()] == ["e1", "e3"]


def test_where_a_rule_cannot_be_made_every_endpoint_says_so_and_shows_nothing(
    served_node: Open,
) -> None:
    """The plug-in of a kept rule is gone after a restart: nobody knows what it would hide."""

    def streamed(url: str) -> str:
        with urllib.request.urlopen(f"{url}/channels/mine/stream", timeout=20) as answer:
            return str(answer.read().decode())

    async def scenario() -> None:
        async with served_node(site_text=ACCESS) as api:
            await fill(api, 1, 2, 3)
            chain = api.node.channels.interceptors
            await chain._make_again(
                InterceptorSpec(name="hide", channels="mine", kind="no-such-kind", at="delivery")
            )
            assert [one.state for one in chain.listed()] == ["holds back"]
            requests = "/channels/mine/requests"
            answers = [
                await api.call("GET", "/channels/mine/events?after=0"),
                await api.call("GET", "/explain/e1"),
                await api.call("POST", requests, {"query": {}}),
                await api.call("POST", requests, {"query": {}, "take": True}),
                await api.call("POST", requests, {"query": "type = 't'"}),
            ]
            for answer in answers:
                assert (answer.status, answer.json()["title"]) == (503, "interceptor.missing")
                assert "intercept remove hide" in answer.json()["hint"]
                assert "retry-after" in answer.headers
            shown = await asyncio.to_thread(streamed, api.url)
            assert "interceptor.missing" in shown
            async with connect(f"{api.url.replace('http', 'ws')}/channels/mine/socket") as socket:
                await socket.send(json.dumps({"subscribe": {"id": "a", "query": {}}}))
                told = [str(await socket.recv()), str(await socket.recv())]
            assert "interceptor.missing" in told[1]
            everything = "".join([shown, *told, *(str(answer.body) for answer in answers)])
            assert "SECRET" not in everything
            await chain.remove("hide")
            read = await api.call("GET", "/channels/mine/events?after=0")
            assert len(read.json()["events"]) == 3

    asyncio.run(scenario())
