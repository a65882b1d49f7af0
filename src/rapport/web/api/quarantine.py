"""The doors for what is held back: look at it, mend, release, mediate again. [ME-11, ME-16]

Looking needs the right to read `quarantine`; everything else the right to change the node.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery

from rapport.core.errors import UnknownName
from rapport.core.json_objects import ObjectDecoder
from rapport.core.release import ReleaseRequest
from rapport.core.times import parse_time
from rapport.mediation.quarantine.index import QuarantineFilter, group_quarantined
from rapport.node.node import Node
from rapport.web.callers import allow_admin, allow_whole
from rapport.web.dependencies import NodeDependency


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is posted to have something released; what is left out fits any."""

    source: str = ""
    reason: str = ""
    ids: tuple[str, ...] = ()
    since_ms: int = 0
    dry_run: bool = False


class Again(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is posted to have raw events mediated again that were received in a time."""

    source: str
    since_ms: int = 0
    until_ms: int = 2**62
    dry_run: bool = False


_FAULT, _CODE = "this cannot be understood", "request.not_a_request"
_READ_RELEASE = ObjectDecoder(Release, fault=_FAULT, code=_CODE)
_READ_AGAIN = ObjectDecoder(Again, fault=_FAULT, code=_CODE)


@get("/quarantine")
async def list_held(
    request: Request[Any, Any, Any],
    node: NodeDependency,
    source: FromQuery[str] = "",
    reason: FromQuery[str] = "",
    since: FromQuery[str] = "",
) -> Response[bytes]:
    """What is held back by source and reason, and how many were released of each source."""
    allow_whole(request, node, "quarantine")
    held_back = node.releasing.index
    await held_back.refresh()
    since_ms = parse_time(since) if since else 0
    wanted = QuarantineFilter(source=source, reason=reason, since_ms=since_ms)
    groups = await group_quarantined(node.channels, held_back, wanted)
    return _json({"held": groups, "released": held_back.released()})


@get("/quarantine/{held:str}")
async def show_held(
    request: Request[Any, Any, Any], held: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """What became of one event that was held back."""
    allow_whole(request, node, "quarantine")
    await node.releasing.index.refresh()
    found = node.releasing.index.one(held)
    if found is None:
        raise UnknownName("event that was held back", held)
    return _json(found)


@post("/quarantine/release", status_code=200)
async def release(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Has held events mediated by what is in force now; answers when that is certain to happen."""
    identity = allow_admin(request, node)
    wanted = _READ_RELEASE.decode(await request.body())
    asked = ReleaseRequest(
        source=wanted.source,
        reason=wanted.reason,
        ids=wanted.ids,
        since_ms=wanted.since_ms,
        by=identity,
    )
    return await _ask(node, asked, wanted.dry_run)


@get("/quarantine/releases/{id:str}")
async def show_release(
    request: Request[Any, Any, Any], id: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """How far a release has come, and what the policies' second look found."""
    allow_whole(request, node, "quarantine")
    return _json(await node.releasing.state(id))


@post("/interpretations/again", status_code=200)
async def again(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Has raw events of a source mediated again; readings that differ are corrected."""
    identity = allow_admin(request, node)
    wanted = _READ_AGAIN.decode(await request.body())
    asked = ReleaseRequest(
        what="again",
        source=wanted.source,
        since_ms=wanted.since_ms,
        until_ms=wanted.until_ms,
        by=identity,
    )
    return await _ask(node, asked, wanted.dry_run)


@post("/interpretations/reload", status_code=200)
async def reload(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Takes the interpretations from the site's files; a fault leaves everything as it was."""
    allow_admin(request, node)
    return _json(await node.meanings.reload())


async def _ask(node: Node, asked: ReleaseRequest, dry_run: bool) -> Response[bytes]:
    if dry_run:
        return _json(await node.releasing.try_out(asked))
    return _json({"release": await node.releasing.request(asked)})


def _json(value: object) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
