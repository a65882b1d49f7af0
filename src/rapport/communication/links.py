"""Signed links and tokens: answer links, inbox links, form tokens, and the editions that end inbox
links. [CO-7, CO-10, CO-11, CO-16]

All tokens are HMACs under one secret of the node. An answer link proves that a peer was sent a
message. An inbox link opens a person's inbox without a password until it expires. It is signed for
an edition of its peer; removing the peer or changing a password makes a new edition, which ends all
earlier links without a record of each.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from functools import lru_cache
from urllib.parse import quote

import msgspec

from rapport.communication.sessions.seals import from_text, to_text
from rapport.core.event import content_id
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import in_thread
from rapport.store.base import (
    Delete,
    Guard,
    GuardFailed,
    Put,
    RecordStore,
    all_records,
    as_guarded,
    put_if_absent,
)

_PLAIN = re.compile(r"[\w.@ ()!,+:;=-]*[\w@()!,+:;=-]", re.ASCII)
_MARK = "~"

LONGEST_DAYS = 365
_MARK_LENGTH = 40
_LONGEST_TIME = 15
_TABLE = "inbox.links"
_DAY_MS = 86_400_000


def name_in_link(name: str) -> str:
    """A name as one segment of a path: quoted where that is safe, else in base64 behind a tilde.

    >>> name_in_link("m1"), name_in_link("a/b")
    ('m1', '~YS9i')
    """
    if _PLAIN.fullmatch(name):
        return quote(name, safe="")
    return _MARK + to_text(name.encode("utf-8", "surrogatepass"))


def name_from_link(piece: str) -> str:
    """The name in an unquoted segment of a path; a segment that `name_in_link` did not write is
    returned unchanged.

    >>> name_from_link("m1"), name_from_link("~YS9i"), name_from_link("~?")
    ('m1', 'a/b', '~?')
    """
    if not piece.startswith(_MARK):
        return piece
    raw = from_text(piece.removeprefix(_MARK))
    try:
        return piece if raw is None else raw.decode("utf-8", "surrogatepass")
    except ValueError:
        return piece


def answer_secret(records: RecordStore) -> bytes:
    """The node's secret for all tokens: made once, stored in its records, never logged."""
    return put_if_absent(records, "secrets", "answers", secrets.token_bytes(32))


def answer_token(secret: bytes, message: str, peer: str) -> str:
    """The token that proves that this peer was sent this message."""
    return _mark(secret, message, peer)


def is_answer_token(secret: bytes, message: str, peer: str, token: str) -> bool:
    """Whether the token is right; in constant time."""
    return _is_same(answer_token(secret, message, peer), token)


def answer_link(public_url: str, secret: bytes, message: str, peer: str) -> str:
    """The address of the page on which this peer answers this message."""
    token = answer_token(secret, message, peer)
    names = f"{name_in_link(message)}/{name_in_link(peer)}"
    return f"{public_url.rstrip('/')}/answer/{names}/{token}"


def inbox_token(secret: bytes, peer: str, expires_ms: int, edition: str = "") -> str:
    """The token of an inbox link, valid until `expires_ms`; `edition`: that of the peer."""
    return f"{expires_ms}.{_link_mark(secret, peer, str(expires_ms), edition)}"


def is_inbox_token(secret: bytes, peer: str, token: str, now_ms: int, edition: str = "") -> bool:
    """Whether the token is right and has not expired; in constant time."""
    expires, _, given = token.partition(".")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= _LONGEST_TIME):
        return False
    is_right = _is_same(_link_mark(secret, peer, expires, edition), given)
    return is_right and now_ms < int(expires)


class PublicAddress(msgspec.Struct):
    """The base address of links in messages; empty until the node's endpoints are open."""

    url: str = ""


def inbox_link(
    public_url: str, secret: bytes, peer: str, expires_ms: int, edition: str = ""
) -> str:
    """The address of this peer's inbox, for this peer alone."""
    token = inbox_token(secret, peer, expires_ms, edition)
    return f"{public_url.rstrip('/')}/inbox/{name_in_link(peer)}/{token}"


def form_token(secret: bytes, proof: str) -> str:
    """The token of a form: it proves that the page was made for the holder of `proof` (a session
    token or a link), so that no other site's page can post in their name.
    """
    return _mark(secret, "form", proof)


def is_form_token(secret: bytes, proof: str, token: str) -> bool:
    """Whether it is the form token of `proof`; in constant time."""
    return _is_same(form_token(secret, proof), token)


def _link_mark(secret: bytes, peer: str, expires: str, edition: str) -> str:
    parts = ("inbox", peer, expires, edition) if edition else ("inbox", peer, expires)
    return _mark(secret, *parts)


def _mark(secret: bytes, *parts: str) -> str:
    keyed = _keyed(secret).copy()
    keyed.update(content_id(*parts).encode())
    return keyed.hexdigest()[:_MARK_LENGTH]


@lru_cache(maxsize=8)
def _keyed(secret: bytes) -> hmac.HMAC:
    """The part that all tokens of a secret share: a third of the work."""
    return hmac.new(secret, digestmod=hashlib.sha256)


def _is_same(right: str, given: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(right.encode(), given.encode("utf-8", "replace"))


class _Links(msgspec.Struct, frozen=True):
    """The links of one peer."""

    peer: str
    edition: str
    is_open: bool
    """Whether a link of this edition was made."""
    until_ms: int
    """When the last link of any edition expires: then the record is deleted."""


class LinkEditions:
    """The editions of all peers, in the record store."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records, self._clock = records, clock

    @in_thread
    def edition(self, peer: str) -> str:
        """The edition whose links are valid; one short read."""
        return _edition_of(self._records.get(_TABLE, _key(peer)))

    @in_thread
    def begin(self, peer: str) -> str:
        """Records that a link is made and returns its edition. A concurrent end is not overwritten,
        or ended links would be valid again.
        """
        while True:
            kept = self._records.get(_TABLE, _key(peer))
            edition = _edition_of(kept)
            made = self._made(peer, edition, is_open=True)
            try:
                as_guarded(self._records).apply_guarded([made], [Guard(_TABLE, made.key, kept)])
            except GuardFailed:
                continue
            return edition

    @in_thread
    def end(self, peer: str) -> None:
        """Ends all links that were made before; durable when it returns."""
        self._records.apply([self._made(peer, secrets.token_hex(8), is_open=False)])

    def _made(self, peer: str, edition: str, *, is_open: bool) -> Put:
        until_ms = self._clock.now_ms() + (LONGEST_DAYS + 1) * _DAY_MS
        links = _Links(peer, edition, is_open, until_ms)
        return Put(_TABLE, _key(peer), msgspec.msgpack.encode(links))

    @in_thread
    def peers(self) -> list[str]:
        """The peers that may have a valid link, sorted; reads all, and deletes expired ones."""
        now_ms, found, over = self._clock.now_ms(), list[str](), list[str]()
        for key, value in all_records(self._records, _TABLE):
            links = msgspec.msgpack.decode(value, type=_Links)
            if links.until_ms <= now_ms:
                over.append(key)
            elif links.is_open:
                found.append(links.peer)
        if over:
            self._records.apply([Delete(_TABLE, key) for key in over])
        return sorted(found)


def _edition_of(kept: bytes | None) -> str:
    return msgspec.msgpack.decode(kept, type=_Links).edition if kept else ""


def _key(peer: str) -> str:
    return content_id("peer", peer)
