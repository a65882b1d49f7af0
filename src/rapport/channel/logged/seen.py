"""Which events a channel has seen lately: compact, bounded, no I/O. [CH-6]

An identity is a 64-bit hash of (source, id); a hit is only a suspicion that the caller checks
against the log, so two identities of one hash cannot cost an event. The hash is salted per process:
the window is rebuilt, never saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rapport.core.event import Event

DEDUPE_WINDOW = 1_000_000
"""Events per channel among which a repetition is recognised."""

_FEW_KEYS = 8
"""Up to this many keys, asking one by one is cheaper than asking with arrays."""
_MARKS_PER_KEY = 32
"""Bits of the rough picture for each event of the window."""


class SeenIdentity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first two fields of an event as a block holds them; decoding stops caring after these."""

    source: str
    id: str


_IDENTITIES = msgspec.msgpack.Decoder(list[SeenIdentity])


def decode_identities(block: bytes) -> list[SeenIdentity]:
    """The identities in a block, cheaper than its events; raises msgspec.DecodeError."""
    return _IDENTITIES.decode(block)


def identity_keys(events: Sequence[Event | SeenIdentity]) -> list[int]:
    """A 64-bit key per event."""
    return [hash((event.source, event.id)) for event in events]


class _Run:
    """Sorted keys with their positions; all positions are at most `last`."""

    __slots__ = ("keys", "last", "positions")

    def __init__(self, keys: np.ndarray, positions: np.ndarray) -> None:
        order = np.argsort(keys)  # a stable sort takes five times as long, and equals are rare
        self.keys, self.positions = keys[order], positions[order]
        self.last = int(positions.max())

    @staticmethod
    def merged(older: _Run, newer: _Run) -> _Run:
        return _Run(
            np.concatenate((older.keys, newer.keys)),
            np.concatenate((older.positions, newer.positions)),
        )

    def hits(self, asked: np.ndarray) -> list[tuple[int, int]]:
        """(number of the key among those asked for, position) of the keys that are here."""
        found = self.keys.searchsorted(asked)
        found[found == len(self.keys)] = 0
        here = np.flatnonzero(self.keys[found] == asked)
        return list(zip(here.tolist(), self.positions[found[here]].tolist(), strict=True))

    def find(self, key: int) -> int:
        """The position of one key, 0 when it is not here."""
        place = self.keys.searchsorted(key)
        is_here = place < len(self.keys) and self.keys[place] == key
        return int(self.positions[place]) if is_here else 0


class _Marks:
    """A rough picture of all runs: two bits for every key, one by its beginning and one by that of
    its product. Most keys asked for are strangers, and a look at one bit tells that of nearly all,
    at two of all but one in a hundred, however many runs there are; a binary search costs ten times
    as much, all of it waiting for memory.
    """

    def __init__(self, window: int) -> None:
        bits = max((window * _MARKS_PER_KEY - 1).bit_length(), 3)
        self._shift = 64 - bits
        self._bytes = np.zeros(1 << bits - 3, np.uint8)

    def add(self, keys: np.ndarray) -> None:
        """Marks keys."""
        for places in (self._beginnings(keys), self._beginnings(keys * _SPREAD)):
            bits = np.left_shift(1, places & 7).astype(np.uint8)
            np.bitwise_or.at(self._bytes, places >> 3, bits)

    def suspects(self, asked: np.ndarray) -> np.ndarray:
        """The numbers of those keys that may occur."""
        found = np.flatnonzero(self._are_marked(self._beginnings(asked)))
        if not len(found):
            return found
        suspects: np.ndarray = found[self._are_marked(self._beginnings(asked[found] * _SPREAD))]
        return suspects

    def may_hold(self, key: int) -> bool:
        """False when the key surely does not occur."""
        return self._is_marked(key) and self._is_marked(key * int(_SPREAD))

    def _are_marked(self, places: np.ndarray) -> np.ndarray:
        marked: np.ndarray = (self._bytes[places >> 3] >> (places & 7) & 1).astype(np.bool_)
        return marked

    def _is_marked(self, key: int) -> bool:
        place = (key & _ALL_BITS) >> self._shift
        return bool(self._bytes[place >> 3] >> (place & 7) & 1)

    def _beginnings(self, keys: np.ndarray) -> np.ndarray:
        return (keys.view(np.uint64) >> np.uint64(self._shift)).view(np.int64)


