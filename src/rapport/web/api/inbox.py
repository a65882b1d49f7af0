"""The doors of the inbox: a plain page where a person reads and answers. [CO-16, CO-11]

Every post is answered by a redirect, so that loading a page again repeats nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, WebSocket, get, post, websocket
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.communication.arriving.inbox_links import LONGEST_DAYS
from rapport.communication.arriving.link_names import name_from_link
from rapport.communication.aside import run_aside
from rapport.core.errors import (
    NotAllowed,
    NotAuthenticated,
    RapportError,
    TooFast,
    UnknownName,
)
from rapport.core.message import Identifier
from rapport.core.times import format_time
from rapport.web.api.sessions import origin_of
from rapport.web.callers import allow_admin
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN
from rapport.web.inbox.access import Inboxes, answer_text, read_form, session_cookie
from rapport.web.inbox.page import inbox_page, inbox_path, login_page
from rapport.web.inbox.socket import InboxSocket
from rapport.web.live.socket import Live
from rapport.web.query_parameters import ANY_QUERY

_HTML = "text/html"
_NO_PROOF = 1008


@get("/inbox", opt={OPEN: True, ANY_QUERY: True})
async def show_login(why: FromQuery[str] = "") -> Response[str]:
    """Where a person logs in to their inbox."""
    return Response(login_page(why), media_type=_HTML)


@post("/inbox", opt={OPEN: True, ANY_QUERY: True}, status_code=303)
async def log_in(request: Request[Any, Any, Any], node: NodeDependency) -> Response[str]:
    """Opens a session and leads to the inbox, or back to the form with the reason."""
    _check_own_page(request)
    form = read_form(await request.body())
    origin = origin_of(request)
    peer = form.get("peer", "").strip()
    try:
        opened = await node.authenticating.log_in(peer, form.get("password", ""), origin=origin)
    except NotAuthenticated:
        return _to_login("wrong")
    except TooFast:
        return _to_login("fast")
    except RapportError:
        return _to_login("later")
    inboxes: Inboxes = request.app.state.inboxes
    return _to(inbox_path(opened.peer), inboxes.cookie(opened))


@get("/inbox/{peer:str}", opt={OPEN: True, ANY_QUERY: True})
async def show_inbox(
    request: Request[Any, Any, Any], peer: FromPath[str], note: FromQuery[str] = ""
) -> Response[str]:
    """A person's messages, after logging in."""
    return await _show(request, peer, "", note)


@get("/inbox/{peer:str}/{link:str}", opt={OPEN: True, ANY_QUERY: True})
async def show_linked_inbox(
    request: Request[Any, Any, Any],
    peer: FromPath[str],
    link: FromPath[str],
    note: FromQuery[str] = "",
) -> Response[str]:
    """The same by a signed link, without a password."""
    return await _show(request, peer, link, note)


@post("/inbox/{peer:str}", opt={OPEN: True, ANY_QUERY: True}, status_code=303)
async def answer_in_inbox(request: Request[Any, Any, Any], peer: FromPath[str]) -> Response[str]:
    """Records an answer, or ends the session."""
    return await _take(request, peer, "")


@post("/inbox/{peer:str}/{link:str}", opt={OPEN: True, ANY_QUERY: True}, status_code=303)
async def answer_in_linked_inbox(
    request: Request[Any, Any, Any], peer: FromPath[str], link: FromPath[str]
) -> Response[str]:
    """Records an answer of who has the link."""
    return await _take(request, peer, link)


@post("/peers/{peer:str}/inbox-link", status_code=200)
async def make_inbox_link(
    request: Request[Any, Any, Any],
    peer: FromPath[str],
    node: NodeDependency,
    days: Annotated[int, QueryParameter(ge=1, le=LONGEST_DAYS)] = 30,
) -> Response[bytes]:
    """A link that opens a person's inbox without a password, for who may change the node; to be
    given to that person alone.
    """
    allow_admin(request, node)
    if not await run_aside(partial(node.directory.has, Identifier("peer", peer))):
        raise UnknownName("peer", peer, code="peer.unknown")
    inboxes: Inboxes = request.app.state.inboxes
    expires_ms = node.clock.now_ms() + days * 86_400_000
    told = {"link": await inboxes.link(peer, expires_ms), "expires": format_time(expires_ms)}
    return Response(msgspec.json.encode(told), media_type="application/json")


