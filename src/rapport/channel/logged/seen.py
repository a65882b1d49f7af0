"""Which events a channel has seen lately: compact, bounded, no I/O. [CH-6]

An identity is a 64-bit hash of (source, id); a hit is only a suspicion that the caller checks
against the log, so two identities of one hash cannot cost an event. The hash is salted per process:
the window is rebuilt, never saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rapport.channel.logged.seen_marks import SeenMarks
from rapport.core.encoded_batch import EncodedBatch
from rapport.core.event import Event

DEDUPE_WINDOW = 1_000_000
"""Events per channel among which a repetition is recognised."""

_FEW = 16
"""Up to this many keys, looking for each is cheaper than sorting the newest ones."""

Keys = np.ndarray
"""Of 64 bits, without a sign."""
_WORD = (1 << 64) - 1
_TIMES = np.uint64(0x9E3779B97F4A7C15)
"""Odd; so that an id and a source that change places do not give the same key."""


class SeenIdentity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first two fields of an event as a block holds them; decoding stops caring after these."""

    source: str
    id: str


_IDENTITIES = msgspec.msgpack.Decoder(list[SeenIdentity])


def decode_identities(block: bytes) -> list[SeenIdentity]:
    """The identities in a block, cheaper than its events; raises msgspec.DecodeError."""
    return _IDENTITIES.decode(block)


def identity_keys(events: Sequence[Event | SeenIdentity]) -> Keys:
    """A 64-bit key per event: of the hashes of its id and its source."""
    count = len(events)
    if isinstance(events, EncodedBatch):
        return _keys(_hashes(events.ids, count), np.uint64(hash(events.source) & _WORD))
    sources = _hashes([event.source for event in events], count)
    return _keys(_hashes([event.id for event in events], count), sources)


def _keys(names: Keys, sources: Keys | np.uint64) -> Keys:
    keys: Keys = names * _TIMES + sources
    return keys


def _hashes(texts: Sequence[str], count: int) -> Keys:
    return np.fromiter(map(hash, texts), np.int64, count).view(np.uint64)


def are_all_different(keys: Keys) -> bool:
    """Whether no key occurs twice."""
    in_order = np.sort(keys)
    return not (in_order[1:] == in_order[:-1]).any()


Hits = list[tuple[int, int]]
"""(number of the key among those asked for, position) of keys that are there."""


class _Run:
    """Sorted keys with their positions; all positions are at most `last`."""

    __slots__ = ("keys", "last", "positions")

    def __init__(self, keys: Keys, positions: np.ndarray) -> None:
        order = _order(keys)
        self.keys, self.positions = keys[order], positions[order]
        self.last = int(positions.max())

    def hits(self, asked: Keys) -> Hits:
        found = self.keys.searchsorted(asked)
        found[found == len(self.keys)] = 0
        here = np.flatnonzero(self.keys[found] == asked)
        return list(zip(here.tolist(), self.positions[found[here]].tolist(), strict=True))


def _order(keys: Keys) -> np.ndarray:
    """How to sort keys: by words of their beginnings and their numbers, which takes a third of the
    time. Two that begin alike may come out the wrong way round, once in a thousand times: then they
    are sorted as usual.
    """
    low = np.uint64((1 << len(keys).bit_length()) - 1)
    words = keys & ~low | np.arange(len(keys), dtype=np.uint64)
    words.sort()
    order: np.ndarray = (words & low).view(np.int64)
    in_order = keys[order]
    return order if (in_order[1:] >= in_order[:-1]).all() else np.argsort(keys)


class _Recent:
    """The newest keys as they came, in arrays that grow: sorted when they are many, or when many
    are asked for.
    """

    def __init__(self) -> None:
        self.count = 0
        self._keys, self._positions = np.empty(_FEW, np.uint64), np.empty(_FEW, np.int64)
        self._sorted: _Run | None = None

    @property
    def keys(self) -> Keys:
        return self._keys[: self.count]

    def add(self, keys: Keys, first: int) -> None:
        count, end = self.count, self.count + len(keys)
        if end > len(self._keys):
            self._keys = np.resize(self._keys, 2 * end)
            self._positions = np.resize(self._positions, 2 * end)
        if len(keys) == 1:
            self._keys[count], self._positions[count] = keys[0], first
        else:
            self._keys[count:end] = keys
            self._positions[count:end] = np.arange(first, first + len(keys))
        self.count, self._sorted = end, None

    def as_run(self) -> _Run:
        """All of them, sorted."""
        if self._sorted is None:
            self._sorted = _Run(self.keys, self._positions[: self.count])
        return self._sorted

    def clear(self) -> None:
        self.count, self._sorted = 0, None

    def hits(self, asked: Keys) -> Hits:
        if not self.count:
            return []
        if len(asked) > _FEW or self._sorted is not None:
            return self.as_run().hits(asked)
        found = ((number, np.flatnonzero(self.keys == key)) for number, key in enumerate(asked))
        return [(number, int(self._positions[at[0]])) for number, at in found if len(at)]


class SeenWindow:
    """Key to position of at least the last `window` events, and at most an eighth more.

    Newest keys stand in the order they came, older ones in sorted arrays of 16 bytes per event, and
    there is one rough picture of them all: about 30 MB for the default window. Asking costs a look
    at the picture, for the whole batch at once; only a key that may be there is searched for, in
    one array after the other: merging them would cost more than these searches do.
    """

    def __init__(self, window: int = DEDUPE_WINDOW) -> None:
        self._window = window
        self._recent_limit = max(window // 16, 1)
        self._recent = _Recent()
        self._runs: list[_Run] = []
        self._marks = SeenMarks(window)

    def find(self, keys: Keys) -> dict[int, int]:
        """Of the keys that were seen, each by its number among these: the position."""
        suspects = self._marks.suspects(keys)
        if not suspects:
            return {}
        wanted = keys[suspects]
        found: dict[int, int] = {}
        pieces: list[_Run | _Recent] = [*self._runs, self._recent]
        for piece in pieces:
            found |= {suspects[number]: position for number, position in piece.hits(wanted)}
        return found

    def add(self, keys: Keys, first: int) -> None:
        """Takes in keys of events that stand at consecutive positions from `first`."""
        self._recent.add(keys, first)
        self._marks.add(keys)
        if self._recent.count >= self._recent_limit:
            self._runs.append(self._recent.as_run())
            self._recent.clear()
            self._forget_before(first + len(keys) - self._window)

    def __len__(self) -> int:
        return self._recent.count + sum(len(run.keys) for run in self._runs)

    def _forget_before(self, position: int) -> None:
        self._runs = [run for run in self._runs if run.last >= position]
