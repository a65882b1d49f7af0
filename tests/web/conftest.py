"""A node with open endpoints on a free port, and a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.site.site import load_site
from rapport.web.app import serving


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-pictures", action="store_true", help="Take the pictures of the pages anew."
    )


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class NodeApi:
    """Requests to a running node, off the event loop."""

    def __init__(self, node: Node, url: str) -> None:
        self.node, self.url = node, url
        self._host, self._port = url.removeprefix("http://").split(":")

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        return await asyncio.to_thread(self._send, method, path, body, headers or {})

    async def values(self, stream: str, count: int) -> list[Any]:
        """The values of a stream in `events`, in order; waits until there are so many events."""
        events = self.node.channels.channel("events")
        while events.last_position() < count:
            assert await events.wait_after(events.last_position(), timeout_ms=20_000)
        stored = await events.read_after(0)
        return [one.event.payload()["value"][0] for one in stored if one.event.type == stream]

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self._host, int(self._port), timeout=20)
        try:
            sent = {"Content-Type": "application/json"} | headers
            connection.request(method, path, raw, sent)
            answer = connection.getresponse()
            found: dict[str, str] = {}
            for name, value in answer.getheaders():  # of several of one name all
                before = found.get(name.lower())
                found[name.lower()] = value if before is None else f"{before}, {value}"
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


@pytest.fixture
def served_node(tmp_path: Path) -> Callable[..., Any]:
    """`async with with_doors() as endpoints:` gives a started node; settings, token, more tables of
    the site, and more keys of `[site]` as arguments.
    """

    @asynccontextmanager
    async def open_node(
        token: str = "", site_text: str = "", site_keys: str = "", **settings: Any
    ) -> AsyncIterator[NodeApi]:
        site = prepare_site(
            tmp_path / "site", mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
        )
        with (site / "site.toml").open("a") as file:
            file.write(site_text)
        if site_keys:
            text = (site / "site.toml").read_text()
            (site / "site.toml").write_text(text.replace("[site]\n", f"[site]\n{site_keys}\n", 1))
        node = make_node(load_site(site), NodeSettings(port=0, **settings), SystemClock())
        try:
            async with serving(node, token=token) as url:
                await node.start()
                yield NodeApi(node, url)
        finally:
            await node.stop()

    return open_node
