"""Identifiers: time-ordered ones for what we mint, hashes for what must come out the same twice."""

from __future__ import annotations

import hashlib

_ID_BYTES = 16
CHANCE_BYTES = 10
"""What one time-ordered id takes of chance."""
_DRAWN, _SAID = bytes.fromhex("0fff3fffffffffffffff"), bytes.fromhex("70008000000000000000")
"""Of these bytes the bits that are drawn, and those that say which kind of UUID it is."""

_ID_LETTERS, _END_LETTERS = 36, 22
_HYPHENS = (18, 23)
_PLACES = tuple(place for place in range(14, _ID_LETTERS) if place not in _HYPHENS)
"""Where in an id the digits stand that are drawn."""


def time_ordered_id(time_ms: int, chance: bytes) -> str:
    """A UUIDv7 as text: sortable by time, unique by 74 bits of `chance` (10 bytes).

    >>> time_ordered_id(1, bytes(10))
    '00000000-0001-7000-8000-000000000000'
    """
    return id_start(time_ms) + id_ends(chance)[0]


def id_start(time_ms: int) -> str:
    """How the time-ordered ids of a millisecond begin."""
    text = f"{time_ms:012x}"
    return f"{text[:8]}-{text[8:]}-"


def id_ends(chance: bytes) -> list[str]:
    """How they end, one for every ten bytes of chance: for many at once the kind is written into
    all of them by two operations on one number, which costs a quarter.
    """
    count = len(chance) // CHANCE_BYTES
    kept = int.from_bytes(_DRAWN * count, "big") & int.from_bytes(chance, "big")
    digits = f"{kept | int.from_bytes(_SAID * count, 'big'):x}"
    return [
        f"{digits[at : at + 4]}-{digits[at + 4 : at + 8]}-{digits[at + 8 : at + 20]}"
        for at in range(0, len(digits), 2 * CHANCE_BYTES)
    ]


def time_ordered_ids(time_ms: int, chance: bytes) -> list[str]:
    """As `time_ordered_id`, one for every ten bytes of chance: the digits of all of them are laid
    into one text column by column, which costs a fifth of doing it one by one.

    >>> time_ordered_ids(1, bytes(20))[1]
    '00000000-0001-7000-8000-000000000000'
    """
    count = len(chance) // CHANCE_BYTES
    kept = int.from_bytes(_DRAWN * count, "big") & int.from_bytes(chance, "big")
    said = kept | int.from_bytes(_SAID * count, "big")
    digits = said.to_bytes(CHANCE_BYTES * count, "big").hex().encode()
    text = bytearray((id_start(time_ms) + " " * _END_LETTERS).encode() * count)
    for column, place in enumerate(_PLACES):
        text[place::_ID_LETTERS] = digits[column :: 2 * CHANCE_BYTES]
    for place in _HYPHENS:
        text[place::_ID_LETTERS] = b"-" * count
    whole = text.decode()
    return [whole[at : at + _ID_LETTERS] for at in range(0, len(whole), _ID_LETTERS)]


class RowIds:
    """Names the rows of a file by all that stands in it up to each of them: the same in a copy of
    the file and in the file after rows were appended, another one for an equal row further down.

    >>> ids, appended = RowIds(), RowIds()
    >>> first = [ids.next(b"a"), ids.next(b"a")]
    >>> first[0] != first[1], first == [appended.next(b"a"), appended.next(b"a")]
    (True, True)
    """

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_ID_BYTES)
        self._number = 0

    def next(self, row: bytes) -> str:
        """The name of the next row: a digest of the rows up to it, and its number from 1."""
        self._number += 1
        self._digest.update(len(row).to_bytes(8, "big"))
        self._digest.update(row)
        return f"{self._digest.hexdigest()}:{self._number}"


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
