"""Authentication of HTTP callers and protection of loopback from foreign web pages. [UX-5, CH-15]

A page on the internet can make a browser post to loopback. Two checks stop it: the Host must be one
the node answers to (against DNS rebinding), and a request that carries an Origin (scheme, host and
port) must come from a page of this node, or of its `public_url`. Headers in which a proxy names its
caller are trusted only from the proxies in `trusted_proxies`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from litestar.handlers import BaseRouteHandler

from rapport.channel.access.identities import LOCAL, NOBODY, OPEN_TO_ALL, Admission, FailedAttempts
from rapport.core.errors import InvalidInput, NotAllowed, NotAuthenticated
from rapport.core.urls import is_loopback
from rapport.kernel.clock import Clock
from rapport.kernel.settings import NodeSettings, parse_proxies
from rapport.kernel.telemetry import get_logger
from rapport.web.endpoint import Connection, set_identity

if TYPE_CHECKING:
    from rapport.web.browser_sessions import ConsoleSessions

_log = get_logger(__name__)

OPEN = "open"
"""Option of routes that need no token: answer links, health."""

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""A request with one of these came through a proxy: its maker is not on this machine."""
_MOST_FORWARDED = 1_024
_LONGEST_ADDRESS = _SHOWN_ORIGIN = 64
_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_exposure(settings: NodeSettings, token: str, admission: Admission = OPEN_TO_ALL) -> None:
    """Raises InvalidInput when the node would be open to others without a token."""
    if not token and not admission.is_closed() and not is_loopback(settings.host):
        raise InvalidInput(
            f"the node would listen on {settings.host} without authentication",
            code="settings.open_door",
            hint="name identities in [access], set token_file in [node], or listen on 127.0.0.1",
        )


_SAFE_METHODS = ("GET", "HEAD")


class RequestGuard:
    """Litestar guard that every route passes; routes marked OPEN skip the token, never the host
    check. Notes who the caller is (see callers.py).

    Endpoints outside the framework call `admit` themselves.
    """

    def __init__(
        self,
        settings: NodeSettings,
        admission: Admission,
        clock: Clock,
        sessions: ConsoleSessions | None = None,
    ) -> None:
        self._admission, self._clock, self._sessions = admission, clock, sessions
        self._failures = FailedAttempts()
        self.proxies = Proxies(settings.trusted_proxies)
        self._public_origin = _origin_of(settings.public_url) if settings.public_url else None
        public = urlsplit(settings.public_url).hostname if settings.public_url else None
        # In small letters, as `_host_of` gives what a request says.
        self._hosts = {settings.host.lower(), *((public,) if public else ())}

    async def __call__(self, connection: Connection, route: BaseRouteHandler) -> None:
        """Raises what `admit` raises; a WebSocket is refused before it is opened."""
        address = connection.client.host if connection.client else ""
        is_open = bool(route.opt.get(OPEN))
        session = await self._session(connection)
        admitted = self.admit(connection.headers, address, is_open=is_open, session=session)
        set_identity(connection, admitted)

    async def _session(self, connection: Connection) -> str | None:
        """The identity of the browser's session. Not for a change that does not name the page it
        comes from: a browser always does.
        """
        if self._sessions is None or not self._admission.is_closed():
            return None
        identity = await self._sessions.identify(connection.cookies)
        method = connection.scope.get("method", "GET")
        if identity is None or method in _SAFE_METHODS or "origin" in connection.headers:
            return identity
        return None

    def admit(
        self,
        headers: Mapping[str, str],
        address: str,
        *,
        is_open: bool = False,
        session: str | None = None,
    ) -> str:
        """The caller's identity, NOBODY at an open route; `headers` have lower-case names,
        `session` is the identity of the browser's session, where the caller has one.

        Raises NotAllowed, NotAuthenticated, or TooFast for an address that fails too often.
        """
        self._check_page(headers, is_open)
        token = _bearer(headers)
        identity = self._identity(headers, address, token)
        if token is None and session is not None:
            identity = session
        if identity is not None:
            return identity
        if is_open:
            return NOBODY
        if token is not None:
            # A right token comes in all the same: nobody is locked out by who shares an address.
            caller = self.proxies.caller(headers, address)
            self._failures.note(caller, self._clock.now_ms())
            _log.warning("a wrong token was shown", address=caller)
        raise NotAuthenticated(
            "a bearer token is needed", hint="send the header Authorization: Bearer TOKEN"
        )

    def _check_page(self, headers: Mapping[str, str], is_open: bool) -> None:
        host = _host_of(f"//{headers.get('host', '')}")
        if host not in self._hosts and not is_loopback(host):
            raise NotAllowed(
                f"this node does not answer to the name {host!r}",
                code="access.unknown_host",
                hint="set public_url in [node]",
            )
        origin = headers.get("origin")
        # Our answer pages send no referrer, and then browsers say "null". So does a sandboxed
        # frame on anybody's page: elsewhere it is refused.
        if not origin or (is_open and origin == "null"):
            return
        page = _origin_of(origin)
        # The node itself speaks http; https is spoken by a proxy, whose address is `public_url`.
        own = (self._public_origin, _origin_of(f"http://{headers.get('host', '')}"))
        if page is not None and page in own:
            return
        raise NotAllowed(
            f"requests from pages of {origin[:_SHOWN_ORIGIN]!r} are refused",
            code="access.origin",
            hint="a page that people reach by another address needs public_url in [node]",
        )

    def _identity(self, headers: Mapping[str, str], address: str, token: str | None) -> str | None:
        """The caller's identity; None when authentication is required and missing."""
        if not self._admission.is_closed():
            return LOCAL
        if token is not None:
            return self._admission.identify(token)
        on_this_machine = is_loopback(address) and not any(name in headers for name in _FORWARDED)
        return LOCAL if on_this_machine and self._admission.access.knows_local() else None


class Proxies:
    """The proxies that a site trusts to name their callers (`trusted_proxies` in [node])."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._networks = parse_proxies(networks)

    def caller(self, headers: Mapping[str, str], address: str) -> str:
        """The address that a request comes from: the connection's own, or, through trusted proxies,
        the last one in X-Forwarded-For that is not such a proxy itself.
        """
        named = headers.get("x-forwarded-for", "") if self._networks else ""
        for hop in reversed(named[-_MOST_FORWARDED:].split(",")):
            if not hop.strip() or not self._is_trusted(address):
                break
            address = hop.strip()[:_LONGEST_ADDRESS]
        return address

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address.strip("[]"))
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def _bearer(headers: Mapping[str, str]) -> str | None:
    """What stands in the header Authorization; None when there is none."""
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


@lru_cache(maxsize=256)
def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # such as an address that begins with a bracket and does not end with one
        return ""


@lru_cache(maxsize=256)
def _origin_of(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an address; None when it names no http page."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme]


SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def text_type(media_type: str) -> str:
    """A media type as the framework wants it: to every text it adds the charset itself, and said
    twice strict readers refuse the answer (Prometheus does).
    """
    is_text = media_type.startswith("text/")
    return media_type.removesuffix("; charset=utf-8") if is_text else media_type