@websocket("/inbox/{peer:str}/socket", opt={OPEN: True, ANY_QUERY: True})
async def inbox_socket(socket: WebSocket[Any, Any, Any], peer: FromPath[str]) -> None:
    """Keeps an open inbox fresh."""
    await _keep_fresh(socket, peer, "")


@websocket("/inbox/{peer:str}/{link:str}/socket", opt={OPEN: True, ANY_QUERY: True})
async def linked_inbox_socket(
    socket: WebSocket[Any, Any, Any], peer: FromPath[str], link: FromPath[str]
) -> None:
    """The same by a signed link."""
    await _keep_fresh(socket, peer, link)


async def _show(request: Request[Any, Any, Any], peer: str, link: str, note: str) -> Response[str]:
    inboxes: Inboxes = request.app.state.inboxes
    peer = name_from_link(peer)
    visitor = await inboxes.visitor(request, peer, link)
    if visitor is None:
        return _to_login("link" if link else "session")
    view, form = await inboxes.look(peer), inboxes.form_of(visitor)
    zone = await inboxes.node.zone_of(peer)
    page = inbox_page(view, form, zone=zone, note=note, may_leave=not visitor.by_link)
    cookie = await inboxes.renewed(visitor)
    return Response(page, media_type=_HTML, headers={"Set-Cookie": cookie} if cookie else {})


async def _take(request: Request[Any, Any, Any], peer: str, link: str) -> Response[str]:
    inboxes: Inboxes = request.app.state.inboxes
    peer = name_from_link(peer)
    visitor = await inboxes.visitor(request, peer, link)
    if visitor is None:
        return _to_login("link" if link else "session")
    form = read_form(await request.body())
    inboxes.check_form(visitor, form)
    if form.get("leave") and not visitor.by_link:
        await inboxes.node.authenticating.log_out(visitor.token)
        gone = session_cookie("", seconds=0, is_secure=inboxes.is_secure)
        return _to("/inbox?why=left", gone)
    said = answer_text(form)
    if not said:
        return _to(f"{inbox_path(peer, link)}?note=empty")
    declined = form.get("answer") == "no"
    taken = await inboxes.answer(visitor, form.get("message", ""), said, declined=declined)
    return _to(f"{inbox_path(peer, link)}?note={'answered' if taken else 'decided'}")


async def _keep_fresh(socket: WebSocket[Any, Any, Any], peer: str, link: str) -> None:
    inboxes: Inboxes = socket.app.state.inboxes
    live: Live = socket.app.state.live
    peer = name_from_link(peer)
    await socket.receive()
    if await inboxes.visitor(socket, peer, link) is None:
        await socket.send({"type": "websocket.close", "code": _NO_PROOF, "reason": ""})
        return

    async def is_allowed() -> bool:
        return await inboxes.visitor(socket, peer, link) is not None

    live.enter()
    try:
        await InboxSocket(peer, inboxes, socket, is_allowed).serve()
    finally:
        live.leave()


def _check_own_page(request: Request[Any, Any, Any]) -> None:
    """Browsers tell from where a form is posted; nobody is logged in by another site's page."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise NotAllowed("requests from other sites' pages are refused", code="access.origin")


def _to_login(why: str) -> Response[str]:
    return _to(f"/inbox?why={why}")


def _to(path: str, cookie: str = "") -> Response[str]:
    headers = {"Location": path} | ({"Set-Cookie": cookie} if cookie else {})
    return Response("", status_code=303, media_type=_HTML, headers=headers)
