"""Sessions of browsers at the console: people by password, tokens, and one-time links. [CN-3]

The cookie is hidden from scripts and from other sites' pages (HttpOnly, SameSite=Strict). The
cookie of a person holds the token of the session that they opened with their password, so ending it
ends the console too; the person has the rights of the identity of the same name, if the site gives
it a role. A cookie of a token or link is sealed with a secret of the node and survives restarts; it
ends when the token is withdrawn.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

import msgspec

from rapport.channel.access.identities import LOCAL, NODE, Admission
from rapport.communication.links import answer_secret, form_token, is_form_token
from rapport.core.errors import NotAllowed, NotAuthenticated
from rapport.kernel.clock import Clock
from rapport.node.node import Node
from rapport.web.endpoint import cookie_header

COOKIE = "rapport_session"
LASTS_MS = 12 * 3_600_000
LINK_LASTS_MS = 3_600_000
_LINK_MARK = "link"
_PERSON, _SEALED = "p", "s"
_MOST_LINKS = 16
_LONGEST = 4_096


class LoginLinks:
    """Codes of links that log in once, for people who can read the terminal of the node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._codes: dict[str, int] = {}

    def make(self) -> str:
        """A new code; it may be used once, within an hour."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock.now_ms() + LINK_LASTS_MS
        while len(self._codes) > _MOST_LINKS:
            del self._codes[next(iter(self._codes))]
        return code

    def use(self, code: str) -> bool:
        """Whether the code was good; it is not any more."""
        known = next((one for one in self._codes if hmac.compare_digest(one, code)), None)
        return known is not None and self._clock.now_ms() < self._codes.pop(known)


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A browser that logged in."""

    identity: str
    cookie: str
    """The header that gives the browser its session."""
    person_token: str = ""
    """The person's session, which opens their inbox too."""

    def __repr__(self) -> str:
        return f"Login(identity={self.identity!r})"


class ConsoleSessions:
    """Opens, checks and ends the sessions of browsers."""

    def __init__(self, node: Node, admission: Admission, links: LoginLinks) -> None:
        self._node, self._admission, self._links = node, admission, links
        self._secret = answer_secret(node.channels.records)

    async def identify(self, cookies: Mapping[str, str]) -> str | None:
        """The identity that logged in; None for nobody, or a session that is over."""
        kind, _, rest = cookies.get(COOKIE, "")[:_LONGEST].partition(":")
        if kind == _PERSON:
            peer = await self._node.authenticating.sessions.peer_of(rest)
            return peer if peer is not None and self._is_user(peer) else None
        return self._sealed_identity(rest) if kind == _SEALED else None

    def is_person(self, cookies: Mapping[str, str]) -> bool:
        """Whether the session is one of a person, who has an inbox."""
        return cookies.get(COOKIE, "").startswith(f"{_PERSON}:")

    @property
    def is_open(self) -> bool:
        """Whether everybody on this machine has every right, so that nobody logs in."""
        return not self._admission.is_closed()

    def _is_user(self, person: str) -> bool:
        """Whether the site gives the person a role. Other identities are for tokens: who makes a
        person of such a name does not get their rights.
        """
        declared = self._admission.access.identities.get(person)
        return declared is not None and person != LOCAL and bool(declared.grant.role)

    async def log_in(self, person: str, password: str, origin: str) -> Login:
        """A session of a person. Raises NotAuthenticated, TooFast, or NotAllowed for a person who
        has an inbox only.
        """
        opened = await self._node.authenticating.log_in(person, password, origin=origin)
        if not self._is_user(opened.peer):
            await self._node.authenticating.log_out(opened.token, origin=origin)
            raise NotAllowed(
                f"{opened.peer!r} has an inbox, but no role in the console",
                code="access.no_role",
                hint=f'the site gives roles: [access.{opened.peer}] role = "viewer"',
            )
        seconds = (opened.expires_ms - self._node.clock.now_ms()) // 1_000
        cookie = self.cookie(f"{_PERSON}:{opened.token}", seconds)
        return Login(identity=opened.peer, cookie=cookie, person_token=opened.token)

    def log_in_by_token(self, token: str) -> Login:
        """A session of the identity of an access token; raises NotAuthenticated."""
        identity = self._admission.identify(token)
        if identity is None:
            raise NotAuthenticated(
                "this token is not known",
                code="auth.failed",
                hint="rapport access token NAME makes one",
            )
        return self._sealed(identity, self._admission.tokens.mark_of(token))

    def log_in_by_link(self, code: str) -> Login:
        """A session of the node's operator; raises NotAuthenticated for a used or old code."""
        if not self._links.use(code):
            raise NotAuthenticated(
                "this link was used before, or is too old",
                code="auth.link_over",
                hint="rapport up prints a new one",
            )
        return self._sealed(NODE, _LINK_MARK)

    async def log_out(self, cookies: Mapping[str, str], origin: str) -> str:
        """Ends a person's session; gives the header that takes the cookie away."""
        kind, _, token = cookies.get(COOKIE, "")[:_LONGEST].partition(":")
        if kind == _PERSON:
            await self._node.authenticating.log_out(token, origin=origin)
        return self.cookie("", 0)

    def cookie(self, value: str, seconds: int) -> str:
        """The header of the cookie; with no seconds it is taken away."""
        is_secure = self._node.public_url.startswith("https:")
        return cookie_header(COOKIE, value, path="/", seconds=seconds, is_secure=is_secure)

    def _sealed(self, identity: str, mark: str) -> Login:
        expires_ms = self._node.clock.now_ms() + LASTS_MS
        claim = f"{identity}|{mark}|{expires_ms}"
        value = f"{_SEALED}:{claim}|{form_token(self._secret, f'console {claim}')}"
        return Login(identity=identity, cookie=self.cookie(value, LASTS_MS // 1_000))

    def _sealed_identity(self, value: str) -> str | None:
        claim, _, seal = value.rpartition("|")
        if not is_form_token(self._secret, f"console {claim}", seal):
            return None
        identity, mark, expires = claim.split("|")
        if self._node.clock.now_ms() >= int(expires):
            return None
        by_link = identity == NODE and mark == _LINK_MARK
        return identity if by_link or mark in self._admission.tokens.marks(identity) else None
