"""The endpoint of Server-Sent Events, read as a browser's EventSource reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from rapport.core.event import Event, StoredEvent
from rapport.web.event_stream import sse_blocks, sse_event
from rapport.web.event_view import EventTextCache, TextCache

pytestmark = pytest.mark.slow


class Block(msgspec.Struct):
    """One block of a stream, parsed by the rules of the HTML standard."""

    id: str | None = None
    event: str = "message"
    data: str = ""
    retry: str | None = None
    comment: str = ""


def parse_block(text: str) -> Block:
    block, data = Block(), []
    for line in text.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not field:
            block.comment = value
        elif field == "data":
            data.append(value)
        elif field in ("id", "event", "retry"):
            setattr(block, field, value)
    block.data = "\n".join(data)
    return block


class Source:
    """What an EventSource sees: blocks, and the last id."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._buffer = reader, b""
        self.status, self.headers = 0, {}
        self.last_id = ""

    async def begin(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)

    async def block(self) -> Block | None:
        while b"\n\n" not in self._buffer:
            size = int(await self._reader.readline() or b"0", 16)
            self._buffer += await self._reader.readexactly(size)
            await self._reader.readline()
            if size == 0:
                return None
        text, _, self._buffer = self._buffer.partition(b"\n\n")
        found = parse_block(text.decode())
        self.last_id = found.id if found.id is not None else self.last_id
        return found

    async def messages(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            block = await asyncio.wait_for(self.block(), 10)
            assert block is not None
            if block.data and block.event == "message":
                found.append(json.loads(block.data))
        return found


@asynccontextmanager
async def listening(api: Any, path: str, **headers: str) -> AsyncIterator[Source]:
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    told = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{told}\r\n".encode())
    try:
        source = Source(reader)
        await source.begin()
        yield source
    finally:
        writer.close()
        await writer.wait_closed()


async def fill(api: Any, first: int, last: int) -> None:
    events = [
        Event("s", f"e{n}", "even" if n % 2 == 0 else "odd", "", n, str(n).encode())
        for n in range(first, last + 1)
    ]
    await api.node.channels.channel("mine").append(events)


def test_history_goes_on_live_and_a_reconnection_goes_on_after_the_last_id(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 300)
            async with listening(api, "/channels/mine/stream") as source:
                assert source.headers["content-type"].startswith("text/event-stream")
                assert source.headers["cache-control"] == "no-store"
                first = await source.block()
                assert first is not None
                assert first.retry == "2000"
                old = await source.messages(300)
                await fill(api, 301, 310)
                seen = old + await source.messages(5)
                assert [event["position"] for event in seen] == list(range(1, 306))
                last = source.last_id
            assert last == "305"
            async with listening(api, "/channels/mine/stream", Last_Event_ID=last) as source:
                assert [event["position"] for event in await source.messages(5)] == [
                    *range(306, 311)
                ]

    asyncio.run(scenario())


def test_a_query_a_place_and_a_handback(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 12)
            path = "/channels/mine/stream?after=5&handback=me&query=" + quote("type = 'even'")
            async with listening(api, path) as source:
                found = await source.messages(4)
                assert [event["position"] for event in found] == [6, 8, 10, 12]
                assert {event["handback"] for event in found} == {"me"}
            async with listening(api, "/channels/mine/stream?from_start=false") as source:
                await fill(api, 13, 13)
                assert [event["position"] for event in await source.messages(1)] == [13]

    asyncio.run(scenario())


def test_a_token_of_a_request_goes_on_as_a_stream(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 6)
            body = {"query": "type = 'odd'", "max_messages": 2}
            batch = (await api.call("POST", "/channels/mine/requests", body)).json()
            path = f"/channels/mine/stream?token={batch['next_token']}"
            async with listening(api, path) as source:
                assert [event["position"] for event in await source.messages(1)] == [5]
                await fill(api, 7, 8)
                assert [event["position"] for event in await source.messages(1)] == [7]
            async with listening(api, path, Last_Event_ID="5") as source:
                assert [event["position"] for event in await source.messages(1)] == [7]

    asyncio.run(scenario())


def test_who_wants_only_what_is_new_misses_nothing_between_two_connections(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 3)
            path = "/channels/mine/stream?from_start=false"
            async with listening(api, path) as source:
                await fill(api, 4, 4)
                assert [event["position"] for event in await source.messages(1)] == [4]
            await fill(api, 5, 6)  # while nobody is connected
            async with listening(api, path, Last_Event_ID="4") as source:
                assert [event["position"] for event in await source.messages(2)] == [5, 6]

    asyncio.run(scenario())


def test_who_wants_only_what_is_new_has_a_place_before_anything_came(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 3)
            async with listening(api, "/channels/mine/stream?from_start=false") as source:
                await source.block()
                await asyncio.wait_for(source.block(), 5)
                assert source.last_id == "3"

    asyncio.run(scenario())


def test_a_connection_lost_within_the_set_of_a_token_goes_on_within_it(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 8)
            body = {"query": "type = 'odd'", "max_messages": 3}
            batch = (await api.call("POST", "/channels/mine/requests", body)).json()
            path = f"/channels/mine/stream?token={batch['current_token']}"
            for last, expected in {"0": [1, 3, 5, 7], "1": [3, 5, 7], "5": [7]}.items():
                async with listening(api, path, Last_Event_ID=last) as source:
                    found = await source.messages(len(expected))
                    assert [event["position"] for event in found] == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/channels/mine/stream", "/load/stream"])
def test_one_reader_too_many_is_told_to_come_again(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            monkeypatch.setattr("rapport.web.channel_socket.MOST_CONNECTIONS", 1)
            async with listening(api, path) as source:
                await source.block()
                answer = await api.call("GET", path)
                assert (answer.status, answer.json()["title"]) == (503, "web.too_many_readers")
                assert answer.headers["retry-after"] == "5"

    asyncio.run(scenario())


def test_a_query_with_an_end_ends_and_is_not_begun_again(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 5)
            path = "/channels/mine/stream?query=" + quote("position <= 3")
            async with listening(api, path) as source:
                await source.messages(3)
                last = await source.block()
                assert last is not None
                assert (last.event, json.loads(last.data)) == ("end", {"position": 3})
                assert await source.block() is None
            again = await api.call("GET", path, headers={"Last-Event-ID": "3"})
            assert again.status == 204

    asyncio.run(scenario())


def test_endpoints_that_close_end_the_stream(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api, listening(api, "/channels/mine/stream") as source:
            await source.block()
            api.node.closing.set()
            while await asyncio.wait_for(source.block(), 5) is not None:
                continue

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("?query=type+%3D", {}, 400, "query.unexpected"),
        ("?token=AAAA", {}, 400, "token.damaged"),
        ("?after=-1", {}, 400, "http.refused"),
        ("?token=AAAA&after=3", {}, 400, "request.bad_field"),
        ("", {"Last-Event-ID": "soon"}, 400, "stream.bad_place"),
        ("", {"Last-Event-ID": "9" * 30}, 400, "stream.bad_place"),
        ("", {"Origin": "https://evil.example"}, 403, "access.origin"),
    ],
)
def test_a_stream_that_cannot_begin_is_refused_with_a_problem(
    served_node: Callable[..., Any], query: str, headers: dict[str, str], status: int, code: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            answer = await api.call("GET", f"/channels/mine/stream{query}", headers=headers)
            assert (answer.status, answer.json()["title"]) == (status, code)

    asyncio.run(scenario())


def test_line_breaks_in_a_payload_do_not_break_the_format() -> None:
    stored = StoredEvent(7, 1, Event("s", "1", "t", "", 0, b'{\r\n "a":\n"x\\ny"}'))
    text = EventTextCache().event("c", stored)
    found = parse_block(sse_blocks([stored], [text], "").decode().removesuffix("\n\n"))
    assert found.id == "7"
    assert json.loads(found.data)["data"] == {"a": "x\ny"}
    assert parse_block(sse_event("end", {"a": 1}).decode().strip()).event == "end"


def test_texts_are_made_once_and_forgotten_when_there_are_too_many() -> None:
    made: list[int] = []

    def make(number: int) -> str:
        made.append(number)
        return "x" * 10

    texts = TextCache(limit=100)
    for number in (1, 2, 1, 2):
        texts.get(number, lambda number=number: make(number))
    assert made == [1, 2]
    for number in range(3, 20):
        texts.get(number, lambda number=number: make(number))
    assert len(texts) == 10
    texts.get(1, lambda: make(1))
    assert made[-1] == 1
