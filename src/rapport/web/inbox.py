"""The inbox of a person: endpoints, access and the socket of an open page. [CO-11, CO-16]

Access is by a session in a cookie or by a signed link. The cookie is hidden from scripts and from
other sites' pages (HttpOnly, SameSite=Strict); every form carries a token of its own besides. Every
post is answered by a redirect, so that reloading a page repeats nothing.

Socket frames: the page sends `{"shown": KEY}`; the node sends `{"delivery": {...}}` or `{"changed":
MARK}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from litestar import Response, WebSocket, get, websocket
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.communication.adapters.base import Delivery
from rapport.communication.ledger_events import LONGEST_ANSWER
from rapport.communication.ledger_rows import MessageRow
from rapport.communication.links import (
    LONGEST_DAYS,
    LinkEditions,
    answer_secret,
    answer_token,
    form_token,
    inbox_link,
    is_form_token,
    is_inbox_token,
    name_from_link,
)
from rapport.communication.sessions.sessions import OpenedSession
from rapport.communication.texts import TextReader, shown_moment
from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    TooFast,
    UnknownName,
)
from rapport.core.message import Identifier
from rapport.core.times import format_time
from rapport.kernel.tasks import first_of, run_blocking
from rapport.node.node import Node
from rapport.web.api.directory import origin_of
from rapport.web.channel_socket import PushConnections, frame_text
from rapport.web.endpoint import (
    Connection,
    HttpRequest,
    NodeDependency,
    Reply,
    cookie_header,
    json_response,
    post,
    require_admin,
)
from rapport.web.endpoint_docs import (
    FORM_TO_PAGE,
    PAGE_OR_REDIRECT,
)
from rapport.web.inbox_page import (
    InboxView,
    inbox_page,
    inbox_path,
    is_pending,
    login_page,
    view_inbox,
)
from rapport.web.page_texts import browser_language
from rapport.web.pages import about_message, message_text
from rapport.web.request_limits import ANY_QUERY
from rapport.web.security import OPEN

COOKIE = "rapport_inbox"
_MOST_FIELDS = 20
Connection = Connection


class Visitor(msgspec.Struct, frozen=True, kw_only=True):
    """A peer authenticated by a session or by a link."""

    peer: str
    proof: str
    """What their forms are bound to: the session's id, the same through renewals, or the link."""
    token: str = ""
    """Of the session; empty = by a link."""
    expires_ms: int = 0

    @property
    def by_link(self) -> bool:
        """Whether there is no session."""
        return not self.token

    def __repr__(self) -> str:
        return f"Visitor(peer={self.peer!r}, by_link={self.by_link})"


