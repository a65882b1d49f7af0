"""Changes of the site's files: what one would do, making it, the changes so far, undoing. [CN-14]

Policies, interpretations and tables need the role of an editor; the site file, which may contain
addresses, needs the right to change the node. In a read-only site a change is answered with the
patch to apply where the site's files are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from litestar import Response, get, put
from litestar.params import FromPath, FromQuery

from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.node.node import Node
from rapport.node.site_changes import ProposedChange, SiteChange, WrittenChange
from rapport.site.visible_files import SITE_FILE
from rapport.web.api.site import visible_problems
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    post,
    require_admin,
    require_role,
)
from rapport.web.endpoint_docs import EXAMPLE_POLICY, JSON, TEXT, Members, documented

PATCH = "text/x-patch"
_TEXT: dict[str, type[msgspec.Struct] | Members] = {"text/plain": TEXT}


class SiteChangeList(msgspec.Struct, frozen=True):
    """The newest changes, newest first; differences of the site file for administrators only."""

    changes: list[SiteChange]


@post(
    "/site/files/change",
    opt=documented(bodies=_TEXT, example=EXAMPLE_POLICY, answer=ProposedChange),
)
async def propose_change(
    request: HttpRequest, node: NodeDependency, name: FromQuery[str], expects: FromQuery[str] = ""
) -> Reply:
    """The difference that the text in the body makes to a file, and what the check says of the site
    with it; nothing is changed. `expects` as for saving it.
    """
    identity = _require(request, node, name)
    found = await node.site_changes.propose(name, await _text(request), expects=expects)
    problems = _shown(found.problems, node, identity)
    return json_response(msgspec.structs.replace(found, problems=problems))


@put(
    "/site/files/text",
    opt=documented(
        bodies=_TEXT,
        example=EXAMPLE_POLICY,
        answer=WrittenChange,
        media=(JSON, PATCH),
        statuses=("200", "202"),
    ),
)
async def change_file(
    request: HttpRequest, node: NodeDependency, name: FromQuery[str], expects: FromQuery[str] = ""
) -> Reply:
    """Gives a file the text in the body, or makes a new policy or interpretation, and reloads. All
    is as before if the check or the reload refuses it. `expects` is the digest of the text that it
    is based on, empty for a new file: another one is refused with the difference (409). A read-only
    site answers 202 with the patch and changes nothing.
    """
    identity = _require(request, node, name)
    text = await _text(request)
    with _shown_errors(node, identity):
        done = await node.site_changes.apply(name, text, expects=expects, by=identity)
    return _answer(done)


@get("/site/changes", opt=documented(answer=SiteChangeList))
async def list_changes(request: HttpRequest, node: NodeDependency) -> Reply:
    """Who changed which file of the site when, with the difference; the newest hundred."""
    identity = require_role(request, node, "editor")
    found = await node.site_changes.changes()
    if not node.rights.allows_admin(identity):
        found = [
            msgspec.structs.replace(one, difference="", may_undo=False)
            if one.file == SITE_FILE
            else one
            for one in found
        ]
    return json_response(SiteChangeList(found))


@post(
    "/site/changes/{change:str}/undo",
    opt=documented(answer=WrittenChange, media=(JSON, PATCH), statuses=("200", "202")),
)
async def undo_change(request: HttpRequest, change: FromPath[str], node: NodeDependency) -> Reply:
    """Gives a file the content from before its last change and reloads; refused (409) when somebody
    changed the file since. A read-only site answers 202 with the patch.
    """
    identity = require_role(request, node, "editor")
    _require(request, node, await node.site_changes.file_of(change))
    with _shown_errors(node, identity):
        done = await node.site_changes.undo(change, by=identity)
    return _answer(done)


def _require(request: HttpRequest, node: Node, name: str) -> str:
    if name == SITE_FILE:
        return require_admin(request, node)
    return require_role(request, node, "editor")


def _answer(done: WrittenChange) -> Reply:
    if done.is_written:
        return json_response(done)
    return Response(
        done.difference.encode(),
        media_type=PATCH,
        status_code=202,
        headers={"Content-Disposition": 'attachment; filename="site.patch"'},
    )


@contextmanager
def _shown_errors(node: Node, identity: str) -> Iterator[None]:
    try:
        yield
    except SiteError as error:
        raise SiteError(_shown(error.problems, node, identity)) from None


def _shown(problems: Sequence[Problem], node: Node, identity: str) -> list[Problem]:
    return visible_problems(problems, is_admin=node.rights.allows_admin(identity))


async def _text(request: HttpRequest) -> str:
    try:
        return (await request.body()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the file is not UTF-8 text: {error.reason}",
            code="site.not_text",
            hint="send it as text/plain in UTF-8",
        ) from None
