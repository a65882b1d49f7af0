"""Service endpoints: health, readiness, metrics, reload of the site, and the overview page. [UX-5,
UX-2, PO-9, UX-6]
"""

from __future__ import annotations

import msgspec
from litestar import Response, get
from litestar.params import FromPath, FromQuery
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rapport.kernel.node_identity import NodeIdentity
from rapport.node.metrics import metrics_text
from rapport.node.node import Node
from rapport.node.overview import Overview
from rapport.node.overview import overview as make_overview
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    identity_of,
    json_response,
    post,
    require_admin,
)
from rapport.web.endpoint_docs import PROMETHEUS_TEXT, TEXT, documented
from rapport.web.inbox_page import AppManifest, app_manifest
from rapport.web.page_texts import browser_language
from rapport.web.pages import SERVICE_WORKER, static_file
from rapport.web.security import OPEN, text_type


@get("/healthz", opt={OPEN: True})
async def healthz() -> dict[str, str]:
    """The process runs."""
    return {"status": "alive"}


@get("/identity", opt={OPEN: True})
async def identity(node: NodeDependency) -> NodeIdentity:
    """Which node of which site answers here, so that a command meant for another does nothing."""
    return node.identity


@get("/readyz", opt={OPEN: True})
async def readyz(node: NodeDependency) -> Response[dict[str, object]]:
    """The node takes events and its readers run; 503 with the reason otherwise. A node that works
    with a fault is `degraded`: 200. The conditions behind the reasons come with both.
    """
    conditions = node.conditions.current()
    failing = node.not_ready()
    body: dict[str, object] = {
        "status": "not ready" if failing else "degraded" if conditions else "ready",
        "reasons": [*failing, *(one.reason for one in conditions)],
    }
    if conditions:
        body["conditions"] = [msgspec.structs.asdict(one) for one in conditions]
    return Response(body, status_code=503 if failing else 200)


@get("/metrics", opt=documented(answer=TEXT, media=(PROMETHEUS_TEXT,)))
async def metrics(node: NodeDependency) -> Reply:
    """Prometheus text."""
    return Response(metrics_text(node), media_type=text_type(CONTENT_TYPE_LATEST))


@post("/reload")
async def reload_site(request: HttpRequest, node: NodeDependency) -> Reply:
    """Takes people, actions, sources, interpretations, tables, ontology and policies from the
    site's files, all or nothing; refused with every problem at its place, also with what needs a
    restart.
    """
    identity = require_admin(request, node)
    done = await node.reload(by=identity)
    return json_response(done)


@get(
    "/static/{name:str}",
    opt=documented(
        answer=TEXT,
        media=(
            "text/css; charset=utf-8",
            "text/javascript; charset=utf-8",
            "text/html; charset=utf-8",
            "image/png",
        ),
        is_open=True,
        any_query=True,
    ),
)
async def static(name: FromPath[str]) -> Reply:
    """Style, scripts and icons of the pages of people: inboxes and answers."""
    body, media_type = static_file(name)
    # The script lies here, but serves the inboxes.
    headers = {"Service-Worker-Allowed": "/inbox"} if name == SERVICE_WORKER else {}
    return Response(body, media_type=media_type, headers=headers)


@get(
    "/static/inbox.webmanifest",
    opt=documented(
        answer=AppManifest, media=("application/manifest+json",), is_open=True, any_query=True
    ),
)
async def inbox_manifest(request: HttpRequest, start: FromQuery[str] = "") -> Reply:
    """What a phone needs to install an inbox; `start` is the inbox that the app opens."""
    language = browser_language(request.headers.get("accept-language", ""))
    body = msgspec.json.encode(app_manifest(start, language))
    return Response(body, media_type="application/manifest+json")


@get("/overview", opt=documented(answer=Overview))
async def overview(request: HttpRequest, node: NodeDependency) -> Reply:
    """Counts per channel, the last detections, deliveries and quarantined readings: of what the
    caller may read.
    """
    seen = _readable(await make_overview(node), node, identity_of(request))
    return json_response(seen)


_BEHIND = {"quarantine": "quarantine", "delivery": "log", "source": "events", "late": "events"}
"""The channel that a fault shows something of; others show the node itself."""


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
        troubles=[one for one in whole.troubles if may_read(_BEHIND.get(one.kind, "policies"))],
        open=whole.open if may_read("detections") else [],
        situations=whole.situations if may_read("detections") else [],
        notified=whole.notified if may_read("log") else [],
    )
