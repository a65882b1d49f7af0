"""Doors for peers' sessions: log in, renew, log out; and passwords, for who may change the node.
[CO-11]

A wrong name, a wrong password and a peer without one are answered alike, in the same time. Logging
in needs no identity at the door: the password is the proof.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import Request, Response, delete, post
from litestar.params import FromPath

from rapport.communication.sessions.sessions import OpenedSession
from rapport.core.errors import InvalidInput, NotAuthenticated
from rapport.core.json_objects import ObjectDecoder
from rapport.core.times import format_time
from rapport.web.callers import allow_admin
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN, Doorkeeper

SCHEME = "session"
"""`Authorization: Session TOKEN` shows a peer's token."""
_MOST_BYTES = 16_384

T = TypeVar("T")


class LoginWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a login: a password, or the token that is to be renewed."""

    peer: str
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "LoginWanted()"


class SessionOpened(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer gets: its token, until when it is good, and what it seals messages with."""

    peer: str
    token: str
    expires: str
    session: str
    seal_key: str

    def __repr__(self) -> str:
        return f"SessionOpened(peer={self.peer!r})"


class PasswordWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that sets a password."""

    password: str

    def __repr__(self) -> str:
        return "PasswordWanted()"


_READ_LOGIN = ObjectDecoder(
    LoginWanted,
    fault="the body cannot be read",
    code="auth.bad_request",
    hint='send JSON with "peer", "password", "token"',
    is_secret=True,
)
_READ_PASSWORD = ObjectDecoder(
    PasswordWanted,
    fault="the body cannot be read",
    code="auth.bad_request",
    hint='send JSON with "password"',
    is_secret=True,
)


class SessionsEnded(msgspec.Struct, frozen=True):
    """How many sessions are over."""

    ended: int


@post("/sessions", opt={OPEN: True}, status_code=201)
async def open_session(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Opens a session for a peer that shows its password, or renews the one of a good token.

    401 when the name or the password is wrong, 429 after too many attempts, 503 when it cannot be
    found out.
    """
    wanted = await _read(request, _READ_LOGIN)
    origin = origin_of(request)
    door = node.authenticating
    if wanted.password:
        opened = await door.log_in(wanted.peer, wanted.password, origin=origin)
    else:
        opened = await door.renew(wanted.token, peer=wanted.peer, origin=origin)
    return _json(_shown(opened), 201)


@delete("/sessions", opt={OPEN: True}, status_code=200)
async def close_session(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Ends the session of the token in `Authorization: Session TOKEN`; in force at once."""
    if not await node.authenticating.log_out(shown_token(request), origin=origin_of(request)):
        raise NotAuthenticated(
            "there is no such session",
            code="session.invalid",
            hint="send the header Authorization: Session TOKEN",
        )
    return _json(SessionsEnded(1))


@post("/peers/{peer:str}/password", status_code=200)
async def set_password(
    request: Request[Any, Any, Any], peer: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Sets a peer's password and ends all its sessions; for who may change the node."""
    by = allow_admin(request, node)
    wanted = await _read(request, _READ_PASSWORD)
    return _json(SessionsEnded(await node.logins.set_password(peer, wanted.password, by=by)))


@delete("/peers/{peer:str}/password", status_code=200)
async def remove_password(
    request: Request[Any, Any, Any], peer: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Takes a peer's password away and ends all its sessions; for who may change the node."""
    by = allow_admin(request, node)
    return _json(SessionsEnded(await node.logins.remove_password(peer, by=by)))


def shown_token(request: Request[Any, Any, Any]) -> str:
    """The session token in the header `Authorization: Session TOKEN`; empty when there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == SCHEME else ""


def origin_of(request: Request[Any, Any, Any]) -> str:
    """Where a login comes from, for the limit on attempts; through a proxy that the site trusts it
    is the caller that the proxy names.
    """
    address = request.client.host if request.client else ""
    doorkeeper: Doorkeeper = request.app.guards[0]  # type: ignore[assignment]
    return doorkeeper.proxies.caller(request.headers, address)


async def _read(request: Request[Any, Any, Any], decoder: ObjectDecoder[T]) -> T:
    body = await request.body()
    if len(body) > _MOST_BYTES:
        raise InvalidInput("the body is too long", code="auth.bad_request")
    return decoder.decode(body)


def _shown(opened: OpenedSession) -> SessionOpened:
    return SessionOpened(
        peer=opened.peer,
        token=opened.token,
        expires=format_time(opened.expires_ms),
        session=opened.session,
        seal_key=opened.seal_key,
    )


def _json(answer: msgspec.Struct, status: int = 200) -> Response[bytes]:
    body = msgspec.json.encode(answer)
    return Response(body, status_code=status, media_type="application/json")
