"""The map page and its doors, on loopback only. [EN-13]

`/` is the page, `/ground` what does not move, `/pictures` Server-Sent Events: a picture whenever it
differs from the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape

import msgspec
from litestar import Litestar, Response, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.response import Stream

from rapport.channel.access.admission import OPEN_TO_ALL
from rapport.core.errors import RapportError
from rapport.kernel.clock import Clock
from rapport.kernel.settings import NodeSettings
from rapport.web.guard import Doorkeeper, check_exposure
from rapport.web.headers import SAFE_HEADERS
from rapport.web.live.stream import BEAT_MS, RETRY_MS, named_block
from rapport.web.map.picture import MapSource
from rapport.web.pages import render, static_file
from rapport.web.problems import http_error_response, problem_response, unexpected_response
from rapport.web.server import listening

PICTURE_MS = 400
"""Between two looks for something new."""
_BODY_BYTES = 64 * 1024


class MapPage:
    """A page of its own: not a door of a node."""

    def __init__(self, source: MapSource, clock: Clock, *, port: int = 0) -> None:
        self.source, self.clock = source, clock
        self.settings = NodeSettings(port=port, max_body_bytes=_BODY_BYTES)
        self.doors_close = asyncio.Event()

    def app(self) -> Litestar:
        """The doors."""
        check_exposure(self.settings, "")
        source = self.source

        @get("/")
        async def page() -> Response[str]:
            """The page; what it shows comes from the other doors."""
            text = render("map.html", title=escape(source.title))
            return Response(text, media_type="text/html")

        @get("/static/{name:str}")
        async def static(name: FromPath[str]) -> Response[bytes]:
            """Style and script of the page."""
            body, media_type = static_file(name)
            return Response(body, media_type=media_type)

        @get("/ground")
        async def ground() -> Response[bytes]:
            """What does not move."""
            return Response(msgspec.json.encode(source.ground()), media_type="application/json")

        @get("/picture")
        async def picture() -> Response[bytes]:
            """How it is now."""
            return Response(msgspec.json.encode(source.picture()), media_type="application/json")

        @get("/pictures")
        async def pictures() -> Stream:
            """How it is, again and again."""
            return Stream(self._pictures(), media_type="text/event-stream")

        return Litestar(
            route_handlers=[page, static, ground, picture, pictures],
            guards=[Doorkeeper(self.settings, OPEN_TO_ALL, self.clock)],
            exception_handlers={
                RapportError: problem_response,
                HTTPException: http_error_response,
                Exception: unexpected_response,
            },
            response_headers=SAFE_HEADERS,
            request_max_body_size=_BODY_BYTES,
            openapi_config=None,
            logging_config=None,
            debug=False,
        )

    async def _pictures(self) -> AsyncIterator[bytes]:
        """Ends when the doors close; a slow reader misses pictures, never the newest."""
        yield f"retry: {RETRY_MS}\n\n".encode()
        last, silent_ms = b"", 0
        while not self.doors_close.is_set():
            block = named_block("picture", self.source.picture())
            if block != last:
                yield block
                last, silent_ms = block, 0
            elif silent_ms >= BEAT_MS:
                yield b": beat\n\n"
                silent_ms = 0
            await self.clock.sleep(PICTURE_MS)
            silent_ms += PICTURE_MS


@asynccontextmanager
async def serving_map(source: MapSource, clock: Clock, *, port: int = 0) -> AsyncIterator[str]:
    """Serves the page on loopback while the block runs; gives its URL. Port 0 takes a free one;
    raises Unavailable when the port is taken.
    """
    page = MapPage(source, clock, port=port)
    async with listening(page.app(), page) as url:
        yield url
