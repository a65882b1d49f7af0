"""The doors for explaining policies: why one fired, why one did not. [PO-11]

Both need the right to read what they show: `events`, `detections`, `quarantine`; raw data are left
out where the caller may not read the raw channel.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.causes import cause_tree
from rapport.channel.id_prefix import whole_id
from rapport.core.detection import DETECTED, UNDECIDED, Detection
from rapport.core.errors import InvalidInput
from rapport.core.times import parse_duration, parse_time
from rapport.node.node import Node
from rapport.policy.explaining.asking import Asking
from rapport.policy.explaining.why_not import Question, given_in
from rapport.site.explaining import asking_of
from rapport.web.callers import allow_whole, identity_of
from rapport.web.dependencies import NodeDependency

_SHOWN = ("events", "detections", "quarantine")


@get("/policies/{policy:str}/why-not")
async def why_not(
    request: Request[Any, Any, Any],
    policy: FromPath[str],
    node: NodeDependency,
    at: FromQuery[str] = "",
    who: Annotated[list[str] | None, QueryParameter()] = None,
    window: FromQuery[str] = "",
) -> Response[bytes]:
    """How a policy stood around a time (else: now), for `who` (ALIAS=ID, several) or whoever came
    nearest: each condition true, false or unknown, and the smallest change that would have been
    enough.
    """
    asking = await _asking(request, node)
    question = Question(
        at=parse_time(at) if at else node.clock.now_ms(),
        given=given_in(who or ()),
        within_ms=parse_duration(window) if window else None,
    )
    return _json(await asking.why_not(policy, question))


@get("/explain/{event_id:str}/why")
async def why(
    request: Request[Any, Any, Any], event_id: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """The conditions behind a detection, with readings and raw values; its id or the beginning."""
    asking = await _asking(request, node)
    tree = await cause_tree(node.channels, await whole_id(node.channels, event_id))
    if tree.type not in (DETECTED, UNDECIDED):
        raise InvalidInput(
            f"{event_id!r} is no detection but {tree.type}",
            code="explain.no_detection",
            hint="GET /explain/{id} shows what any event follows from",
        )
    return _json(await asking.why(msgspec.json.decode(tree.data, type=Detection)))


async def _asking(request: Request[Any, Any, Any], node: Node) -> Asking:
    for channel in _SHOWN:
        allow_whole(request, node, channel)
    identity = identity_of(request)

    def may_read(channel: str) -> bool:
        return node.rights.allows(identity, "subscribe", channel) and (
            node.rights.allows_admin(identity) or not node.channels.may_hide(channel)
        )

    site = msgspec.structs.replace(node.site, ontology=node.policy.ontology)
    return await asyncio.to_thread(asking_of, site, node.channels, may_read=may_read)


def _json(value: object) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
