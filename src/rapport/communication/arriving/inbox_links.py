"""Links by which a person opens the inbox without a password: signed, and over after a while.
[CO-11, CO-16]

Whoever has the link is the person, until it is over; so it is shown to that person alone, like the
links to answer. It ends before when all that lets the person in ends: see `ended_links.py`.
"""

from __future__ import annotations

import hashlib
import hmac

from rapport.communication.arriving.link_names import name_in_link
from rapport.core.ids import content_id

LINK_LIFETIME_MS = 30 * 86_400_000
LONGEST_DAYS = 365
_MARK = 40
_LONGEST_TIME = 15


def inbox_token(secret: bytes, peer: str, expires_ms: int, edition: str = "") -> str:
    """What proves that the bearer was given the link of this peer, and until when it counts.
    `edition`: links of another one count no more.
    """
    return f"{expires_ms}.{_link_mark(secret, peer, str(expires_ms), edition)}"


def is_inbox_token(secret: bytes, peer: str, token: str, now_ms: int, edition: str = "") -> bool:
    """Whether the token is right and not over; takes the same time for every wrong one."""
    expires, _, given = token.partition(".")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= _LONGEST_TIME):
        return False
    right = _link_mark(secret, peer, expires, edition)
    is_right = hmac.compare_digest(right.encode(), given.encode("utf-8", "replace"))
    return is_right and now_ms < int(expires)


def inbox_link(
    public_url: str, secret: bytes, peer: str, expires_ms: int, edition: str = ""
) -> str:
    """The address of this peer's inbox, to be given to nobody else."""
    token = inbox_token(secret, peer, expires_ms, edition)
    return f"{public_url.rstrip('/')}/inbox/{name_in_link(peer)}/{token}"


def form_token(secret: bytes, proof: str) -> str:
    """What every form of a page carries: it proves that the page was made for who has `proof` (a
    session token or a link), so that no other site's page can post in their name.
    """
    return _mark(secret, "form", proof)


def is_form_token(secret: bytes, proof: str, token: str) -> bool:
    """Whether it is the form token of `proof`; in constant time."""
    right = form_token(secret, proof)
    return hmac.compare_digest(right.encode(), token.encode("utf-8", "replace"))


def _link_mark(secret: bytes, peer: str, expires: str, edition: str) -> str:
    parts = ("inbox", peer, expires, edition) if edition else ("inbox", peer, expires)
    return _mark(secret, *parts)


def _mark(secret: bytes, *parts: str) -> str:
    raw = content_id(*parts).encode()
    return hmac.new(secret, raw, hashlib.sha256).hexdigest()[:_MARK]
