"""The plain page of what happens, and the figures it shows. [UX-6]"""

from __future__ import annotations

import msgspec
from litestar import Response, get
from litestar.params import FromPath

from rapport.node.overview import overview as make_overview
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN
from rapport.web.pages import render, static_file


@get("/", opt={OPEN: True})
async def home(node: NodeDependency) -> Response[str]:
    """The page; what it shows comes from /overview, so it carries no data itself."""
    page = render("home.html", title=node.site.name)
    return Response(page, media_type="text/html")


@get("/static/{name:str}", opt={OPEN: True})
async def static(name: FromPath[str]) -> Response[bytes]:
    """Style and script of the page."""
    body, media_type = static_file(name)
    return Response(body, media_type=media_type)


@get("/overview")
async def overview(node: NodeDependency) -> Response[bytes]:
    """Counts per channel, the last detections, deliveries and quarantined readings."""
    return Response(msgspec.json.encode(await make_overview(node)), media_type="application/json")
