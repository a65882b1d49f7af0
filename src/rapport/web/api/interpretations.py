"""Interpretations and quarantine: list, check and change; inspect, release and mediate again.
[ME-6, ME-7, ME-8, ME-12, ME-11, ME-16]

Reading interpretations needs any right at this node, reading quarantined events the right to read
`quarantine`; changes need the role of an editor, releasing that of an operator. A change is JSON
(see `mediation/interpretations/change_requests.py`) or a file of declarations in TOML, YAML or XML;
the content type selects the form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from litestar import Response, get
from litestar.params import FromPath, FromQuery

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.json_objects import ObjectDecoder
from rapport.core.release import ReleaseRequest
from rapport.core.times import parse_time
from rapport.mediation.declarations.placed_values import FileKind
from rapport.mediation.interpretations.change_log import read_version
from rapport.mediation.interpretations.change_requests import (
    ChangeRequest,
    FileAction,
    request_from_file,
    request_from_json,
)
from rapport.mediation.interpretations.change_state import ChangeResult
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.interpretations.views import (
    ChangeView,
    InterpretationOverview,
    change_view,
    interpretation_view,
    overview,
    split_path,
    transformer_text,
)
from rapport.mediation.outgoing.client_mediator import export_interpretations
from rapport.mediation.quarantine.index import QuarantineFilter, group_quarantined
from rapport.node.node import Node
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    post,
    require_admin,
    require_any_right,
    require_role,
    require_unfiltered,
)
from rapport.web.endpoint_docs import CHANGE_BODIES, JSON, documented
from rapport.web.schemas import reference

KINDS: dict[str, FileKind] = {
    "application/toml": "toml",
    "text/x-toml": "toml",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "application/xml": "xml",
    "text/xml": "xml",
}
"""Content types of files of declarations."""
JSON_TYPES = ("", "application/json")

_CHANGE = documented(
    bodies=CHANGE_BODIES,
    example={"changes": [{"type": "remove", "name": "us"}]},
    answer=ChangeResult,
)
HowGiven = FromQuery[Literal["declare", "augment", "replace"]]


@get("/interpretations", opt=documented(answer=InterpretationOverview))
async def list_interpretations(request: HttpRequest, node: NodeDependency) -> Reply:
    """All interpretations in force with parents and versions, and those that are refused."""
    require_any_right(request, node, "interpretations")
    updating = node.meanings.updating
    outcomes = [outcome for _, outcome in updating.history()]
    return json_response(await updating.inspect(lambda standing: overview(standing, outcomes)))


@get(
    "/interpretations/changes",
    opt=documented(answer={"type": "array", "items": reference(ChangeView)}),
)
async def list_changes(request: HttpRequest, node: NodeDependency) -> Reply:
    """The history of changes, oldest first, with what became of each."""
    require_any_right(request, node, "interpretations")
    return json_response([change_view(*each) for each in node.meanings.updating.history()])


@get("/interpretations/spoken")
async def spoken(request: HttpRequest, node: NodeDependency) -> Reply:
    """The interpretations in force, for clients that mediate themselves."""
    require_any_right(request, node, "interpretations")
    body = await node.meanings.updating.inspect(
        lambda standing: export_interpretations(standing.in_force)
    )
    return Response(body, media_type="application/json")


@get(
    "/interpretations/{interpretation:path}",
    opt=documented(media=(JSON, "text/x-python; charset=utf-8")),
)
async def show_interpretation(
    request: HttpRequest,
    interpretation: FromPath[str],
    node: NodeDependency,
    direction: FromQuery[Literal["in", "out"]] = "in",
) -> Response[Any]:
    """One by its name, with what it inherits; by `NAME@VERSION` as it was; with
    `/transformers/TYPE` the generated Python.
    """
    require_any_right(request, node, "interpretations")
    request_made = interpretation.strip("/")
    if "@" in request_made and "/transformers/" not in request_made:
        return json_response(await read_version(node.channels, request_made[:200]))

    def find(in_force: ActiveInterpretations) -> Any:
        name, type_name = split_path(request_made, [*in_force.stamps, *in_force.refused])
        if type_name is None:
            return interpretation_view(in_force, name)
        return transformer_text(in_force, name, type_name, direction)

    found = await node.meanings.updating.inspect(lambda standing: find(standing.in_force))
    if isinstance(found, str):
        return Response(found, media_type="text/x-python")
    return json_response(found)


@post("/interpretations/changes", opt=_CHANGE)
async def change(
    request: HttpRequest, node: NodeDependency, how: HowGiven = "declare", old: FromQuery[str] = ""
) -> Reply:
    """Changes interpretations, all or nothing; answers when it is on record and in force."""
    identity = require_role(request, node, "editor")
    want = await _change_request(request, how, old)
    return json_response(await node.meanings.updating.change(want, by=identity))


@post("/interpretations/check", opt=_CHANGE)
async def check(
    request: HttpRequest, node: NodeDependency, how: HowGiven = "declare", old: FromQuery[str] = ""
) -> Reply:
    """Reports the effects of a change without making it. Costs as much as the change."""
    require_role(request, node, "editor")
    return json_response(
        await node.meanings.updating.try_out(await _change_request(request, how, old))
    )


async def _change_request(
    request: HttpRequest, how: FileAction, old: str
) -> Callable[[ActiveInterpretations], ChangeRequest]:
    """What the body asks for; files are read beside the loop, when it is known what is in force."""
    body = await request.body()
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media in JSON_TYPES:
        wanted = request_from_json(body)
        return lambda _: wanted
    kind = KINDS.get(media)
    if kind is None:
        raise InvalidInput(
            f"{media[:60]!r} is no form of a change",
            code="change.unknown_form",
            hint=f"application/json, or a file: {', '.join(KINDS)}",
        )
    return lambda in_force: request_from_file("body", body, kind, in_force, how=how, old=old)


class ReleaseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is posted to have something released; what is left out fits any."""

    source: str = ""
    reason: str = ""
    ids: tuple[str, ...] = ()
    since_ms: int = 0
    dry_run: bool = False


class RemediationBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is posted to have raw events mediated again that were received in a time."""

    source: str
    since_ms: int = 0
    until_ms: int = 2**62
    dry_run: bool = False


_FAULT, _CODE = "this cannot be understood", "request.not_a_request"
_READ_RELEASE = ObjectDecoder(ReleaseBody, fault=_FAULT, code=_CODE)
_READ_AGAIN = ObjectDecoder(RemediationBody, fault=_FAULT, code=_CODE)


@get("/quarantine")
async def list_held(
    request: HttpRequest,
    node: NodeDependency,
    source: FromQuery[str] = "",
    reason: FromQuery[str] = "",
    since: FromQuery[str] = "",
) -> Reply:
    """Quarantined events by source and reason, and the released ones by source."""
    require_unfiltered(request, node, "quarantine")
    held_back = node.releasing.index
    await held_back.refresh()
    since_ms = parse_time(since) if since else 0
    wanted = QuarantineFilter(source=source, reason=reason, since_ms=since_ms)
    groups = await group_quarantined(node.channels, held_back, wanted)
    return json_response({"held": groups, "released": held_back.released()})


@get("/quarantine/{held:str}")
async def show_held(request: HttpRequest, held: FromPath[str], node: NodeDependency) -> Reply:
    """The state of one quarantined event."""
    require_unfiltered(request, node, "quarantine")
    await node.releasing.index.refresh()
    found = node.releasing.index.one(held)
    if found is None:
        raise UnknownName("quarantined event", held)
    return json_response(found)


@post(
    "/quarantine/release",
    opt=documented(bodies={JSON: ReleaseBody}, example={"source": "readers", "dry_run": True}),
)
async def release(request: HttpRequest, node: NodeDependency) -> Reply:
    """Releases quarantined events: mediates them by the interpretations in force now."""
    identity = require_role(request, node, "operator")
    wanted = _READ_RELEASE.decode(await request.body())
    request_made = ReleaseRequest(
        source=wanted.source,
        reason=wanted.reason,
        ids=wanted.ids,
        since_ms=wanted.since_ms,
        by=identity,
    )
    return await _start_release(node, request_made, wanted.dry_run)


@get("/quarantine/releases/{id:str}")
async def show_release(request: HttpRequest, id: FromPath[str], node: NodeDependency) -> Reply:
    """Progress of a release, and the results of the policies' re-evaluation."""
    require_unfiltered(request, node, "quarantine")
    return json_response(await node.releasing.state(id))


@post(
    "/interpretations/again",
    opt=documented(bodies={JSON: RemediationBody}, example={"source": "readers", "dry_run": True}),
)
async def again(request: HttpRequest, node: NodeDependency) -> Reply:
    """Mediates raw events of a source again; differing readings are corrected."""
    identity = require_role(request, node, "operator")
    wanted = _READ_AGAIN.decode(await request.body())
    request_made = ReleaseRequest(
        what="again",
        source=wanted.source,
        since_ms=wanted.since_ms,
        until_ms=wanted.until_ms,
        by=identity,
    )
    return await _start_release(node, request_made, wanted.dry_run)


@post("/interpretations/reload")
async def reload(request: HttpRequest, node: NodeDependency) -> Reply:
    """Takes the interpretations from the site's files; a fault leaves everything as it was."""
    require_admin(request, node)
    return json_response(await node.meanings.reload())


async def _start_release(node: Node, request_made: ReleaseRequest, dry_run: bool) -> Reply:
    if dry_run:
        return json_response(await node.releasing.try_out(request_made))
    return json_response({"release": await node.releasing.request(request_made)})
