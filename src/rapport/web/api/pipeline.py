"""The door for what the data pipeline found: channels that otherwise only the node appends to.
[PI-2, CH-15]
"""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.params import FromPath

from rapport.core.errors import NotAllowed
from rapport.web.callers import allow_admin
from rapport.web.dependencies import NodeDependency
from rapport.web.publishing import append_events, read_cloudevents

_TAKEN_IN = ("detections", "quarantine", "pipeline")
"""What policies on Spark append just as the node's own engine does, and what the pipeline tells of
itself."""


@post("/pipeline/channels/{name:str}/events", status_code=200)
async def take_results(
    request: Request[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Appends a JSON array of CloudEvents that the pipeline made, all or none, each once; for who
    may change the node.
    """
    identity = allow_admin(request, node)
    if name not in _TAKEN_IN:
        raise NotAllowed(
            f"channel {name!r} takes in no results of the pipeline",
            code="channel.reserved",
            hint=f"those that do: {', '.join(_TAKEN_IN)}; or publish to /channels/{name}/events",
        )
    events = read_cloudevents(request.headers, await request.body(), node.clock.now_ms())
    answer = await append_events(node, name, events, identity=identity)
    return Response(answer, media_type="application/json")