class InboxAccess:
    """Access to inboxes. Reads the secret of links from the records when created."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._secret = answer_secret(node.channels.records)
        self._sessions = node.authenticating.sessions
        self._links = LinkEditions(node.channels.records, node.clock)

    async def visitor(self, connection: Connection, peer: str, link: str) -> Visitor | None:
        """The authenticated visitor of this peer's inbox; None for anybody else."""
        if link:
            edition = await self._links.edition(peer)
            is_right = is_inbox_token(self._secret, peer, link, self.node.clock.now_ms(), edition)
            return Visitor(peer=peer, proof=link) if is_right else None
        visitor = await self._logged_in(connection)
        return visitor if visitor is not None and visitor.peer == peer else None

    async def peer_of(self, connection: Connection) -> str:
        """The person who is logged in; empty = nobody."""
        visitor = await self._logged_in(connection)
        return visitor.peer if visitor is not None else ""

    async def _logged_in(self, connection: Connection) -> Visitor | None:
        token = connection.cookies.get(COOKIE, "")
        if not token:
            return None
        (checked,) = await self._sessions.check([token])
        session = checked.session
        if session is None or not checked.is_good:
            return None
        return Visitor(
            peer=session.peer, proof=session.id, token=token, expires_ms=session.expires_ms
        )

    async def renewed(self, visitor: Visitor) -> str:
        """The header of a cookie with a new token, once half of the session's time is over; empty
        before. So nobody who looks now and then is logged out in between.
        """
        left_ms = visitor.expires_ms - self.node.clock.now_ms()
        if visitor.by_link or left_ms > self._sessions.settings.lifetime_ms // 2:
            return ""
        opened = await self._sessions.renew(visitor.token)
        return self.cookie(opened) if opened is not None else ""

    def cookie(self, opened: OpenedSession) -> str:
        """The header that gives the browser its session."""
        seconds = (opened.expires_ms - self.node.clock.now_ms()) // 1_000
        return session_cookie(opened.token, seconds=seconds, is_secure=self.is_secure)

    @property
    def is_secure(self) -> bool:
        """Whether people reach the node by HTTPS."""
        return self.node.public_url.startswith("https:")

    async def link(self, peer: str, expires_ms: int) -> str:
        """The signed address of a peer's inbox, for nobody else. It counts until then, and no
        longer than the peer is there and its password stays as it is.
        """
        edition = await self._links.begin(peer)
        return inbox_link(self.node.public_url, self._secret, peer, expires_ms, edition)

    def form_of(self, visitor: Visitor) -> str:
        """The token that the visitor's forms carry."""
        return form_token(self._secret, visitor.proof)

    def check_form(self, visitor: Visitor, form: dict[str, str]) -> None:
        """Raises NotAllowed for a form that is not of a page made for the visitor."""
        if not is_form_token(self._secret, visitor.proof, form.get("form", "")):
            raise NotAllowed(
                "this form is not from your inbox", code="inbox.bad_form", hint="load it again"
            )

    async def look(self, peer: str) -> InboxView:
        return await view_inbox(self.node.ledger, peer, self.node.clock.now_ms())

    async def answer(
        self, visitor: Visitor, message: str, text: str, *, declined: bool = False
    ) -> bool:
        """Records an answer, durably; False for a message that the inbox does not show."""
        view = await self.look(visitor.peer)
        if not view.shows(message) and not await is_pending(
            self.node.ledger, visitor.peer, message
        ):
            return False
        token = answer_token(self._secret, message, visitor.peer)
        await self.node.answer(message, visitor.peer, token, text, declined=declined)
        return True


def session_cookie(token: str, *, seconds: int, is_secure: bool) -> str:
    """The header that gives the cookie to the browser; with no seconds it is taken away."""
    return cookie_header(COOKIE, token, path="/inbox", seconds=seconds, is_secure=is_secure)


def read_form(body: bytes) -> dict[str, str]:
    """The fields of a form as browsers post it; raises InvalidInput."""
    try:
        text = body.decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:  # not text, or too many fields
        raise InvalidInput("the form cannot be read", code="inbox.bad_form") from None


def answer_text(form: dict[str, str]) -> str:
    """The person's answer: the button, the words, or both; empty = nothing. Raises InvalidInput.

    >>> answer_text({"answer": "yes", "text": "in five minutes"})
    'yes: in five minutes'
    >>> answer_text({"answer": "", "text": ""})
    ''
    """
    answer = ": ".join(
        part for part in (form.get("answer", ""), form.get("text", "").strip()) if part
    )
    if len(answer) > LONGEST_ANSWER:
        raise InvalidInput(
            f"an answer has at most {LONGEST_ANSWER} characters", code="answer.too_long"
        )
    return answer


MOST_WAITING = 100
"""Deliveries that a page may be behind; more are not taken, so that they go another way."""
AT_MOST_EVERY_MS = 1_000
"""Least time between two notifications of an open page: each costs a ledger query."""
CHECK_EVERY_MS = 30_000
"""How late an open page notices that its session was ended elsewhere."""
_LONGEST_FRAME = 1_000
_GOING_AWAY = 1012


class _ShownReceipt(msgspec.Struct, frozen=True):
    """A frame of a page."""

    shown: str = ""


