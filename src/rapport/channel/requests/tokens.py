"""Tokens that name sets of messages, and the leases of sessions. [CH-1, CH-2, CH-3, CH-15]

A token is the description of a set as a signed text, so the source keeps no state. Only sessions of
channels in memory have leases; time is an argument.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
import hmac
import secrets

import msgspec

from rapport.channel.requests.request import LONGEST_LEASE_MINUTES
from rapport.core.errors import ChannelUnavailable, InvalidInput, LeaseExpired, NotAllowed
from rapport.store.base import RecordStore, put_if_absent

LONGEST_TOKEN = 64 * 1024
_TABLE, _KEY = "secrets", "requests"
_SIGNATURE_BYTES = 16
_LENGTH_BYTES = 4
_VERSION = 1
MOST_SESSIONS = 10_000
"""Sessions that a channel in memory keeps at once."""
_MINUTE_MS = 60_000
_LITTLE = 64


class TokenPlace(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The content of a token. New fields go at the end with a default."""

    version: int = _VERSION
    channel: str
    identity: bytes
    """The identity that the token was issued to, as a digest."""
    session: bytes
    kind: str
    query: str
    after: int
    through: int
    """The set: the `count` matches after `after` up to `through`."""
    count: int
    reach: int
    """Where to go on: everything up to here has been looked at."""
    messages: int
    time_range_ms: int
    handback: str = ""
    """The text that is returned with each message."""


def request_secret(records: RecordStore) -> bytes:
    """The secret that signs tokens: made once for all nodes on these records, never logged."""
    return put_if_absent(records, _TABLE, _KEY, secrets.token_bytes(32))


def identity_digest(identity: str) -> bytes:
    """The identity as a token keeps it."""
    raw = identity.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=16).digest()


def token_digest(token: str) -> str:
    """A short name of a token, for keys of records."""
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest()


class TokenSigner:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def write(self, place: TokenPlace) -> str:
        """The token of a place: letters, digits, `-` and `_`."""
        body = msgspec.msgpack.encode(place)
        signed = len(body).to_bytes(_LENGTH_BYTES, "big") + body + self._signature(body)
        return base64.urlsafe_b64encode(signed).rstrip(b"=").decode()

    def read(self, token: str, *, channel: str, identity: str) -> TokenPlace:
        """The content of a token that this node issued to this identity for this channel. Raises
        InvalidInput (damaged, another channel's) or NotAllowed (forged, another identity's).
        """
        body, signature = _parts(token)
        if not hmac.compare_digest(signature, self._signature(body)):
            raise NotAllowed(
                "this token was not given out by this node, or was changed",
                code="token.forged",
                hint="begin again with a query; a restart ends the tokens of channels in memory",
            )
        place = _decode(body)
        if place.channel != channel:
            raise InvalidInput(
                f"this token belongs to another channel, not to {channel!r}",
                code="token.other_channel",
            )
        if not hmac.compare_digest(place.identity, identity_digest(identity)):
            raise NotAllowed("this token was issued to another identity", code="token.not_yours")
        return place

    def _signature(self, body: bytes) -> bytes:
        return hmac.new(self._secret, body, hashlib.sha256).digest()[:_SIGNATURE_BYTES]


def _parts(token: str) -> tuple[bytes, bytes]:
    """Body and signature of a complete token; the signature is not checked yet."""
    if len(token) > LONGEST_TOKEN:
        raise _damaged("it is too long")
    try:
        raw = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), b"-_", True)
    except (UnicodeEncodeError, binascii.Error):
        raise _damaged("it has characters that no token has") from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != token:
        raise _damaged("its end is not as it was written")
    length = int.from_bytes(raw[:_LENGTH_BYTES], "big")
    if len(raw) != _LENGTH_BYTES + length + _SIGNATURE_BYTES:
        raise _damaged("a part of it is missing, or there is too much")
    return raw[_LENGTH_BYTES:-_SIGNATURE_BYTES], raw[-_SIGNATURE_BYTES:]


def _decode(body: bytes) -> TokenPlace:
    """A body that we signed: only an older or newer version of us wrote it differently."""
    try:
        place = msgspec.msgpack.decode(body, type=TokenPlace)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise _damaged("another version of the node wrote it") from None
    if place.version != _VERSION:
        raise _damaged("another version of the node wrote it")
    return place


def _damaged(why: str) -> InvalidInput:
    return InvalidInput(
        f"this is no token: {why}",
        code="token.damaged",
        hint="send a token exactly as it came, or begin again with a query",
    )


def granted_minutes(suggested: int) -> int:
    return min(suggested, LONGEST_LEASE_MINUTES)


class SessionLeases:
    """The sessions of channels in memory and when each ends; bounded by MOST_SESSIONS."""

    def __init__(self, *, most: int = MOST_SESSIONS) -> None:
        self._until: dict[bytes, int] = {}
        self._due: list[tuple[int, bytes]] = []
        self._most = most

    def grant(self, session: bytes, minutes: int, now_ms: int) -> int:
        """Begins or renews a session; the minutes granted.

        Raises ChannelUnavailable when there are too many.
        """
        self._forget_expired(now_ms)
        if session not in self._until and len(self._until) >= self._most:
            raise ChannelUnavailable(
                f"{self._most} sessions are open", code="channel.too_many_sessions"
            )
        granted = granted_minutes(minutes)
        self._until[session] = now_ms + granted * _MINUTE_MS
        heapq.heappush(self._due, (self._until[session], session))
        if len(self._due) > 2 * len(self._until) + _LITTLE:
            # Ends that no longer hold, of sessions that were renewed or have ended, are dropped.
            self._due = [(until_ms, one) for one, until_ms in self._until.items()]
            heapq.heapify(self._due)
        return granted

    def check(self, session: bytes, now_ms: int) -> None:
        """Raises LeaseExpired unless the session is alive."""
        self._forget_expired(now_ms)
        if session not in self._until:
            raise LeaseExpired(
                "the lease of this session has run out, and this channel keeps nothing longer",
                hint="start over with a query and request a longer lease",
            )

    def end(self, session: bytes) -> None:
        """Ends a session; its tokens are refused from now on."""
        self._until.pop(session, None)

    def __len__(self) -> int:
        return len(self._until)

    def _forget_expired(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            due, session = heapq.heappop(self._due)
            if self._until.get(session) == due:  # otherwise renewed or ended meanwhile
                del self._until[session]
