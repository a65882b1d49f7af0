"""The door for the site's files: a running node takes over what they say now. [UX-2, PO-9]

Needs the right to change the node.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, post

from rapport.web.callers import allow_admin
from rapport.web.dependencies import NodeDependency


@post("/reload", status_code=200)
async def reload_site(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Takes people, actions, sources, interpretations, tables, ontology and policies from the
    site's files, all or nothing; refused with every problem at its place, also with what needs a
    restart.
    """
    identity = allow_admin(request, node)
    done = await node.reload(by=identity)
    return Response(msgspec.json.encode(done), media_type="application/json")