_SPREAD = np.int64(0x1E3779B97F4A7C15)
"""Odd: what begins alike begins otherwise multiplied by it."""
_ALL_BITS = (1 << 64) - 1


class SeenWindow:
    """Key to position of at least the last `window` events, and at most a third more.

    Newest keys sit in a set, older ones in a few sorted arrays of 16 bytes per event and one
    picture of them all: about 25 MB for the default window. Asking costs one look at the set and
    one at a bit, for the whole batch at once; a key that is there costs a binary search.
    """

    def __init__(self, window: int = DEDUPE_WINDOW) -> None:
        self._window = window
        self._recent_limit = max(window // 32, 1)
        self._run_limit = max(window // 4, 1)
        self._recent: set[int] = set()
        self._pieces: list[tuple[int, Sequence[int]]] = []
        """The recent keys again, in order, each piece with its first position."""
        self._places: dict[int, int] | None = None
        """The positions of the recent keys, once somebody asked for one of them."""
        self._runs: list[_Run] = []
        self._marks: _Marks | None = None
        self._forgotten = 0
        """Events whose marks still stand though they are forgotten."""

    def find(self, keys: Sequence[int]) -> list[int]:
        """For each key the position it was seen at, 0 when it was not."""
        # Most batches hold nothing that was seen; asking for all at once is cheaper.
        if self._recent.isdisjoint(keys):
            found = [0] * len(keys)
        else:
            places = self._recent_places()
            found = [places.get(key, 0) for key in keys]
        if self._marks is None:
            return found
        if len(keys) <= _FEW_KEYS:
            return [place or self._find_one(key) for key, place in zip(keys, found, strict=True)]
        asked = np.fromiter(keys, np.int64, len(keys))
        suspects = self._marks.suspects(asked)
        if len(suspects):
            wanted, numbers = asked[suspects], suspects.tolist()
            for run in self._runs:
                for number, position in run.hits(wanted):
                    found[numbers[number]] = found[numbers[number]] or position
        return found

    def _find_one(self, key: int) -> int:
        if self._marks is None or not self._marks.may_hold(key):
            return 0
        for run in reversed(self._runs):
            if position := run.find(key):
                return position
        return 0

    def _recent_places(self) -> dict[int, int]:
        if self._places is None:
            self._places = {}
            for first, keys in self._pieces:
                self._places.update(zip(keys, range(first, first + len(keys)), strict=True))
        return self._places

    def add(self, keys: Sequence[int], first: int) -> None:
        """Takes in keys of events that stand at consecutive positions from `first`; the caller
        changes them no more.
        """
        self._recent.update(keys)
        self._pieces.append((first, keys))
        if self._places is not None:
            self._places.update(zip(keys, range(first, first + len(keys)), strict=True))
        if len(self._recent) >= self._recent_limit:
            self._settle()
            self._forget_before(first + len(keys) - self._window)

    def __len__(self) -> int:
        return len(self._recent) + sum(len(run.keys) for run in self._runs)

    def _settle(self) -> None:
        keys = [np.fromiter(keys, np.int64, len(keys)) for _, keys in self._pieces]
        places = [np.arange(first, first + len(keys)) for first, keys in self._pieces]
        run = _Run(np.concatenate(keys), np.concatenate(places))
        self._recent, self._pieces, self._places = set(), [], None
        if self._marks is None:
            self._marks = _Marks(self._window)
        self._marks.add(run.keys)
        while self._runs and self._may_merge(self._runs[-1], run):
            run = _Run.merged(self._runs.pop(), run)
        self._runs.append(run)

    def _may_merge(self, older: _Run, newer: _Run) -> bool:
        """Merging equals keeps the number of arrays logarithmic; the limit keeps forgetting
        fine-grained.
        """
        together = len(older.keys) + len(newer.keys)
        return len(older.keys) <= len(newer.keys) * 3 // 2 and together <= self._run_limit

    def _forget_before(self, position: int) -> None:
        kept = [run for run in self._runs if run.last >= position]
        self._forgotten += sum(len(run.keys) for run in self._runs) - sum(
            len(run.keys) for run in kept
        )
        self._runs = kept
        if self._forgotten > self._window // 2:
            # Marks cannot be taken away one by one: what is left is marked anew.
            self._marks, self._forgotten = _Marks(self._window), 0
            for run in kept:
                self._marks.add(run.keys)
