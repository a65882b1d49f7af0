"""Keys of ids: a checksum of 32 bits that the history index keeps instead of the text. Pure. [CH-4]

Made for many ids together, word by word, in a fifth of the time that a checksum of each takes; best
while the ids are at hand anyway, so they can be carried along with these (`KeyedIds`). Keys are
stored: the way they are made does not change without a new version of the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

KEY_BITS = 32
_KEY = (1 << KEY_BITS) - 1
_WORD = 4
_MULTIPLIER, _SHIFT = 0x9E3779B1, 15
"""Odd, so that no two words become one; the shift brings high bits down again."""

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
    """The key of any text: its bytes in words of four, multiplied and mixed one after the other."""
    body = id.encode("utf-8", "surrogatepass")
    key = len(body)
    for at in range(0, len(body), _WORD):
        key = _mixed(key ^ int.from_bytes(body[at : at + _WORD], "little"))
    return _mixed(key)


def keys_of(ids: Sequence[str]) -> Keys:
    """The keys of many: those of one length at once, since most ids of a log are alike."""
    if isinstance(ids, KeyedIds):
        return ids.keys
    if not "".join(ids).isascii():
        return np.fromiter(map(key_of, ids), np.uint32, len(ids))
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    keys = np.empty(len(ids), np.uint32)
    for length in np.unique(lengths).tolist():
        here = np.flatnonzero(lengths == length)
        alike = ids if len(here) == len(ids) else [ids[at] for at in here.tolist()]
        keys[here] = _keys_of_length("".join(alike).encode(), len(alike), length)
    return keys


def _keys_of_length(together: bytes, count: int, length: int) -> Keys:
    words = np.zeros((count, -(-length // _WORD) * _WORD), np.uint8)
    words[:, :length] = np.frombuffer(together, np.uint8).reshape(count, length)
    keys = np.full(count, length, np.uint32)
    for column in np.ascontiguousarray(words.view("<u4").T):
        keys = _all_mixed(keys ^ column)
    return _all_mixed(keys)


def _mixed(key: int) -> int:
    key = key * _MULTIPLIER & _KEY
    return key ^ key >> _SHIFT


def _all_mixed(keys: Keys) -> Keys:
    keys = keys * np.uint32(_MULTIPLIER)
    mixed: Keys = keys ^ keys >> np.uint32(_SHIFT)
    return mixed
