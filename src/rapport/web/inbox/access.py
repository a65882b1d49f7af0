"""Who may look into an inbox: by a session in a cookie, or by a signed link. [CO-11, CO-16]

The cookie is kept from scripts and from other sites' pages (HttpOnly, SameSite=Strict); every form
carries a token of its own besides.
"""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from litestar.connection import ASGIConnection

from rapport.communication.answers import LONGEST_ANSWER, answer_secret, answer_token
from rapport.communication.links import (
    LinkEditions,
    form_token,
    inbox_link,
    is_form_token,
    is_inbox_token,
)
from rapport.communication.sessions.sessions import OpenedSession
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.node.node import Node
from rapport.web.inbox.view import InboxView, is_under_way, look

COOKIE = "rapport_inbox"
_MOST_FIELDS = 20
Connection = ASGIConnection[Any, Any, Any, Any]


class Visitor(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who has shown to be a peer, by a session or by a link."""

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


class Inboxes:
    """What the doors of inboxes share. Reads the secret of links from the records when made."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._secret = answer_secret(node.channels.records)
        self._sessions = node.authenticating.sessions
        self._links = LinkEditions(node.channels.records, node.clock)

    async def visitor(self, connection: Connection, peer: str, link: str) -> Visitor | None:
        """Who asks for this peer's inbox; None for somebody else or nobody."""
        if link:
            edition = await self._links.edition(peer)
            is_right = is_inbox_token(self._secret, peer, link, self.node.clock.now_ms(), edition)
            return Visitor(peer=peer, proof=link) if is_right else None
        token = connection.cookies.get(COOKIE, "")
        if not token:
            return None
        (checked,) = await self._sessions.check([token])
        session = checked.session
        if session is None or not checked.is_good or session.peer != peer:
            return None
        return Visitor(peer=peer, proof=session.id, token=token, expires_ms=session.expires_ms)

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
        """The inbox as it stands."""
        return await look(self.node.ledger, peer, self.node.clock.now_ms())

    async def answer(
        self, visitor: Visitor, message: str, text: str, *, declined: bool = False
    ) -> bool:
        """Records an answer, durably; False for a message that the inbox does not show."""
        view = await self.look(visitor.peer)
        if not view.shows(message) and not await is_under_way(
            self.node.ledger, visitor.peer, message
        ):
            return False
        token = answer_token(self._secret, message, visitor.peer)
        await self.node.answer(message, visitor.peer, token, text, declined=declined)
        return True


def session_cookie(token: str, *, seconds: int, is_secure: bool) -> str:
    """The header that gives the cookie to the browser; with no seconds it is taken away."""
    cookie: SimpleCookie = SimpleCookie()
    cookie[COOKIE] = token
    made = cookie[COOKIE]
    made["path"], made["httponly"], made["samesite"] = "/inbox", True, "Strict"
    made["max-age"] = max(seconds, 0)
    if is_secure:
        made["secure"] = True
    return made.OutputString()


def read_form(body: bytes) -> dict[str, str]:
    """The fields of a form as browsers post it; raises InvalidInput."""
    try:
        text = body.decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:  # not text, or too many fields
        raise InvalidInput("the form cannot be read", code="inbox.bad_form") from None


def answer_text(form: dict[str, str]) -> str:
    """What the person says: the button, the words, or both; empty = nothing. Raises InvalidInput.

    >>> answer_text({"answer": "yes", "text": "in five minutes"})
    'yes: in five minutes'
    >>> answer_text({"answer": "", "text": ""})
    ''
    """
    said = ": ".join(
        part for part in (form.get("answer", ""), form.get("text", "").strip()) if part
    )
    if len(said) > LONGEST_ANSWER:
        raise InvalidInput(
            f"an answer has at most {LONGEST_ANSWER} characters", code="answer.too_long"
        )
    return said
