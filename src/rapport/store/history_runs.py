"""Sorted runs of (key of an id, place): what the history index keeps instead of the ids. Pure.
[CH-4]

A key is a checksum of 32 bits (`id_keys.py`), so a run says where an id *may* stand, and whoever
asks looks there; twelve bytes per event, and a sort instead of a walk down a tree for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from rapport.store.id_keys import KEY_BITS, KeyedIds, Keys, keys_of

_NUMBER = (1 << KEY_BITS) - 1
_POSITION_BITS = 44
_POSITION = (1 << _POSITION_BITS) - 1
_ENTRY_BYTES = 12
_PIECE_ENTRIES = 1_360
"""Some 16 kB."""
_MARKS_PER_KEY = 8
MERGED_AT_ONCE = 8
"""So many runs of a level become one of the next."""
_LEVEL_BITS = 3
LAST_LEVEL = 6
"""Runs of 131,072 entries and more are merged no further."""
_MERGED_ENTRIES = 65_536
"""Sorted at a time in merging, so that it takes little memory."""

Places = np.ndarray


def level_of(size: int) -> int:
    """Which runs are of about the same size."""
    return min(size.bit_length() // _LEVEL_BITS, LAST_LEVEL)


class Run:
    """Entries sorted by their key."""

    __slots__ = ("keys", "places")

    def __init__(self, keys: Keys, places: Places, *, in_order: bool = False) -> None:
        """`in_order`: they are sorted already."""
        if in_order:
            self.keys, self.places = keys, places
            return
        # Key and number in one word: sorted five times as fast as by a stable sort of the keys.
        numbered = keys.astype(np.uint64) << np.uint64(KEY_BITS) | np.arange(
            len(keys), dtype=np.uint64
        )
        numbered.sort()
        order = (numbered & np.uint64(_NUMBER)).astype(np.int64)
        self.keys, self.places = keys[order], places[order]

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, key: int) -> Iterator[tuple[int, int]]:
        """(number of the log, position) of all entries with a key."""
        wanted = np.uint32(key)
        first, end = self.keys.searchsorted(wanted), self.keys.searchsorted(wanted, "right")
        for place in self.places[first:end].tolist():
            yield place >> _POSITION_BITS, place & _POSITION

    def only_kept(self, kept: Mapping[int, int]) -> Run:
        """Without the entries of logs that are not named, and of positions before the one named."""
        logs = self.places >> _POSITION_BITS
        first = np.full(int(logs.max(initial=0)) + 1, _POSITION, np.int64)
        for log, position in kept.items():
            if log < len(first):
                first[log] = position
        return self._only((self.places & _POSITION) >= first[logs])

    def within(self, first: int, end: int) -> Run:
        """The entries whose keys are in a stretch."""
        places = self.keys.searchsorted(np.array((first, end), np.uint64))
        here = slice(*places.tolist())
        return Run(self.keys[here], self.places[here], in_order=True)

    def _only(self, stays: np.ndarray) -> Run:
        if stays.all():
            return self
        return Run(self.keys[stays], self.places[stays], in_order=True)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Cut into pieces that are read singly, each with its first key: no key is in two."""
        start = 0
        while start < len(self.keys):
            end = min(start + _PIECE_ENTRIES, len(self.keys))
            end = int(self.keys.searchsorted(self.keys[end - 1], "right"))
            body = self.places[start:end].tobytes() + self.keys[start:end].tobytes()
            yield int(self.keys[start]), body
            start = end

    def marks(self) -> Marks:
        """A rough picture of it."""
        return Marks(self.keys)


def stretches(entries: int) -> list[tuple[int, int]]:
    """All keys in so many stretches that each has its bearable share of the entries."""
    count = entries // _MERGED_ENTRIES + 1
    ends = [(number << KEY_BITS) // count for number in range(count + 1)]
    return list(pairwise(ends))


def made_of(log: int, blocks: Sequence[tuple[int, Sequence[str]]], after: int) -> Run:
    """The entries of blocks of (first position, ids) that stand after a position. Keys that are
    not there yet are made together: for a block of one event alone it costs twenty times as much.
    """
    keys: list[Keys] = []
    places: list[Places] = []
    loose: list[str] = []
    loose_places: list[int] = []
    for first, ids in blocks:
        known = max(after - first + 1, 0)
        fresh = ids[known:]
        start = (log << _POSITION_BITS) + first + known
        if isinstance(fresh, KeyedIds):
            keys.append(fresh.keys)
            places.append(np.arange(start, start + len(fresh), dtype=np.int64))
        else:
            loose += fresh
            loose_places += range(start, start + len(fresh))
    keys.append(keys_of(loose))
    places.append(np.array(loose_places, np.int64))
    return Run(np.concatenate(keys), np.concatenate(places))


def read_pieces(bodies: Sequence[bytes]) -> Run:
    """Pieces of one run or of several, as one."""
    keys, places = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
    for body in bodies:
        count = len(body) // _ENTRY_BYTES
        places.append(np.frombuffer(body, np.int64, count))
        keys.append(np.frombuffer(body, np.uint32, count, 8 * count))
    return Run(np.concatenate(keys), np.concatenate(places))


class Marks:
    """One byte per entry that tells of most strangers that they are not in a run."""

    __slots__ = ("_bits", "_shift")

    def __init__(self, keys: Keys) -> None:
        bits = min(max(len(keys) * _MARKS_PER_KEY - 1, 7).bit_length(), KEY_BITS)
        self._shift = KEY_BITS - bits
        marks = np.zeros(1 << bits, np.bool_)
        marks[keys >> np.uint32(self._shift)] = True
        self._bits = np.packbits(marks, bitorder="little").tobytes()

    def may_hold(self, key: int) -> bool:
        """False when the key is surely in none of its entries."""
        place = key >> self._shift
        return bool(self._bits[place >> 3] >> (place & 7) & 1)

    def __len__(self) -> int:
        return len(self._bits)
