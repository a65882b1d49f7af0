"""Keys of ids: 32 bits that the history index keeps instead of the text. Pure. [CH-4]

A key is the sum of an id's words, each times a multiplier of its place: for many ids of one length
that is one product of a matrix and a vector, a twentieth of the time that a checksum of each takes.
Keys are stored: multipliers do not change without a new version of the index. They are best made
while the ids are at hand anyway, so keys can be carried along with these (`KeyedIds`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from operator import mul
from typing import overload

import numpy as np

KEY_BITS = 32
_SUM_BITS = 64
_SUM = (1 << _SUM_BITS) - 1
_WORD = 4
_MOST_WORDS = 256
"""As many as the longest id of an event has."""
_LONGEST = _MOST_WORDS * _WORD
_FEW_LENGTHS = 6
"""Ids of more than these are not sorted out by their length: that takes a look at all for each."""

Keys = np.ndarray


class KeyedIds(Sequence[str]):
    """Ids whose keys were made before."""

    __slots__ = ("_ids", "keys")

    def __init__(self, ids: Sequence[str], keys: Keys) -> None:
        self._ids, self.keys = ids, keys

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> KeyedIds: ...
    def __getitem__(self, place: int | slice) -> str | KeyedIds:
        if isinstance(place, slice):
            return KeyedIds(self._ids[place], self.keys[place])
        return self._ids[place]


def key_of(id: str) -> int:
    """The key of any text."""
    body = _body(id)
    count = -(-len(body) // _WORD)
    words = struct.unpack(f"<{count}I", body.ljust(count * _WORD, b"\0"))
    total: int = sum(map(mul, (len(body), *words), _MULTIPLIERS))
    return (total & _SUM) >> _SUM_BITS - KEY_BITS


def keys_of(ids: Sequence[str]) -> Keys:
    """The keys of many: those of one length at once, since most ids of a log are alike."""
    if isinstance(ids, KeyedIds):
        return ids.keys
    together, lengths = "".join(ids), list(map(len, ids))
    kinds = set(lengths)
    is_odd = len(kinds) > _FEW_LENGTHS or max(kinds, default=0) > _LONGEST
    if is_odd or not together.isascii():
        return _keys_of_bodies(list(map(_body, ids)))
    if len(kinds) == 1:
        return _keys_of_length(together, len(ids), lengths[0])
    keys = np.empty(len(ids), np.uint32)
    for length in kinds:
        here = [place for place, its in enumerate(lengths) if its == length]
        keys[here] = _keys_of_length("".join([ids[place] for place in here]), len(here), length)
    return keys


def _keys_of_length(together: str, count: int, length: int) -> Keys:
    letters = np.frombuffer(together.encode(), np.uint8).reshape(count, length)
    if length % _WORD:
        padded = np.zeros((count, length + -length % _WORD), np.uint8)
        padded[:, :length] = letters
        letters = padded
    words = letters.view("<u4").astype(np.uint64)
    sums = words @ _COLUMN[1 : words.shape[1] + 1] + np.uint64(_MULTIPLIERS[0] * length & _SUM)
    return _as_keys(sums)


def _keys_of_bodies(bodies: Sequence[bytes]) -> Keys:
    """Of any lengths: all words in a row, and the sum of a body is a difference of running ones."""
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    counts = -(-lengths // _WORD)
    ends = counts.cumsum()
    starts = ends - counts
    row = b"".join([body + _PADDING[len(body) % _WORD] for body in bodies])
    words = np.frombuffer(row, "<u4").astype(np.uint64)
    places = np.arange(1, len(words) + 1) - np.repeat(starts, counts)
    running = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words * _COLUMN[places], out=running[1:])
    return _as_keys(running[ends] - running[starts] + lengths.astype(np.uint64) * _COLUMN[0])


def _as_keys(sums: np.ndarray) -> Keys:
    keys: Keys = (sums >> np.uint64(_SUM_BITS - KEY_BITS)).astype(np.uint32)
    return keys


def _body(id: str) -> bytes:
    """Its bytes; of one that is longer than any event's a digest."""
    body = id.encode("utf-8", "surrogatepass")
    return body if len(body) <= _LONGEST else hashlib.blake2b(body).digest()


def _drawn(place: int) -> int:
    """A multiplier: always the same one, and without a pattern."""
    digest = hashlib.blake2b(b"%d" % place, digest_size=_SUM_BITS // 8).digest()
    return int.from_bytes(digest, "little") | 1


_MULTIPLIERS = [_drawn(place) for place in range(1 + _MOST_WORDS)]
"""The first is for the length."""
_COLUMN = np.array(_MULTIPLIERS, np.uint64)
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
"""By how many bytes there are in the last word."""
