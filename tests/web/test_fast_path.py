"""The short way in front of the framework gives the answers that the framework gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.site.site import load_site
from rapport.web.app import make_app
from rapport.web.fast_path import FastPathApp

EVENT = {"id": "1", "source": "s", "type": "t", "time": "2026-03-02T09:14:05Z", "data": {"a": 1}}
JSON = {"content-type": "application/json"}
BINARY = {"ce-id": "b1", "ce-source": "s", "ce-type": "t"}
XML = {"content-type": "application/xml"}

TABLE: list[tuple[str, bytes, dict[str, str], int]] = [
    ("/channels/mine/events", json.dumps(EVENT).encode(), JSON, 200),
    ("/channels/mine/events", json.dumps([EVENT, EVENT | {"id": "2"}]).encode(), JSON, 200),
    ("/channels/mine/events", b"[]", JSON, 200),
    ("/channels/mine/events", b'{"b":2}', JSON | BINARY, 200),
    ("/channels/mine/events", b"<a/>", XML | BINARY | {"ce-id": "b2"}, 200),
    ("/channels/mine/events", b"<a>", XML | BINARY, 400),
    ("/channels/mine/events", b"<!DOCTYPE a><a/>", XML | BINARY, 400),
    ("/channels/mine/events", b"", BINARY | {"ce-type": ""}, 400),
    ("/channels/mine/events", b"{oops", JSON, 400),
    ("/channels/mine/events", b"\xff", JSON, 400),
    ("/channels/mine/events", b"x" * 5_000, JSON, 413),
    ("/channels/mine/events", json.dumps([EVENT] * 4).encode(), JSON, 413),
    ("/channels/Not a name/events", json.dumps(EVENT).encode(), JSON, 400),
    ("/channels/detections/events", json.dumps(EVENT).encode(), JSON, 403),
    ("/channels/mine/events", b"{}", JSON | {"origin": "https://evil.example"}, 403),
    ("/channels/mine/events", b"{}", JSON | {"host": "evil.example"}, 403),
    ("/channels/mine/events", b"{}", JSON | {"authorization": "Bearer wrong"}, 401),
    ("/channels//events", b"{}", JSON, 404),
    ("/channels/mine/other", b"{}", JSON, 404),
    ("/channels/mine/events/", json.dumps(EVENT).encode(), JSON, 200),
    ("/sources/readers", b'{"n": 1}', JSON, 200),
    ("/sources/readers", b"[1, 2]", JSON, 200),
    ("/sources/readers", b"no", JSON, 400),
    ("/sources/reader", b"{}", JSON, 404),
    ("/sources/", b"{}", JSON, 405),
    ("/sources", b"{}", JSON, 405),
]
TOKEN = "s3cret-s3cret-s3cret-s3cret"


class Told(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(app: Any, path: str, body: bytes, headers: dict[str, str]) -> Told:
    """One request to an ASGI application, in two parts as a slow network would send it."""
    given = {"host": "127.0.0.1", "authorization": f"Bearer {TOKEN}"} | headers
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.replace(" ", "%20").encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    half = len(body) // 2
    parts = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ]
    told = Told(0, {}, b"")

    async def receive() -> Any:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.status = message["status"]
            told.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            told.body += message.get("body", b"")

    await app(scope, receive, send)
    return told


@asynccontextmanager
async def application(directory: Path, *, short: bool) -> AsyncIterator[tuple[Any, Node]]:
    site = prepare_site(
        directory, mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
    )
    settings = NodeSettings(port=0, max_body_bytes=4_000, max_batch=3)
    node = make_node(load_site(site), settings, SystemClock())
    app = make_app(node, token=TOKEN)
    try:
        yield (FastPathApp(app, node) if short else app), node
    finally:
        await node.stop()


def _without_chance(event: Event) -> Event:
    """The event without the time of its arrival, and without the id that a reading got then."""
    id = "" if event.type.endswith(".raw") else event.id
    return msgspec.structs.replace(event, time=0, id=id)


def test_both_ways_give_the_same_answers_and_keep_the_same_events(tmp_path: Path) -> None:
    async def through(short: bool) -> tuple[list[Told], list[Any]]:
        async with application(tmp_path / str(short), short=short) as (app, node):
            answers = [await ask(app, path, body, headers) for path, body, headers, _ in TABLE]
            kept = [
                (channel, stored.position, _without_chance(stored.event))
                for channel in node.channels.names()
                for stored in await node.channels.channel(channel).read_after(0)
            ]
            return answers, kept

    async def scenario() -> None:
        short, whole = await through(True), await through(False)
        for (path, body, _headers, status), one, other in zip(
            TABLE, short[0], whole[0], strict=True
        ):
            assert (path, body[:20], one.status) == (path, body[:20], status)
            assert one == other
        assert short[1] == whole[1]

    asyncio.run(scenario())


def test_a_caller_that_goes_away_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with application(tmp_path / "site", short=True) as (app, node):
            sent: list[Any] = []
            messages = [{"type": "http.request", "body": b"{", "more_body": True}]

            async def receive() -> Any:
                return messages.pop(0) if messages else {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {TOKEN}".encode())]
            scope = {"type": "http", "method": "POST", "path": "/channels/mine/events"}
            await app(scope | {"headers": headers, "client": ("127.0.0.1", 1)}, receive, send)
            assert sent == []
            assert node.channels.channel("mine").last_position() == 0

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "media_type", "kept", "marks"),
    [
        (b"<a>1 &lt; 2</a>", "application/xml", "<a>1 &lt; 2</a>", {}),
        ("grüß".encode(), "text/plain; charset=utf-8", "grüß", {}),
        ("grüß".encode("latin-1"), "text/plain; charset=latin-1", "Z3L83w==", "base64"),
        (b"\x00\x01\xff", "application/octet-stream", "AAH/", "base64"),
        (
            b'<?xml version="1.0" encoding="iso-8859-1"?><a>\xfc</a>',
            "text/xml",
            "PD94bWwgdmVyc2lvbj0iMS4wIiBlbmNvZGluZz0iaXNvLTg4NTktMSI/PjxhPvw8L2E+",
            "base64",
        ),
    ],
)
def test_data_that_are_not_json_come_back_as_they_were(
    served_node: Callable[..., Any], body: bytes, media_type: str, kept: str, marks: Any
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            headers = BINARY | {"Content-Type": media_type}
            assert (await api.call("POST", "/channels/mine/events", body, headers)).status == 200
            (event,) = (await api.call("GET", "/channels/mine/events")).json()["events"]
            assert event["datacontenttype"] == media_type
            assert event.get("data_base64" if marks else "data") == kept
            # Given out, structured, and taken in again: the same event in another channel.
            again = {name: event[name] for name in event if name not in ("position", "received")}
            answer = await api.call("POST", "/channels/other/events", again)
            assert answer.status == 200, answer.body
            first = (await api.node.channels.channel("mine").read_after(0))[0].event
            second = (await api.node.channels.channel("other").read_after(0))[0].event
            assert first.payload() == second.payload()
            assert first.headers == second.headers

    asyncio.run(scenario())
