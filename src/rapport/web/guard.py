"""Who may come in: bearer token when one is set, and no strangers' web pages on loopback. [UX-5,
CH-15]

A page on the internet can make a browser post to loopback. Two checks stop it: the Host must be one
the node answers to (against DNS rebinding), and a request that carries an Origin must come from
that same host.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from rapport.core.errors import InvalidInput, NotAllowed, NotAuthenticated
from rapport.kernel.settings import NodeSettings

OPEN = "open"
"""Option of routes that bring their own proof (answer links) or tell nothing (health)."""


def is_loopback(host: str) -> bool:
    """Whether an address or name can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(settings: NodeSettings, token: str) -> None:
    """Raises InvalidInput when the node would be open to others without a token."""
    if not token and not is_loopback(settings.host):
        raise InvalidInput(
            f"the node would listen on {settings.host} without authentication",
            code="settings.open_door",
            hint="set token_file in [node], or listen on 127.0.0.1",
        )


class Doorkeeper:
    """Litestar guard that every route passes; routes marked OPEN skip the token, never the host
    check.
    """

    def __init__(self, settings: NodeSettings, token: str) -> None:
        self._token = token
        public = urlsplit(settings.public_url).hostname if settings.public_url else None
        self._hosts = {settings.host, *((public,) if public else ())}

    def __call__(
        self, connection: ASGIConnection[Any, Any, Any, Any], route: BaseRouteHandler
    ) -> None:
        """Raises NotAllowed or NotAuthenticated; returns when the caller may come in."""
        host = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
        if host not in self._hosts and not is_loopback(host):
            raise NotAllowed(
                f"this node does not answer to the name {host!r}",
                code="access.unknown_host",
                hint="set public_url in [node]",
            )
        origin = connection.headers.get("origin")
        if origin and origin != "null" and urlsplit(origin).hostname != host:
            raise NotAllowed("requests from other sites' pages are refused", code="access.origin")
        if self._token and not route.opt.get(OPEN):
            self._check_token(connection)

    def _check_token(self, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
        given = connection.headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            token.encode(), self._token.encode()
        ):
            raise NotAuthenticated(
                "a bearer token is needed", hint="send the header Authorization: Bearer TOKEN"
            )
