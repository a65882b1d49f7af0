"""Signed bodies of what the node sends by HTTP: an HMAC with a secret that both sides have. [CH-2,
CH-13]
"""

from __future__ import annotations

import hashlib
import hmac

SIGNATURE = "X-Rapport-Signature"
TIMED_SIGNATURE = "X-Rapport-Timed-Signature"
"""Header of webhooks beside the signature of the body alone: it covers the time as well."""
SENT_AT = "X-Rapport-Time"
"""Header: when a pushed body was sent, in milliseconds; part of what is signed."""
FRESH_MS = 300_000
"""How far apart the clocks of sender and receiver may be, the way included."""


def signature(secret: str, body: bytes) -> str:
    """The value of the signature header: `sha256=` and the HMAC of the body, in hex."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def signed_headers(secret: str, body: bytes, now_ms: int) -> dict[str, str]:
    """The headers of a pushed body: the signature covers the time, a full stop, and the body, so
    that a copy cannot be sent again later.
    """
    return {SENT_AT: str(now_ms), SIGNATURE: timed_signature(secret, body, now_ms)}


def timed_signature(secret: str, body: bytes, now_ms: int) -> str:
    """The signature of a body that is sent now: over the time, a full stop, and the body."""
    return signature(secret, _timed(str(now_ms), body))


def is_signed(
    secret: str, sent_at: str, given: str, body: bytes, now_ms: int, *, fresh_ms: int = FRESH_MS
) -> bool:
    """For receivers: whether a body came from who has the secret, not long ago. `sent_at` and
    `given` are the two headers.
    """
    is_time = sent_at.isascii() and sent_at.isdigit() and len(sent_at) <= 18
    if not is_time or abs(now_ms - int(sent_at)) > fresh_ms:
        return False
    right = signature(secret, _timed(sent_at, body))
    return hmac.compare_digest(right.encode(), given.encode("utf-8", "surrogateescape"))


def _timed(sent_at: str, body: bytes) -> bytes:
    return sent_at.encode() + b"." + body
