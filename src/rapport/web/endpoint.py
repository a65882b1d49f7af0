"""Who stands at a door: the identity that the doorkeeper found, and what it may do. [CH-15]

What every door is handed: the node it belongs to.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency

from rapport.channel.access.rights import NOBODY, Grant, Right
from rapport.core.errors import NotAllowed
from rapport.node.node import Node

_IDENTITY = "rapport.identity"


def set_identity(connection: ASGIConnection[Any, Any, Any, Any], identity: str) -> None:
    """Notes who the caller is; done once, by the doorkeeper."""
    connection.scope["state"][_IDENTITY] = identity


def identity_of(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """Who the caller is, for tokens, rights and the log; NOBODY where no doorkeeper looked."""
    return str(connection.scope["state"].get(_IDENTITY, NOBODY))


def require_right(
    connection: ASGIConnection[Any, Any, Any, Any], node: Node, right: Right, channel: str
) -> str:
    """The caller's identity; raises NotAllowed when it lacks the right on the channel, TooFast when
    it reads more often than it may. Give the identity to `node.append`, which counts what is sent.
    """
    identity = identity_of(connection)
    node.rights.check(identity, right, channel)
    if right == "subscribe":
        node.admission.rates.charge(identity, 1, node.clock.now_ms())
    return identity


def require_unfiltered(
    connection: ASGIConnection[Any, Any, Any, Any], node: Node, channel: str
) -> str:
    """The caller's identity, for a door that shows what a channel holds in a form of its own;
    raises as `allow` does, and NotAllowed when interceptors may hide something of the channel from
    who may not change the node: such a form passes none.
    """
    identity = require_right(connection, node, "subscribe", channel)
    if node.channels.may_hide(channel) and not node.rights.allows_admin(identity):
        raise NotAllowed(
            f"interceptors decide what readers of {channel!r} see, and this door passes none",
            code="access.intercepted",
            hint=f"read the channel itself: GET /channels/{channel}/events",
        )
    return identity


def require_admin(connection: ASGIConnection[Any, Any, Any, Any], node: Node) -> str:
    """The caller's identity; raises NotAllowed unless it may change the node."""
    identity = identity_of(connection)
    node.rights.check_admin(identity)
    return identity


def require_any_right(
    connection: ASGIConnection[Any, Any, Any, Any], node: Node, resource: str
) -> str:
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


def json_response(
    value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response[bytes]:
    """A value as JSON."""
    return Response(
        msgspec.json.encode(value),
        media_type="application/json",
        status_code=status,
        headers=headers,
    )


NodeDependency = NamedDependency[Node]
