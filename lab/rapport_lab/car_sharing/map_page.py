"""A map of moving things without outside tiles, served on loopback only. [EN-13]

`/` is the page, `/ground` the fixed background, `/pictures` Server-Sent Events with a picture
whenever it differs from the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, Template
from litestar import Litestar, Response, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.response import Stream

from rapport.channel.access.identities import OPEN_TO_ALL
from rapport.core.errors import RapportError
from rapport.kernel.clock import Clock
from rapport.kernel.settings import NodeSettings
from rapport.web.event_stream import BEAT_MS, RETRY_MS, sse_event
from rapport.web.pages import static_file
from rapport.web.problems import http_error_response, problem_response, unexpected_response
from rapport.web.security import SAFE_HEADERS, RequestGuard, check_exposure
from rapport.web.server import serve_app


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What does not move; all in metres east and north."""

    west: float
    south: float
    east: float
    north: float
    streets: tuple[tuple[float, float, float, float, bool], ...]
    """Straight pieces from one point to another; true: a main street."""


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """Something on the map."""

    id: str
    kind: str
    """`car`, `bus` or `person`: how it is drawn."""
    east: float
    north: float
    says: str
    """What it does, in a few words, for people and screen readers."""
    state: str = ""
    """`waiting`, `riding`, `full`: a shade of its drawing."""
    way: tuple[tuple[float, float], ...] = ()
    """Where it goes next; drawn while it is chosen."""


class Tie(msgspec.Struct, frozen=True):
    """Two things that have to do with each other."""

    one: str
    other: str
    state: str
    """`claimed` or `held`."""


class Happening(msgspec.Struct, frozen=True):
    """Something that happened, in words."""

    number: int
    time_ms: float
    """Since the beginning."""
    text: str


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """How it is now."""

    time_ms: float
    things: tuple[Thing, ...]
    ties: tuple[Tie, ...] = ()
    happenings: tuple[Happening, ...] = ()
    """The last ones, newest first."""
    counts: dict[str, int] = {}
    is_over: bool = False


class MapSource(Protocol):
    """What a map page asks."""

    title: str

    def ground(self) -> Ground:
        """Called once for each page."""

    def picture(self) -> Picture:
        """Called some times per second while a page is open."""


PICTURE_MS = 400
"""Between two looks for something new."""
_BODY_BYTES = 64 * 1024


_STATIC = Path(__file__).parent / "static"
_SERVED = {"map.js": "text/javascript", "map.css": "text/css"}


@cache
def _page() -> Template:
    loader = ChoiceLoader([FileSystemLoader(_STATIC), PackageLoader("rapport.web", "static")])
    return Environment(loader=loader, autoescape=True).get_template("map.html")


class MapPage:
    """A page of its own, without a node."""

    def __init__(self, source: MapSource, clock: Clock, *, port: int = 0) -> None:
        self.source, self.clock = source, clock
        self.settings = NodeSettings(port=port, max_body_bytes=_BODY_BYTES)
        self.closing = asyncio.Event()

    def app(self) -> Litestar:
        """The application of the page."""
        check_exposure(self.settings, "")
        source = self.source

        @get("/")
        async def page() -> Response[str]:
            """The page; its data come from the other endpoints."""
            text = _page().render(title=source.title)
            return Response(text, media_type="text/html")

        @get("/static/{name:str}")
        async def static(name: FromPath[str]) -> Response[bytes]:
            """Style and script of the page."""
            media_type = _SERVED.get(name)
            if media_type is None:
                body, media_type = static_file(name)
            else:
                body = (_STATIC / name).read_bytes()
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
            guards=[RequestGuard(self.settings, OPEN_TO_ALL, self.clock)],
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
        """Ends when the page closes; a slow reader misses pictures, never the newest."""
        yield f"retry: {RETRY_MS}\n\n".encode()
        last, silent_ms = b"", 0
        while not self.closing.is_set():
            block = sse_event("picture", self.source.picture())
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
    async with serve_app(page.app(), page) as url:
        yield url