def _shown(delivery: Delivery, reader: TextReader) -> dict[str, Any]:
    time_ms = delivery.sent or delivery.time or delivery.queued
    row = MessageRow(
        message=delivery.message,
        sender=delivery.sender,
        policy=delivery.policy,
        type=delivery.type,
        subtype=delivery.subtype,
        conversation=delivery.conversation,
        text=delivery.text,
    )
    return {
        "message": delivery.message,
        "key": delivery.key,
        "text": message_text(row, reader),
        "about": " · ".join((*about_message(row, reader), "")),
        "time": format_time(time_ms),
        "shown_time": shown_moment(time_ms, reader),
        "urgent": delivery.urgent,
    }


class InboxSocket:
    """One open page of a person."""

    def __init__(
        self,
        peer: str,
        inboxes: InboxAccess,
        connection: Connection,
        is_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        """`is_allowed` checks whether the session or link is still valid."""
        self._peer, self._inboxes, self._node = peer, inboxes, inboxes.node
        self._connection, self._is_allowed, self._is_gone = connection, is_allowed, False
        self._waiting: asyncio.Queue[Delivery] = asyncio.Queue(MOST_WAITING)

    def take(self, delivery: Delivery) -> bool:
        if self._waiting.full():
            return False
        self._waiting.put_nowait(delivery)
        return True

    async def serve(self) -> None:
        """Until the page is closed or the node ends."""
        await self._send({"type": "websocket.accept"})
        pages = self._node.pages
        pages.enter(self._peer, self)
        try:
            closing = self._node.closing.wait()
            await first_of(self._listen(), self._show(), self._watch(), closing)
            if not self._is_gone:
                await self._send({"type": "websocket.close", "code": _GOING_AWAY, "reason": ""})
        except OSError:
            return  # the page has gone
        finally:
            pages.leave(self._peer, self)

    async def _listen(self) -> None:
        while True:
            message: Any = await self._connection.receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                return
            text = message.get("text") or message.get("bytes") or ""
            try:
                receipt = msgspec.json.decode(text[:_LONGEST_FRAME], type=_ShownReceipt)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                continue  # a page that we did not make; it harms nobody but itself
            self._node.pages.shown(self._peer, receipt.shown)

    async def _show(self) -> None:
        while True:
            delivery = await self._waiting.get()
            reader = await self._node.reader_of(self._peer)
            await self._send_members({"delivery": _shown(delivery, reader)})

    async def _watch(self) -> None:
        """Tells the page whenever the inbox is another than at the last look; ends with the right
        to look.
        """
        log, mark = self._node.channels.channel("log"), ""
        while await self._is_allowed():
            position = log.last_position()
            view = await self._inboxes.look(self._peer)
            if view.mark != mark:
                mark = view.mark
                await self._send_members({"changed": mark})
            await log.wait_after(position, timeout_ms=CHECK_EVERY_MS)
            await self._node.clock.sleep(AT_MOST_EVERY_MS)

    async def _send_members(self, members: dict[str, Any]) -> None:
        await self._send({"type": "websocket.send", "text": frame_text(members)})

    async def _send(self, frame: Any) -> None:
        await self._connection.send(frame)


_HTML = "text/html"
_NO_PROOF = 1008


@get("/inbox", opt=PAGE_OR_REDIRECT)
async def show_login(request: HttpRequest, why: FromQuery[str] = "") -> Response[str]:
    """Where a person logs in to their inbox; who is logged in comes to it at once."""
    inboxes: InboxAccess = request.app.state.inboxes
    peer = "" if why else await inboxes.peer_of(request)
    if peer:
        return _to(inbox_path(peer))
    language = browser_language(request.headers.get("accept-language", ""))
    return Response(login_page(why, language), media_type=_HTML)


@post(
    "/inbox",
    opt=FORM_TO_PAGE,
    status_code=303,
)
async def log_in(request: HttpRequest, node: NodeDependency) -> Response[str]:
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
    inboxes: InboxAccess = request.app.state.inboxes
    return _to(inbox_path(opened.peer), inboxes.cookie(opened))


@get("/inbox/{peer:str}", opt=PAGE_OR_REDIRECT)
async def show_inbox(
    request: HttpRequest, peer: FromPath[str], note: FromQuery[str] = ""
) -> Response[str]:
    """A person's messages, after logging in."""
    return await _show(request, peer, "", note)


@get("/inbox/{peer:str}/{link:str}", opt=PAGE_OR_REDIRECT)
async def show_linked_inbox(
    request: HttpRequest, peer: FromPath[str], link: FromPath[str], note: FromQuery[str] = ""
) -> Response[str]:
    """The same by a signed link, without a password."""
    return await _show(request, peer, link, note)


@post(
    "/inbox/{peer:str}",
    opt=FORM_TO_PAGE,
    status_code=303,
)
async def answer_in_inbox(request: HttpRequest, peer: FromPath[str]) -> Response[str]:
    """Records an answer, or ends the session."""
    return await _record_answer(request, peer, "")


@post(
    "/inbox/{peer:str}/{link:str}",
    opt=FORM_TO_PAGE,
    status_code=303,
)
async def answer_in_linked_inbox(
    request: HttpRequest, peer: FromPath[str], link: FromPath[str]
) -> Response[str]:
    """Records an answer by the holder of the link."""
    return await _record_answer(request, peer, link)


@post("/peers/{peer:str}/inbox-link")
async def make_inbox_link(
    request: HttpRequest,
    peer: FromPath[str],
    node: NodeDependency,
    days: Annotated[int, QueryParameter(ge=1, le=LONGEST_DAYS)] = 30,
) -> Reply:
    """A link that opens a person's inbox without a password, for administrators; to be
    given to that person alone.
    """
    require_admin(request, node)
    if not await run_blocking(partial(node.directory.has, Identifier("peer", peer))):
        raise UnknownName("peer", peer, code="peer.unknown")
    inboxes: InboxAccess = request.app.state.inboxes
    expires_ms = node.clock.now_ms() + days * 86_400_000
    receipt = {"link": await inboxes.link(peer, expires_ms), "expires": format_time(expires_ms)}
    return json_response(receipt)


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


async def _show(request: HttpRequest, peer: str, link: str, note: str) -> Response[str]:
    inboxes: InboxAccess = request.app.state.inboxes
    peer = name_from_link(peer)
    visitor = await inboxes.visitor(request, peer, link)
    if visitor is None:
        return _to_login("link" if link else "session")
    view, form = await inboxes.look(peer), inboxes.form_of(visitor)
    reader = await inboxes.node.reader_of(peer)
    page = inbox_page(view, form, reader=reader, note=note, link=link)
    cookie = await inboxes.renewed(visitor)
    return Response(page, media_type=_HTML, headers={"Set-Cookie": cookie} if cookie else {})


async def _record_answer(request: HttpRequest, peer: str, link: str) -> Response[str]:
    inboxes: InboxAccess = request.app.state.inboxes
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
    if form.get("all") == "seen":
        for row in (await inboxes.look(peer)).notices:
            await inboxes.answer(visitor, row.message, "seen")
        return _to(inbox_path(peer, link))
    answer = answer_text(form)
    if not answer:
        return _to(f"{inbox_path(peer, link)}?note=empty")
    declined = form.get("answer") == "no"
    recorded = await inboxes.answer(visitor, form.get("message", ""), answer, declined=declined)
    return _to(f"{inbox_path(peer, link)}?note={'answered' if recorded else 'decided'}")


async def _keep_fresh(socket: WebSocket[Any, Any, Any], peer: str, link: str) -> None:
    inboxes: InboxAccess = socket.app.state.inboxes
    live: PushConnections = socket.app.state.live
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


def _check_own_page(request: HttpRequest) -> None:
    """Raises NotAllowed for a form that another site's page posts."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise NotAllowed("requests from other sites' pages are refused", code="access.origin")


def _to_login(why: str) -> Response[str]:
    return _to(f"/inbox?why={why}")


def _to(path: str, cookie: str = "") -> Response[str]:
    headers = {"Location": path} | ({"Set-Cookie": cookie} if cookie else {})
    return Response("", status_code=303, media_type=_HTML, headers=headers)
