"""Identifiers: time-ordered ones for what we mint, hashes for what must come out the same twice."""

from __future__ import annotations

import hashlib

_ID_BYTES = 16
_VARIANTS = {f"{digit:x}": f"{8 | digit & 3:x}" for digit in range(16)}
"""The digit that says which kind of UUID it is, with its two bits of chance."""


def time_ordered_id(time_ms: int, chance: bytes) -> str:
    """A UUIDv7 as text: sortable by time, unique by 74 bits of `chance` (10 bytes).

    >>> time_ordered_id(1, bytes(10))
    '00000000-0001-7000-8000-000000000000'
    """
    text, drawn = f"{time_ms:012x}", chance.hex()
    variant = _VARIANTS[drawn[4]]
    return f"{text[:8]}-{text[8:]}-7{drawn[1:4]}-{variant}{drawn[5:8]}-{drawn[8:20]}"


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
