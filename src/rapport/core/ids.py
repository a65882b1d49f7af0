"""Identifiers: time-ordered ones for what we mint, hashes for what must come out the same twice."""

from __future__ import annotations

import hashlib

_ID_BYTES = 16


def time_ordered_id(time_ms: int, chance: bytes) -> str:
    """A UUIDv7 as text: sortable by time, unique by 74 bits of `chance` (10 bytes).

    >>> time_ordered_id(1, bytes(10))
    '00000000-0001-7000-8000-000000000000'
    """
    raw = bytearray(time_ms.to_bytes(6, "big") + chance[:10])
    raw[6] = 0x70 | (raw[6] & 0x0F)
    raw[8] = 0x80 | (raw[8] & 0x3F)
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def content_id(*parts: str) -> str:
    """A 128-bit id that depends on nothing but `parts`, so doing a thing twice names it once.

    >>> content_id("a", "bc") == content_id("ab", "c")
    False
    """
    digest = hashlib.blake2b(digest_size=_ID_BYTES)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()
