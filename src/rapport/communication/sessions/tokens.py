"""Session tokens: what they say, and how a forged one is told from ours; pure. [CO-11]

A token is `rst1.KEY.CLAIMS.MAC`: the id of the key that signs it, the claims (MessagePack, peer,
session, issued, expires) and HMAC-SHA256 of all before it, the last two in base64url without
padding. The MAC is compared as text, so no letter of a token can be changed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Literal

import msgspec

TOKEN_PREFIX = "rst1."
LONGEST_TOKEN = 2_048
INVALID = "session.invalid"
"""The one code that the outside is told, whatever is wrong with a token."""

TokenFault = Literal[
    "session.malformed",
    "session.forged",
    "session.of_another_peer",
    "session.ended",
    "session.expired",
]
"""What is wrong with a token, for our own log only."""


class TokenClaims(msgspec.Struct, frozen=True, array_like=True):
    """What a token says. Times are ms UTC."""

    peer: str
    session: str
    issued_ms: int
    expires_ms: int


_decode = msgspec.msgpack.Decoder(TokenClaims).decode


def write_token(claims: TokenClaims, key: str, secret: bytes) -> str:
    """The token of these claims, signed with the key of that id, a word without dots."""
    body = f"{TOKEN_PREFIX}{key}.{to_text(msgspec.msgpack.encode(claims))}"
    return f"{body}.{_mac(secret, body)}"


def read_token(token: str, secret_of: Callable[[str], bytes | None]) -> TokenClaims | TokenFault:
    """What the token says, when one of our keys signed it; `secret_of` finds a key by its id.

    Says nothing about time: ask `claims.expires_ms`. Takes the same time for every wrong MAC.
    """
    parts = token.split(".")
    if len(parts) != 4 or not token.startswith(TOKEN_PREFIX) or len(token) > LONGEST_TOKEN:
        return "session.malformed"
    secret, body = secret_of(parts[1]), token[: -len(parts[3]) - 1]
    if secret is None or not body.isascii():
        return "session.forged"
    if not hmac.compare_digest(_mac(secret, body).encode(), parts[3].encode("utf-8", "replace")):
        return "session.forged"
    raw = from_text(parts[2])
    try:
        return _decode(raw or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "session.malformed"  # signed by us, but by another version


def key_of(token: str) -> str | None:
    """The id of the key that a token says it was signed with; None when it is no token at all."""
    parts = token.split(".", 2)
    return parts[1] if len(parts) == 3 and token.startswith(TOKEN_PREFIX) else None


def to_text(raw: bytes) -> str:
    """Bytes as base64url without padding.

    >>> to_text(b"\\xff\\xfe")
    '__4'
    """
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_text(text: str) -> bytes | None:
    """The bytes that `to_text` wrote; None unless the text is exactly how it would write them."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    return raw if to_text(raw) == text else None


def _mac(secret: bytes, body: str) -> str:
    return to_text(hmac.digest(secret, body.encode(), hashlib.sha256))
