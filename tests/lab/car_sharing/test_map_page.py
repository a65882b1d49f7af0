"""The map page: what it says, who may see it, and what a browser makes of it. [EN-13]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from websockets.asyncio.client import connect

from rapport.kernel.clock import SystemClock
from rapport_lab.car_sharing.map_page import Ground, Happening, Picture, Thing, Tie, serving_map
from support.browser import browser_program, browsing
from support.servers.ports import free_port


class Town:
    """Two things on a street."""

    title = "<b>Town</b>"

    def __init__(self) -> None:
        self.time_ms = 0.0

    def ground(self) -> Ground:
        return Ground(west=0, south=0, east=500, north=300, streets=((0, 0, 500, 300, True),))

    def picture(self) -> Picture:
        self.time_ms += 1_000
        car = Thing(id="car-1", kind="car", east=10, north=20, says="2 of 3 seats free")
        ana = Thing(
            id="ana", kind="person", east=30, north=40, says="<i>walks</i>", state="waiting"
        )
        return Picture(
            time_ms=self.time_ms,
            things=(car, ana),
            ties=(Tie("ana", "car-1", "held"),),
            happenings=(Happening(1, 0.0, "car-1 gives ana seat 1"),),
            counts={"rides": 7},
        )


def test_the_page_shows_the_ground_and_pictures_as_they_come() -> None:
    async def scenario() -> None:
        async with serving_map(Town(), SystemClock()) as url, httpx2.AsyncClient() as client:
            page = await client.get(url)
            assert page.status_code == 200
            assert "&lt;b&gt;Town" in page.text
            assert "default-src 'self'" in page.headers["content-security-policy"]
            for name in ("map.js", "map.css", "rapport.css"):
                assert (await client.get(f"{url}/static/{name}")).status_code == 200
            ground = (await client.get(f"{url}/ground")).json()
            assert ground["streets"] == [[0, 0, 500, 300, True]]
            pictures = await first_pictures(client, f"{url}/pictures", 2)
            assert [thing["id"] for thing in pictures[0]["things"]] == ["car-1", "ana"]
            assert pictures[0]["time_ms"] < pictures[1]["time_ms"]

    asyncio.run(scenario())


async def first_pictures(client: Any, url: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with client.stream("GET", url) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(msgspec.json.decode(line[6:]))
            if len(found) == count:
                break
    return found


def test_pages_of_others_cannot_look_at_the_map() -> None:
    async def scenario() -> None:
        async with serving_map(Town(), SystemClock()) as url, httpx2.AsyncClient() as client:
            for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
                answer = await client.get(f"{url}/picture", headers=headers)
                assert answer.status_code == 403
            assert (await client.get(f"{url}/static/../pages.py")).status_code == 404
            assert (await client.get(f"{url}/nothing")).status_code == 404

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.skipif(browser_program() is None, reason="there is no Chromium on this machine")
def test_a_browser_draws_what_is_there_and_says_it_in_words() -> None:
    async def scenario() -> None:
        port = free_port()
        async with (
            serving_map(Town(), SystemClock()) as url,
            browsing(url, f"--remote-debugging-port={port}"),
            asyncio.timeout(60),
            opened_page(port) as evaluate,
        ):
            text = ""
            while "live ·" not in text:
                text = await evaluate("document.documentElement.outerHTML")
            assert 'viewBox="-20 -320 540 340"' in text
            assert 'transform="translate(10 -20)"' in text
            assert 'class="shape person waiting"' in text
            assert 'class="tie held"' in text
            assert "car-1 gives ana seat 1" in text
            assert "&lt;i&gt;walks&lt;/i&gt;" in text
            assert "<b>7</b> rides" in text
            key = "new KeyboardEvent('keydown', {key: 'ArrowLeft'})"
            await evaluate(f"document.getElementById('map').dispatchEvent({key})")
            chosen = await evaluate("document.getElementById('chosen').textContent")
            assert chosen == "ana: <i>walks</i>"

    asyncio.run(scenario())


@asynccontextmanager
async def opened_page(port: int) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Gives a function that evaluates scripts in the browser's page."""
    async with httpx2.AsyncClient() as client:
        address = ""
        while not address:
            try:
                pages = (await client.get(f"http://127.0.0.1:{port}/json")).json()
                address = next(
                    (one["webSocketDebuggerUrl"] for one in pages if one["type"] == "page"), ""
                )
            except httpx2.HTTPError:
                await asyncio.sleep(0.05)
    async with connect(address, max_size=None) as socket:

        async def evaluate(script: str) -> str:
            await socket.send(
                msgspec.json.encode(
                    {"id": 1, "method": "Runtime.evaluate", "params": {"expression": script}}
                ).decode()
            )
            while True:
                answer = msgspec.json.decode(await socket.recv())
                if answer.get("id") == 1:
                    return str(answer["result"]["result"].get("value", ""))

        yield evaluate
