"""Service manners: alive, ready, metrics. [UX-5]"""

from __future__ import annotations

import msgspec
from litestar import Response, get
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rapport.kernel.node_identity import NodeIdentity
from rapport.node.metrics import metrics_text
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN
from rapport.web.headers import text_type


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
    with a fault is `degraded`: 200, with the reason and the conditions behind it.
    """
    if reasons := node.not_ready():
        return Response({"status": "not ready", "reasons": reasons}, status_code=503)
    conditions = node.conditions.current()
    if not conditions:
        return Response({"status": "ready", "reasons": []}, status_code=200)
    body: dict[str, object] = {
        "status": "degraded",
        "reasons": [one.reason for one in conditions],
        "conditions": [msgspec.structs.asdict(one) for one in conditions],
    }
    return Response(body, status_code=200)


@get("/metrics")
async def metrics(node: NodeDependency) -> Response[bytes]:
    """Prometheus text."""
    return Response(metrics_text(node), media_type=text_type(CONTENT_TYPE_LATEST))
