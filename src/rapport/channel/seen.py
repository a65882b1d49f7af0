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
        order = np.argsort(keys, kind="stable")
        self.keys, self.positions = keys[order], positions[order]
        self.last = int(positions.max())

    @staticmethod
    def merged(older: _Run, newer: _Run) -> _Run:
        return _Run(
            np.concatenate((older.keys, newer.keys)),
            np.concatenate((older.positions, newer.positions)),
        )


class SeenWindow:
    """Key to position of at least the last `window` events, and at most a third more.

    Newest keys sit in a dict, older ones in a few sorted arrays of 16 bytes per event: about 20 MB
    for the default window. Asking costs one dict look-up and one binary search per array, for the
    whole batch at once.
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
        order = asked.argsort()
        asked = asked[order]  # one search begins where the last one ended, in memory just used
        for run in self._runs:
            places = run.keys.searchsorted(asked)
            places[places == len(run.keys)] = 0
            for hit in np.flatnonzero(run.keys[places] == asked):
                number = order[hit]
                found[number] = found[number] or int(run.positions[places[hit]])
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
