"""What handlers share: the node, the caller's identity and rights, JSON responses. [CH-15]"""

from __future__ import annotations

from functools import partial
from http.cookies import SimpleCookie
from typing import Any

import litestar
import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency

from rapport.channel.access.identities import NOBODY, Grant, Right, Role
from rapport.core.errors import NotAllowed
from rapport.node.node import Node

HttpRequest = Request[Any, Any, Any]
Reply = Response[bytes]
Connection = ASGIConnection[Any, Any, Any, Any]
NodeDependency = NamedDependency[Node]
post = partial(litestar.post, status_code=200)
"""Also for what creates nothing: those that do say 201."""
delete = partial(litestar.delete, status_code=200)
_IDENTITY = "rapport.identity"


def set_identity(connection: Connection, identity: str) -> None:
    """Stores the caller's identity; called once, by the guard."""
    connection.scope["state"][_IDENTITY] = identity


def identity_of(connection: Connection) -> str:
    """The caller's identity for tokens, rights and the log; NOBODY where no guard ran."""
    return str(connection.scope["state"].get(_IDENTITY, NOBODY))


def require_right(connection: Connection, node: Node, right: Right, channel: str) -> str:
    """The caller's identity; raises NotAllowed when it lacks the right on the channel, TooFast when
    it reads more often than it may. Give the identity to `node.append`, which counts events.
    """
    identity = identity_of(connection)
    node.rights.check(identity, right, channel)
    if right == "subscribe":
        node.admission.rates.charge(identity, 1, node.clock.now_ms())
    return identity


def require_unfiltered(connection: Connection, node: Node, channel: str) -> str:
    """The caller's identity, for an endpoint that shows a channel in a form of its own;
    raises as `require_right` does, and NotAllowed when interceptors may hide events of the channel
    from callers that may not change the node: such a form passes no interceptors.
    """
    identity = require_right(connection, node, "subscribe", channel)
    if node.channels.may_hide(channel) and not node.rights.allows_admin(identity):
        raise NotAllowed(
            f"interceptors decide what readers of {channel!r} see, and this endpoint passes none",
            code="access.intercepted",
            hint=f"read the channel itself: GET /channels/{channel}/events",
        )
    return identity


def require_admin(connection: Connection, node: Node) -> str:
    """The caller's identity; raises NotAllowed unless it may change the node."""
    identity = identity_of(connection)
    node.rights.check_admin(identity)
    return identity


def require_role(connection: Connection, node: Node, role: Role) -> str:
    """The caller's identity; raises NotAllowed unless it has the rights of a role."""
    identity = identity_of(connection)
    node.rights.check_role(identity, role)
    return identity


def require_any_right(connection: Connection, node: Node, resource: str) -> str:
    """The caller's identity; raises NotAllowed when it has no right at all at this node, TooFast
    when it reads more often than it may.
    """
    identity = identity_of(connection)
    if node.rights.grants().get(identity, Grant()) == Grant():
        raise NotAllowed(
            f"{identity!r} may not look at {resource}",
            code="access.no_right",
            hint="the site's [access] gives rights: any of them is enough",
        )
    node.admission.rates.charge(identity, 1, node.clock.now_ms())
    return identity


def cookie_header(name: str, value: str, *, path: str, seconds: int, is_secure: bool) -> str:
    """The header of a cookie that scripts and other sites' pages do not get; with no seconds it is
    taken away.
    """
    cookie: SimpleCookie = SimpleCookie()
    cookie[name] = value
    made = cookie[name]
    made["path"], made["httponly"], made["samesite"] = path, True, "Strict"
    made["max-age"] = max(seconds, 0)
    if is_secure:
        made["secure"] = True
    return made.OutputString()


def json_response(
    value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Reply:
    return Response(
        msgspec.json.encode(value),
        media_type="application/json",
        status_code=status,
        headers=headers,
    )
