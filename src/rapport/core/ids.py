"""Ids: time-ordered UUIDs for new things, content hashes for things that must get the same id
twice.
"""

from __future__ import annotations

import hashlib

_ID_BYTES = 16
CHANCE_BYTES = 10
"""Random bytes of one time-ordered id."""
_RANDOM_MASK, _VERSION_BITS = (
    bytes.fromhex("0fff3fffffffffffffff"),
    bytes.fromhex("70008000000000000000"),
)
"""The random bits of these bytes, and the bits of UUID version and variant."""


def time_ordered_id(time_ms: int, chance: bytes) -> str:
    """A UUIDv7 as text: sortable by time, unique by 74 bits of `chance` (10 bytes).

    >>> time_ordered_id(1, bytes(10))
    '00000000-0001-7000-8000-000000000000'
    """
    return id_start(time_ms) + id_ends(chance)[0]


def id_start(time_ms: int) -> str:
    """The first part of the time-ordered ids of a millisecond."""
    text = f"{time_ms:012x}"
    return f"{text[:8]}-{text[8:]}-"


def id_ends(chance: bytes) -> list[str]:
    """The second parts, one for every ten random bytes. Two operations on one large number set the
    version bits of all of them, at a quarter of the cost of single ids.
    """
    count = len(chance) // CHANCE_BYTES
    kept = int.from_bytes(_RANDOM_MASK * count, "big") & int.from_bytes(chance, "big")
    digits = f"{kept | int.from_bytes(_VERSION_BITS * count, 'big'):x}"
    return [
        f"{digits[at : at + 4]}-{digits[at + 4 : at + 8]}-{digits[at + 8 : at + 20]}"
        for at in range(0, len(digits), 2 * CHANCE_BYTES)
    ]


class RowIds:
    """Ids for the rows of a file, derived from all rows up to each one: the same ids in a copy of
    the file and after rows were appended, different ids for equal rows.

    >>> ids, appended = RowIds(), RowIds()
    >>> first = [ids.next(b"a"), ids.next(b"a")]
    >>> first[0] != first[1], first == [appended.next(b"a"), appended.next(b"a")]
    (True, True)
    """

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_ID_BYTES)
        self._number = 0

    def next(self, row: bytes) -> str:
        """The id of the next row: a digest of the rows up to it, and its number from 1."""
        self._number += 1
        self._digest.update(len(row).to_bytes(8, "big"))
        self._digest.update(row)
        return f"{self._digest.hexdigest()}:{self._number}"


def content_id(*parts: str) -> str:
    """A 128-bit id that depends on nothing but `parts`, so a repeated action gets the same id.

    >>> content_id("a", "bc") == content_id("ab", "c")
    False
    """
    digest = hashlib.blake2b(digest_size=_ID_BYTES)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()
