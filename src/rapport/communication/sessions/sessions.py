"""Sessions of peers: opened after a login, renewed before they are over, ended at any time. [CO-11]

A session token says who its bearer is for some hours. Who checks passwords is in
`authenticating.py`; identities of programs at the doors are another matter
(`channel/access/declared.py`).
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from rapport.communication.blocking import run_blocking
from rapport.communication.sessions.records import (
    Session,
    SessionKey,
    SessionRecords,
    is_over,
    signing_key,
)
from rapport.communication.sessions.sealing import sealing_key
from rapport.communication.sessions.tokens import (
    Claims,
    TokenFault,
    key_of,
    read_token,
    to_text,
    write_token,
)
from rapport.kernel.clock import Clock
from rapport.store.base import RecordStore

_ID_BYTES, _KEY_BYTES = 16, 32
_MOST_REMEMBERED, _MOST_READ = 100_000, 20_000


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long sessions last; each field says what it trades."""

    lifetime_ms: int = 8 * 3_600_000
    """Of a token: shorter limits the harm of a stolen one, longer asks for fewer renewals."""
    longest_ms: int = 30 * 86_400_000
    """Of a session with all its renewals: after this the password is needed again."""
    rotate_ms: int = 7 * 86_400_000
    """How long a key signs; it stays for checking until the last session it served has ended."""
    recheck_ms: int = 5_000
    """How long a session is believed to be open without asking the store: how late a node that
    shares the store sees that another one ended it. Its own endings count at once.
    """
    remember_ms: int = 3_600_000
    """How long an expired session is told from one that was ended, so that its peer can be told to
    renew and its messages can be held.
    """


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer gets at login; shown to nobody else."""

    peer: str
    session: str
    token: str
    expires_ms: int
    seal_key: str
    """For sealing (see sealing.py), base64url; the same through all renewals."""

    def __repr__(self) -> str:
        return f"Opened(peer={self.peer!r}, session={self.session!r})"


class Checked(msgspec.Struct, frozen=True):
    """What a token is worth: the session of its peer, or what is wrong with it."""

    session: Session | None = None
    fault: TokenFault | None = None

    @property
    def is_good(self) -> bool:
        """Whether the token proves who its bearer is, now."""
        return self.session is not None and self.fault is None


class Sessions:
    """Opens, checks and ends sessions. Checking costs some microseconds and no disk as long as the
    session was asked for within `recheck_ms`.
    """

    def __init__(
        self, records: RecordStore, clock: Clock, settings: SessionSettings | None = None
    ) -> None:
        self._records, self._clock = SessionRecords(records), clock
        self.settings = settings or SessionSettings()
        self._keys: dict[str, SessionKey] = {}
        self._keys_read_ms: int | None = None
        self._read: OrderedDict[str, Claims] = OrderedDict()
        self._known: OrderedDict[str, tuple[Session | None, int]] = OrderedDict()
        # Records and what is known of them change together: an ended session stays ended.
        self._guard = threading.Lock()

    # --- life ---

    async def begin(self, peer: str) -> Opened:
        """Opens a session for a peer who has shown to be it; durable when it returns."""
        return await run_blocking(partial(self._begin, peer))

    async def renew(self, token: str) -> Opened | None:
        """A new token for the session of a good one, which stays good until it is over; None when
        the token is not good or the session has had its longest time.
        """
        checked = (await self.check([token]))[0]
        session = checked.session
        if not checked.is_good or session is None or self._now() >= session.ends_ms:
            return None
        return await run_blocking(partial(self._renew, session.peer, session.id))

    async def end(self, token: str) -> bool:
        """Ends the session of a good token; False when it was not good. In force at once."""
        checked = (await self.check([token]))[0]
        if not checked.is_good or checked.session is None:
            return False
        await run_blocking(partial(self._end, [checked.session]))
        return True

    async def end_all(self, peer: str) -> int:
        """Ends all sessions of a peer, as when its password changed; returns how many."""
        return await run_blocking(partial(self._end_all, peer))

    async def forget_over(self) -> int:
        """Lets go of sessions that are over and of keys nobody needs; returns how many sessions.

        Reads all sessions: called now and then, not per message.
        """
        return await run_blocking(self._forget_over)

    # --- asking ---

    async def check(self, tokens: Sequence[str]) -> list[Checked]:
        """What each token is worth now; one look at the disk for all that it is needed for."""
        now_ms = self._now()
        if self._misses_keys(tokens, now_ms):
            await run_blocking(self._read_keys)
        read = [self._read.get(token) or self._looked_at(token) for token in tokens]
        await self._refresh([one for one in read if isinstance(one, Claims)], now_ms)
        return [self._judged(one, now_ms) for one in read]

    async def peer_of(self, token: str) -> str | None:
        """Whose good token this is; None for any other."""
        checked = (await self.check([token]))[0]
        return checked.session.peer if checked.is_good and checked.session else None

    async def open_sessions(self, peer: str) -> list[Session]:
        """The peer's sessions that are not over, the one that lasts longest first."""
        found = await run_blocking(partial(self._records.of_peer, peer))
        alive = [one for one in found if one.expires_ms > self._now()]
        return sorted(alive, key=lambda one: (-one.expires_ms, one.id))

    async def peers(self) -> list[str]:
        """Who has a session, sorted; reads all sessions, as `forget_over` does."""
        return sorted(await run_blocking(self._records.peers))

    async def sealing(self, peer: str, session: str) -> tuple[Session, bytes] | None:
        """An open session of the peer and its sealing key; None when there is none of that id."""
        now_ms = self._now()
        if self._keys_read_ms is None:
            await run_blocking(self._read_keys)
        await self._refresh([Claims(peer, session, 0, 0)], now_ms)
        found = self._known.get(session, (None, 0))[0]
        if found is None or found.peer != peer or found.expires_ms <= now_ms:
            return None
        secret = self._secret_of(found.key)
        return None if secret is None else (found, sealing_key(secret, session, peer))

    async def newest_sealing(self, peer: str) -> tuple[Session, bytes] | None:
        """The open session of the peer that lasts longest, and its sealing key; None when it has
        none. One look at the disk.
        """
        found = await self.open_sessions(peer)
        return await self.sealing(peer, found[0].id) if found else None

    def _looked_at(self, token: str) -> Claims | TokenFault:
        """What a token says; one that we signed is not looked at again at its next message."""
        known, read = self._read, read_token(token, self._secret_of)
        if isinstance(read, Claims):
            known[token] = read
            while len(known) > _MOST_READ:
                known.popitem(last=False)
        return read

    def _judged(self, read: Claims | TokenFault, now_ms: int) -> Checked:
        if not isinstance(read, Claims):
            return Checked(fault=read)
        session = self._known.get(read.session, (None, 0))[0]
        if session is None or session.peer != read.peer:
            return Checked(fault="session.ended")
        is_expired = read.expires_ms <= now_ms
        return Checked(session, "session.expired" if is_expired else None)

    def _misses_keys(self, tokens: Iterable[str], now_ms: int) -> bool:
        """Whether a token names a key that another node may have made since we last looked."""
        if self._keys_read_ms is None:
            return True
        if abs(now_ms - self._keys_read_ms) < self.settings.recheck_ms:
            return False
        named = {key_of(token) for token in tokens}
        return any(key is not None and key not in self._keys for key in named)

    async def _refresh(self, claims: Sequence[Claims], now_ms: int) -> None:
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

    def _begin(self, peer: str) -> Opened:
        with self._guard:
            return self._begun(peer, self._now())

    def _begun(self, peer: str, now_ms: int) -> Opened:
        key = self._signing_key(now_ms)
        ends_ms = now_ms + max(self.settings.longest_ms, self.settings.lifetime_ms)
        session = Session(
            id=to_text(secrets.token_bytes(_ID_BYTES)),
            peer=peer,
            began_ms=now_ms,
            expires_ms=now_ms + self.settings.lifetime_ms,
            ends_ms=ends_ms,
            key=key.id,
        )
        return self._issue(session, key, now_ms)

    def _renew(self, peer: str, session: str) -> Opened | None:
        with self._guard:
            kept = self._records.get(peer, session)
            return None if kept is None else self._renewed(kept, self._now())

    def _renewed(self, session: Session, now_ms: int) -> Opened:
        expires_ms = min(now_ms + self.settings.lifetime_ms, session.ends_ms)
        # Never shorter than what a token already out promises.
        moved = msgspec.structs.replace(session, expires_ms=max(expires_ms, session.expires_ms))
        return self._issue(moved, self._signing_key(now_ms), now_ms)

    def _issue(self, session: Session, key: SessionKey, now_ms: int) -> Opened:
        self._records.put(session)
        self._remember(session.id, session, now_ms)
        claims = Claims(session.peer, session.id, now_ms, session.expires_ms)
        seal = sealing_key(self._keys[session.key].secret, session.id, session.peer)
        return Opened(
            peer=session.peer,
            session=session.id,
            token=write_token(claims, key.id, key.secret),
            expires_ms=session.expires_ms,
            seal_key=to_text(seal),
        )

    def _end(self, sessions: Sequence[Session]) -> None:
        with self._guard:
            self._records.delete(sessions)
            for session in sessions:
                self._remember(session.id, None, self._now())

    def _end_all(self, peer: str) -> int:
        found = self._records.of_peer(peer)
        self._end(found)
        return len(found)

    def _forget_over(self) -> int:
        now_ms = self._now()
        over = self._records.over(now_ms - self.settings.remember_ms)
        self._records.delete(over)
        for key in self._records.all_keys():
            if is_over(key, now_ms, self.settings.rotate_ms, self.settings.longest_ms):
                self._records.delete_key(key)
        self._read_keys()
        return len(over)

    def _load(self, claims: Sequence[Claims], now_ms: int) -> None:
        with self._guard:
            for one in claims:
                self._remember(one.session, self._records.get(one.peer, one.session), now_ms)

    def _remember(self, id: str, session: Session | None, now_ms: int) -> None:
        self._known[id] = (session, now_ms)
        self._known.move_to_end(id)
        while len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)

    def _read_keys(self) -> None:
        self._keys = {key.id: key for key in self._records.all_keys()}
        self._keys_read_ms = self._now()
        self._read = OrderedDict()  # a new one: the event loop may be in the old one

    def _signing_key(self, now_ms: int) -> SessionKey:
        """The key that signs now; a new one is durable before it is used."""
        self._read_keys()
        key = signing_key(list(self._keys.values()), now_ms, self.settings.rotate_ms)
        if key is None:
            id, secret = secrets.token_hex(8), secrets.token_bytes(_KEY_BYTES)
            key = SessionKey(id=id, made_ms=now_ms, secret=secret)
            self._records.put_key(key)
            self._keys[key.id] = key
        return key
