"""Sessions and the keys that sign their tokens, kept in the record store. [CO-11]

Blocks on the disk: `Sessions` calls it from a worker thread. Several nodes may share one store: a
key that one makes is found by the others by its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.core.ids import content_id
from rapport.store.base import Delete, RecordStore

_SESSIONS, _KEYS = "sessions", "secrets"
_KEY_PREFIX = "sessions/"
_PAGE = 500


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One login of one peer. Times are ms UTC."""

    id: str
    peer: str
    began_ms: int
    expires_ms: int
    """When its newest token is over; renewing moves it."""
    ends_ms: int
    """When it is over for good: no renewal goes beyond."""
    key: str
    """Id of the key that its sealing key is derived from."""


class SessionKey(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that signs tokens from `made_ms` on."""

    id: str
    made_ms: int
    secret: bytes

    def __repr__(self) -> str:
        return f"SessionKey(id={self.id!r}, made_ms={self.made_ms})"


def signing_key(keys: Sequence[SessionKey], now_ms: int, rotate_ms: int) -> SessionKey | None:
    """The newest key, which signs; None when it is time for a new one."""
    newest = max(keys, key=lambda key: (key.made_ms, key.id), default=None)
    if newest is None or now_ms - newest.made_ms >= rotate_ms:
        return None
    return newest


def is_over(key: SessionKey, now_ms: int, rotate_ms: int, longest_ms: int) -> bool:
    """Whether no session can need the key any more: the last one it signed has ended for good."""
    return now_ms - key.made_ms >= rotate_ms + longest_ms


class SessionRecords:
    """Sessions by peer and id, keys by id."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def get(self, peer: str, session: str) -> Session | None:
        """The session; None when it has ended or never was."""
        kept = self._records.get(_SESSIONS, _key(peer, session))
        return msgspec.msgpack.decode(kept, type=Session) if kept else None

    def put(self, session: Session) -> None:
        """Durable when it returns."""
        key = _key(session.peer, session.id)
        self._records.put(_SESSIONS, key, msgspec.msgpack.encode(session))

    def delete(self, sessions: Sequence[Session]) -> None:
        """Ends them, all or none; durable when it returns."""
        changes = [Delete(_SESSIONS, _key(one.peer, one.id)) for one in sessions]
        if changes:
            self._records.apply(changes)

    def of_peer(self, peer: str) -> list[Session]:
        """All sessions of a peer."""
        return list(self._find(f"{_of(peer)}/"))

    def peers(self) -> set[str]:
        """Who has a session; reads all of them."""
        return {one.peer for one in self._find("")}

    def over(self, before_ms: int) -> list[Session]:
        """Sessions whose newest token was over before that moment; reads all of them."""
        return [one for one in self._find("") if one.expires_ms < before_ms]

    def all_keys(self) -> list[SessionKey]:
        """All keys."""
        found = self._records.find(_KEYS, prefix=_KEY_PREFIX)
        return [msgspec.msgpack.decode(value, type=SessionKey) for _key, value in found]

    def put_key(self, key: SessionKey) -> None:
        """Durable when it returns."""
        self._records.put(_KEYS, _KEY_PREFIX + key.id, msgspec.msgpack.encode(key))

    def delete_key(self, key: SessionKey) -> None:
        """Tokens that it signed are forged ones from now on."""
        self._records.delete(_KEYS, _KEY_PREFIX + key.id)

    def _find(self, prefix: str) -> Iterator[Session]:
        after = ""
        while page := self._records.find(_SESSIONS, prefix=prefix, after=after, limit=_PAGE):
            yield from (msgspec.msgpack.decode(value, type=Session) for _key, value in page)
            after = page[-1][0]


def _key(peer: str, session: str) -> str:
    return f"{_of(peer)}/{session}"


def _of(peer: str) -> str:
    # A digest: names may hold the slash that separates the parts.
    return content_id("peer", peer)
