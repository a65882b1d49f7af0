"""Service manners: alive, ready, metrics. [UX-5]"""

from __future__ import annotations

from litestar import Response, get
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rapport.kernel.telemetry import REGISTRY
from rapport.node.node import Node
from rapport.web.guard import OPEN


@get("/healthz", opt={OPEN: True})
async def healthz() -> dict[str, str]:
    """The process runs."""
    return {"status": "alive"}


@get("/readyz", opt={OPEN: True})
async def readyz(node: Node) -> Response[dict[str, object]]:
    """The node takes events and its readers run; 503 with the reason otherwise."""
    reasons = node.not_ready()
    body: dict[str, object] = {
        "status": "ready" if not reasons else "not ready",
        "reasons": reasons,
    }
    return Response(body, status_code=200 if not reasons else 503)


@get("/metrics")
async def metrics(node: Node) -> Response[bytes]:
    """Prometheus text."""
    node.refresh_metrics()
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
