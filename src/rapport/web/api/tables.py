"""The doors for tables: how fresh they are, and asking a source now. [PO-2]

Both need the right to change the node: a status may say why a source refused us.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath

from rapport.web.callers import allow_admin
from rapport.web.dependencies import NodeDependency


@get("/tables")
async def list_tables(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Every table with its rows and age, and why its source failed last."""
    allow_admin(request, node)
    return _json(node.fresh_tables.status())


@post("/tables/{table:str}/refresh", status_code=200)
async def refresh_table(
    request: Request[Any, Any, Any], table: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Asks a source now; a failure leaves its rows as they are."""
    allow_admin(request, node)
    return _json({"changed": await node.fresh_tables.refreshing.refresh(table)})


def _json(value: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
