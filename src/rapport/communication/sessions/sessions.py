"""Sessions of peers: opened after a login, renewed before they expire, ended at any time. [CO-11]

A session token proves its bearer's identity for some hours. `logins.py` checks passwords; tokens of
programs at the HTTP API are another matter (`channel/access`). Sessions and the keys that sign
tokens are in the record store. Several nodes may share it: a key that one creates is found by the
others by its id.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from rapport.communication.sessions.seals import (
    TokenClaims,
    TokenFault,
    key_of,
    read_token,
    sealing_key,
    to_text,
    write_token,
)
from rapport.core.event import content_id
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import in_thread, run_blocking
from rapport.store.base import Delete, RecordStore, all_records

_SESSIONS, _KEYS = "sessions", "secrets"
_KEY_PREFIX = "sessions/"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One login of one peer. Times are ms UTC."""

    id: str
    peer: str
    began_ms: int
    expires_ms: int
    """When its newest token expires; renewals move it."""
    ends_ms: int
    """When it ends for good, whatever renewals."""
    key: str
    """Id of the key that its sealing key is derived from."""


class SessionKey(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that signs tokens from `made_ms` on."""

    id: str
    made_ms: int
    secret: bytes

    def __repr__(self) -> str:
        return f"SessionKey(id={self.id!r}, made_ms={self.made_ms})"


def _key(peer: str, session: str) -> str:
    return f"{_of(peer)}/{session}"


def _of(peer: str) -> str:
    # A digest: names may hold the slash that separates the parts.
    return content_id("peer", peer)


_ID_BYTES, _KEY_BYTES = 16, 32
_MOST_REMEMBERED, _MOST_READ = 100_000, 20_000


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetimes of sessions."""

    lifetime_ms: int = 8 * 3_600_000
    """Of a token: shorter limits the harm of a stolen one, longer needs fewer renewals."""
    longest_ms: int = 30 * 86_400_000
    """Of a session with all its renewals: after this the password is needed again."""
    rotate_ms: int = 7 * 86_400_000
    """How long a key signs; it is kept for checking until the last session it served has ended."""
    recheck_ms: int = 5_000
    """How long a session counts as open without reading the store: how late a node sees that
    another one ended it. Its own endings count at once.
    """
    remember_ms: int = 3_600_000
    """How long an expired session is distinguished from an ended one, so that its peer can be asked
    to renew and its messages can be held.
    """


class OpenedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a login, for the peer only."""

    peer: str
    session: str
    token: str
    expires_ms: int
    seal_key: str
    """For sealing (see seals.py), base64url; the same through all renewals."""

    def __repr__(self) -> str:
        return f"OpenedSession(peer={self.peer!r}, session={self.session!r})"


class TokenCheck(msgspec.Struct, frozen=True):
    """The result of checking a token: the session of its peer, or the fault."""

    session: Session | None = None
    fault: TokenFault | None = None

    @property
    def is_good(self) -> bool:
        """Whether the token is valid now."""
        return self.session is not None and self.fault is None


class Sessions:
    """Opens, checks and ends sessions. A check costs some microseconds and no disk access if the
    session was checked within `recheck_ms`.
    """

    def __init__(
        self, records: RecordStore, clock: Clock, settings: SessionSettings | None = None
    ) -> None:
        self._records, self._clock = records, clock
        self.settings = settings or SessionSettings()
        self._keys: dict[str, SessionKey] = {}
        self._keys_read_ms: int | None = None
        self._read: OrderedDict[str, TokenClaims] = OrderedDict()
        self._known: OrderedDict[str, tuple[Session | None, int]] = OrderedDict()
        # Records and what is known of them change together: an ended session stays ended.
        self._guard = threading.Lock()

    # --- life ---

    @in_thread
    def begin(self, peer: str) -> OpenedSession:
        """Opens a session for a peer whose identity is proven; durable on return."""
        with self._guard:
            now_ms = self._now()
            key = self._signing_key(now_ms)
            session = Session(
                id=to_text(secrets.token_bytes(_ID_BYTES)),
                peer=peer,
                began_ms=now_ms,
                expires_ms=now_ms + self.settings.lifetime_ms,
                ends_ms=now_ms + max(self.settings.longest_ms, self.settings.lifetime_ms),
                key=key.id,
            )
            return self._issue(session, key, now_ms)

    async def renew(self, token: str) -> OpenedSession | None:
        """A new token for the session of a valid one, which stays valid until it expires; None when
        the token is not valid or the session has had its longest time.
        """
        checked = (await self.check([token]))[0]
        session = checked.session
        if not checked.is_good or session is None or self._now() >= session.ends_ms:
            return None
        return await self._renew(session.peer, session.id)

    async def end(self, token: str) -> bool:
        """Ends the session of a valid token, at once; False for any other."""
        checked = (await self.check([token]))[0]
        if not checked.is_good or checked.session is None:
            return False
        await run_blocking(partial(self._end, [checked.session]))
        return True

    @in_thread
    def end_all(self, peer: str) -> int:
        """Ends all sessions of a peer; returns their number."""
        found = list(self._find(f"{_of(peer)}/"))
        self._end(found)
        return len(found)

    @in_thread
    def forget_over(self) -> int:
        """Deletes expired sessions and unneeded keys; returns the number of sessions. Reads all
        sessions, so it is called now and then.
        """
        now_ms, settings = self._now(), self.settings
        over = [one for one in self._find() if one.expires_ms < now_ms - settings.remember_ms]
        self._delete(over)
        self._read_keys()
        for key in list(self._keys.values()):
            # The last session that it signed has ended for good.
            if now_ms - key.made_ms >= settings.rotate_ms + settings.longest_ms:
                self._records.delete(_KEYS, _KEY_PREFIX + key.id)
        self._read_keys()
        return len(over)

    # --- asking ---

    async def check(self, tokens: Sequence[str]) -> list[TokenCheck]:
        """The result for each token; at most one access to the store."""
        now_ms = self._now()
        if self._misses_keys(tokens, now_ms):
            await run_blocking(self._read_keys)
        read = [self._read.get(token) or self._read_claims(token) for token in tokens]
        await self._refresh([one for one in read if isinstance(one, TokenClaims)], now_ms)
        return [self._result(one, now_ms) for one in read]

    async def peer_of(self, token: str) -> str | None:
        """The peer of a valid token; None for any other."""
        checked = (await self.check([token]))[0]
        return checked.session.peer if checked.is_good and checked.session else None

    async def open_sessions(self, peer: str) -> list[Session]:
        """The peer's open sessions, the one that lasts longest first."""
        found = await run_blocking(lambda: list(self._find(f"{_of(peer)}/")))
        alive = [one for one in found if one.expires_ms > self._now()]
        return sorted(alive, key=lambda one: (-one.expires_ms, one.id))

    @in_thread
    def peers(self) -> list[str]:
        """Peers with a session, sorted; reads all sessions."""
        return sorted({one.peer for one in self._find()})

    async def sealing(self, peer: str, session: str) -> tuple[Session, bytes] | None:
        """An open session of the peer and its sealing key; None when there is none of that id."""
        now_ms = self._now()
        if self._keys_read_ms is None:
            await run_blocking(self._read_keys)
        await self._refresh([TokenClaims(peer, session, 0, 0)], now_ms)
        found = self._known.get(session, (None, 0))[0]
        if found is None or found.peer != peer or found.expires_ms <= now_ms:
            return None
        secret = self._secret_of(found.key)
        return None if secret is None else (found, sealing_key(secret, session, peer))

    async def newest_sealing(self, peer: str) -> tuple[Session, bytes] | None:
        """The open session of the peer that lasts longest, and its sealing key; None when it has
        none.
        """
        found = await self.open_sessions(peer)
        return await self.sealing(peer, found[0].id) if found else None

    def _read_claims(self, token: str) -> TokenClaims | TokenFault:
        """The claims of a token; those of a valid one are cached."""
        known, read = self._read, read_token(token, self._secret_of)
        if isinstance(read, TokenClaims):
            known[token] = read
            while len(known) > _MOST_READ:
                known.popitem(last=False)
        return read

    def _result(self, read: TokenClaims | TokenFault, now_ms: int) -> TokenCheck:
        if not isinstance(read, TokenClaims):
            return TokenCheck(fault=read)
        session = self._known.get(read.session, (None, 0))[0]
        if session is None or session.peer != read.peer:
            return TokenCheck(fault="session.ended")
        is_expired = read.expires_ms <= now_ms
        return TokenCheck(session, "session.expired" if is_expired else None)

    def _misses_keys(self, tokens: Iterable[str], now_ms: int) -> bool:
        """Whether a token names a key that another node may have created since the last read."""
        if self._keys_read_ms is None:
            return True
        if abs(now_ms - self._keys_read_ms) < self.settings.recheck_ms:
            return False
        named = {key_of(token) for token in tokens}
        return any(key is not None and key not in self._keys for key in named)

    async def _refresh(self, claims: Sequence[TokenClaims], now_ms: int) -> None:
        stale = [one for one in claims if self._is_stale(one.session, now_ms)]
        if stale:
            await run_blocking(partial(self._load, stale, now_ms))

    def _is_stale(self, session: str, now_ms: int) -> bool:
        known = self._known.get(session)
        return known is None or abs(now_ms - known[1]) >= self.settings.recheck_ms

    def _secret_of(self, key: str) -> bytes | None:
        found = self._keys.get(key)
        return found.secret if found else None

    def _now(self) -> int:
        return self._clock.now_ms()

    # --- in a worker thread ---

    @in_thread
    def _renew(self, peer: str, id: str) -> OpenedSession | None:
        with self._guard:
            session, now_ms = self._get(peer, id), self._now()
            if session is None:
                return None
            expires_ms = min(now_ms + self.settings.lifetime_ms, session.ends_ms)
            # Never shorter than what a token already out promises.
            moved = msgspec.structs.replace(session, expires_ms=max(expires_ms, session.expires_ms))
            return self._issue(moved, self._signing_key(now_ms), now_ms)

    def _issue(self, session: Session, key: SessionKey, now_ms: int) -> OpenedSession:
        record = msgspec.msgpack.encode(session)
        self._records.put(_SESSIONS, _key(session.peer, session.id), record)
        self._remember(session.id, session, now_ms)
        claims = TokenClaims(session.peer, session.id, now_ms, session.expires_ms)
        seal = sealing_key(self._keys[session.key].secret, session.id, session.peer)
        return OpenedSession(
            peer=session.peer,
            session=session.id,
            token=write_token(claims, key.id, key.secret),
            expires_ms=session.expires_ms,
            seal_key=to_text(seal),
        )

    def _end(self, sessions: Sequence[Session]) -> None:
        with self._guard:
            self._delete(sessions)
            for session in sessions:
                self._remember(session.id, None, self._now())

    def _get(self, peer: str, id: str) -> Session | None:
        """The session; None when it has ended or never existed."""
        kept = self._records.get(_SESSIONS, _key(peer, id))
        return msgspec.msgpack.decode(kept, type=Session) if kept else None

    def _find(self, prefix: str = "") -> Iterator[Session]:
        for _key, value in all_records(self._records, _SESSIONS, prefix=prefix):
            yield msgspec.msgpack.decode(value, type=Session)

    def _delete(self, sessions: Sequence[Session]) -> None:
        """Ends sessions, all or none; durable on return."""
        if sessions:
            self._records.apply([Delete(_SESSIONS, _key(one.peer, one.id)) for one in sessions])

    def _load(self, claims: Sequence[TokenClaims], now_ms: int) -> None:
        with self._guard:
            for one in claims:
                self._remember(one.session, self._get(one.peer, one.session), now_ms)

    def _remember(self, id: str, session: Session | None, now_ms: int) -> None:
        self._known[id] = (session, now_ms)
        self._known.move_to_end(id)
        while len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)

    def _read_keys(self) -> None:
        found = self._records.find(_KEYS, prefix=_KEY_PREFIX)
        keys = [msgspec.msgpack.decode(value, type=SessionKey) for _key, value in found]
        self._keys = {key.id: key for key in keys}
        self._keys_read_ms = self._now()
        self._read = OrderedDict()  # a new one: the event loop may be in the old one

    def _signing_key(self, now_ms: int) -> SessionKey:
        """The key that signs now; a new one is durable before it is used."""
        self._read_keys()
        key = max(self._keys.values(), key=lambda key: (key.made_ms, key.id), default=None)
        if key is None or now_ms - key.made_ms >= self.settings.rotate_ms:
            id, secret = secrets.token_hex(8), secrets.token_bytes(_KEY_BYTES)
            key = SessionKey(id=id, made_ms=now_ms, secret=secret)
            self._records.put(_KEYS, _KEY_PREFIX + key.id, msgspec.msgpack.encode(key))
            self._keys[key.id] = key
        return key
