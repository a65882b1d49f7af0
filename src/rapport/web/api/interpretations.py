"""The doors for interpretations: look at them, check a change, make it. [ME-6, ME-7, ME-8, ME-12]

Looking needs any right at this node; changing, and trying what a change would do, the right to
change it. A change is JSON (see `mediation/interpretations/change_requests.py`) or a file of
declarations in TOML, YAML or XML, told by its content type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery

from rapport.channel.access.rights import Grant
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.mediation.declarations.placed_values import FileKind
from rapport.mediation.interpretations.change_log import read_version
from rapport.mediation.interpretations.change_requests import (
    ChangeRequest,
    FileAction,
    request_from_file,
    request_from_json,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.interpretations.views import (
    change_view,
    interpretation_view,
    overview,
    split_path,
    transformer_text,
)
from rapport.mediation.outgoing.client_mediator import export_interpretations
from rapport.node.node import Node
from rapport.web.callers import allow_admin, identity_of
from rapport.web.dependencies import NodeDependency

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

HowGiven = FromQuery[Literal["declare", "augment", "replace"]]


@get("/interpretations")
async def list_interpretations(
    request: Request[Any, Any, Any], node: NodeDependency
) -> Response[bytes]:
    """All interpretations in force with parents and versions, and those that are refused."""
    _allow_looking(request, node)
    updating = node.meanings.updating
    outcomes = [outcome for _, outcome in updating.history()]
    return _json(await updating.inspect(lambda standing: overview(standing, outcomes)))


@get("/interpretations/changes")
async def list_changes(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """The history of changes, oldest first, with what became of each."""
    _allow_looking(request, node)
    return _json([change_view(*each) for each in node.meanings.updating.history()])


@get("/interpretations/spoken")
async def spoken(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Everything that a client needs to mediate at its own edge."""
    _allow_looking(request, node)
    body = await node.meanings.updating.inspect(
        lambda standing: export_interpretations(standing.in_force)
    )
    return Response(body, media_type="application/json")


@get("/interpretations/{interpretation:path}")
async def show_interpretation(
    request: Request[Any, Any, Any],
    interpretation: FromPath[str],
    node: NodeDependency,
    direction: FromQuery[Literal["in", "out"]] = "in",
) -> Response[Any]:
    """One by its name, with what it inherits; by `NAME@VERSION` as it was; with
    `/transformers/TYPE` the generated Python.
    """
    _allow_looking(request, node)
    asked = interpretation.strip("/")
    if "@" in asked and "/transformers/" not in asked:
        return _json(await read_version(node.channels, asked[:200]))

    def find(in_force: ActiveInterpretations) -> Any:
        name, type_name = split_path(asked, [*in_force.stamps, *in_force.refused])
        if type_name is None:
            return interpretation_view(in_force, name)
        return transformer_text(in_force, name, type_name, direction)

    found = await node.meanings.updating.inspect(lambda standing: find(standing.in_force))
    if isinstance(found, str):
        return Response(found, media_type="text/x-python")
    return _json(found)


@post("/interpretations/changes", status_code=200)
async def change(
    request: Request[Any, Any, Any],
    node: NodeDependency,
    how: HowGiven = "declare",
    old: FromQuery[str] = "",
) -> Response[bytes]:
    """Changes interpretations, all or nothing; answers when it is on record and in force."""
    identity = allow_admin(request, node)
    want = await _wanted(request, how, old)
    return _json(await node.meanings.updating.change(want, by=identity))


@post("/interpretations/check", status_code=200)
async def check(
    request: Request[Any, Any, Any],
    node: NodeDependency,
    how: HowGiven = "declare",
    old: FromQuery[str] = "",
) -> Response[bytes]:
    """What a change would do; nothing is changed. Costs as much as the change."""
    allow_admin(request, node)
    return _json(await node.meanings.updating.try_out(await _wanted(request, how, old)))


async def _wanted(
    request: Request[Any, Any, Any], how: FileAction, old: str
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


def _allow_looking(request: Request[Any, Any, Any], node: Node) -> None:
    """Raises NotAllowed for who has no right at all, TooFast for who looks too often."""
    identity = identity_of(request)
    if node.rights.grants().get(identity, Grant()) == Grant():
        raise NotAllowed(
            f"{identity!r} may not look at interpretations",
            code="access.no_right",
            hint="the site's [access] gives rights: any of them is enough",
        )
    node.admission.rates.charge(identity, 1, node.clock.now_ms())


def _json(value: object) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
