"""The door to the node's part in ensembles: how it is. [EN-10, EN-14]"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get

from rapport.core.errors import RapportError
from rapport.web.callers import allow_admin
from rapport.web.dependencies import NodeDependency


class NoEnsembleHere(RapportError):
    """The site has no `[ensemble]`."""

    code = "ensemble.not_here"
    status = 404


@get("/ensemble")
async def ensemble_status(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """How the ensemble node is: components, members, what came of the site's ties, interpretations
    that are shared.
    """
    allow_admin(request, node)
    if node.ensemble is None:
        raise NoEnsembleHere(
            "the site takes part in no ensembles",
            hint='add [ensemble] with listen = "127.0.0.1:7511"',
        )
    return Response(msgspec.json.encode(node.ensemble.status()), media_type="application/json")
