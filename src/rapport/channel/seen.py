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
_MARKS_PER_KEY = 16
"""Bits of the rough picture of a run: one in sixteen strangers has to be searched for."""


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
    """Sorted keys with their positions; all positions are at most `last`.

    Its marks are a rough picture of it: a bit for every beginning of a key that occurs. Most keys
    asked for are strangers, and a bit tells that of nearly all; a binary search costs ten times as
    much, all of it waiting for memory.
    """

    __slots__ = ("_marks", "_shift", "keys", "last", "positions")

    def __init__(self, keys: np.ndarray, positions: np.ndarray) -> None:
        order = np.argsort(keys, kind="stable")
        self.keys, self.positions = keys[order], positions[order]
        self.last = int(positions.max())
        bits = (len(keys) * _MARKS_PER_KEY - 1).bit_length()
        self._shift = 64 - bits
        marks = np.zeros(1 << bits, np.bool_)
        marks[self._beginnings(keys)] = True
        self._marks = np.packbits(marks, bitorder="little")

    @staticmethod
    def merged(older: _Run, newer: _Run) -> _Run:
        return _Run(
            np.concatenate((older.keys, newer.keys)),
            np.concatenate((older.positions, newer.positions)),
        )

    def hits(self, asked: np.ndarray) -> list[tuple[int, int]]:
        """(number of the key among those asked for, position) of the keys that are here."""
        places = self._beginnings(asked)
        marked = np.flatnonzero(self._marks[places >> 3] >> (places & 7).astype(np.uint8) & 1)
        if not len(marked):
            return []
        wanted = asked[marked]
        found = self.keys.searchsorted(wanted)
        found[found == len(self.keys)] = 0
        here = np.flatnonzero(self.keys[found] == wanted)
        return list(zip(marked[here].tolist(), self.positions[found[here]].tolist(), strict=True))

    def _beginnings(self, keys: np.ndarray) -> np.ndarray:
        return keys.view(np.uint64) >> np.uint64(self._shift)


class SeenWindow:
    """Key to position of at least the last `window` events, and at most a third more.

    Newest keys sit in a dict, older ones in a few sorted arrays of 18 to 20 bytes per event: about
    25 MB for the default window. Asking costs one dict look-up and one look at a bit per array, for
    the whole batch at once; a key that is there costs a binary search.
    """

    def __init__(self, window: int = DEDUPE_WINDOW) -> None:
        self._window = window
        self._recent_limit = max(window // 32, 1)
        self._run_limit = max(window // 4, 1)
        self._recent: dict[int, int] = {}
        self._runs: list[_Run] = []

    def find(self, keys: Sequence[int]) -> list[int]:
        """For each key the position it was seen at, 0 when it was not."""
        recent = self._recent
        # Most batches hold nothing that was seen; asking for all at once is cheaper.
        are_new = recent.keys().isdisjoint(keys)
        found = [0] * len(keys) if are_new else [recent.get(key, 0) for key in keys]
        if not self._runs:
            return found
        if len(keys) <= _FEW_KEYS:
            return [place or self._find_one(key) for key, place in zip(keys, found, strict=True)]
        asked = np.fromiter(keys, np.int64, len(keys))
        for run in self._runs:
            for number, position in run.hits(asked):
                found[number] = found[number] or position
        return found

    def _find_one(self, key: int) -> int:
        for run in reversed(self._runs):
            place = run.keys.searchsorted(key)
            if place < len(run.keys) and run.keys[place] == key:
                return int(run.positions[place])
        return 0

    def add(self, keys: Sequence[int], first: int) -> None:
        """Takes in keys of events that stand at consecutive positions from `first`."""
        recent = self._recent
        recent.update(zip(keys, range(first, first + len(keys)), strict=True))
        if len(recent) >= self._recent_limit:
            self._settle()
            self._forget_before(first + len(keys) - self._window)

    def __len__(self) -> int:
        return len(self._recent) + sum(len(run.keys) for run in self._runs)

    def _settle(self) -> None:
        count = len(self._recent)
        run = _Run(
            np.fromiter(self._recent.keys(), np.int64, count),
            np.fromiter(self._recent.values(), np.int64, count),
        )
        self._recent = {}
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
        self._runs = [run for run in self._runs if run.last >= position]
