"""The plain page of what happens, and the figures it shows. [UX-6]"""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.params import FromPath

from rapport.node.node import Node
from rapport.node.overview import Overview
from rapport.node.overview import overview as make_overview
from rapport.web.callers import identity_of
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN
from rapport.web.pages import render, static_file
from rapport.web.query_parameters import ANY_QUERY


@get("/", opt={OPEN: True, ANY_QUERY: True})
async def home(node: NodeDependency) -> Response[str]:
    """The page; what it shows comes from /overview, so it carries no data itself."""
    page = render("home.html", title=escape(node.site.name))
    return Response(page, media_type="text/html")


@get("/static/{name:str}", opt={OPEN: True, ANY_QUERY: True})
async def static(name: FromPath[str]) -> Response[bytes]:
    """Style and script of the page."""
    body, media_type = static_file(name)
    return Response(body, media_type=media_type)


@get("/overview")
async def overview(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Counts per channel, the last detections, deliveries and quarantined readings: of what the
    caller may read.
    """
    seen = _readable(await make_overview(node), node, identity_of(request))
    return Response(msgspec.json.encode(seen), media_type="application/json")


def _readable(whole: Overview, node: Node, identity: str) -> Overview:
    """Without what the caller may not read, or would see only through interceptors."""
    rights, is_admin = node.rights, node.rights.allows_admin(identity)

    def may_read(channel: str) -> bool:
        is_whole = is_admin or not node.channels.may_hide(channel)
        return is_whole and rights.allows(identity, "subscribe", channel)

    named = [one for one in whole.channels if rights.allows(identity, "subscribe", one.name)]
    return Overview(
        channels=named,
        detections=whole.detections if may_read("detections") else [],
        deliveries=whole.deliveries if may_read("log") else [],
        quarantine=whole.quarantine if may_read("quarantine") else [],
        held=whole.held if may_read("quarantine") else [],
        policies=whole.policies if may_read("policies") else [],
        policies_in_all=whole.policies_in_all if may_read("policies") else 0,
        conditions=whole.conditions,
    )
