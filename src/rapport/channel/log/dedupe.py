"""Deduplication: which events of a group of appends are new. [CH-6]

A channel recognises a repetition by (source, id). Each identity is a 64-bit hash; a Bloom filter
answers "never seen" for most new events, `DedupeWindow` holds the last million hashes with their
positions. A hit is confirmed against the log, so a hash collision cannot lose an event.
The hash is salted per process: the window is rebuilt from the log at the start, never saved.
`plan_group` merges many appends into one write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from rapport.channel.channel import AppendResult
from rapport.channel.log.sequences import MarksDraft
from rapport.core.codec import encode_block
from rapport.core.event import Event

_BITS_PER_KEY = 64
"""At least, when the filter is full."""
_WORD_BITS = 64
_IN_WORD = _WORD_BITS - 1
_SHIFTS = (0, 6, 12, 18)
"""Bit offsets in a key that select the bits to set; the leading bits select the word."""
_FIRST_ROOM, _GROWTH = 4_096, 8
_LITTLE_ROOM = 32
"""Capacity of the first filter: most channels never need more than its few hundred bytes."""
_FEW_MARKS = 8
"""Up to this many keys, going one by one is cheaper than with arrays."""
_ONE = np.uint64(1)
DEDUPE_WINDOW = 1_000_000
"""Events per channel among which a repetition is recognised."""
_FEW = 16
"""Up to this many keys, looking for each is cheaper than sorting the newest ones."""
Keys = np.ndarray
"""Of 64 bits, without a sign."""
_TIMES = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that swapping id and source changes the key."""
Hits = list[tuple[int, int]]
"""(index among the requested keys, position) of keys that were found."""
BLOCK_EVENTS = 1024
BLOCK_BYTES = 4 * 1024 * 1024
"""Of data; headers may make a block twice as large."""
Find = Callable[[Keys], Mapping[int, int]]
"""Of the keys that may have been seen, each by its number among these: the position."""
IsSame = Callable[[Event, int], bool]
"""Whether the event at a position is the same as this one."""


class _BloomFilter:
    """Four bits per key, all in one 64-bit word. A full filter has about two false positives in ten
    thousand. `room`: capacity in keys; `count`: keys added.
    """

    def __init__(self, room: int) -> None:
        self.room, self.count = room, 0
        words = max(-(-room * _BITS_PER_KEY // _WORD_BITS) - 1, 1).bit_length()
        self._shift = _WORD_BITS - words
        self._words = np.zeros(1 << words, np.uint64)
        self._word_of = self._words.data  # one of them, at a third of the cost

    def add(self, keys: np.ndarray) -> None:
        self.count += len(keys)
        if len(keys) <= _FEW_MARKS:
            for key in keys.tolist():
                self._word_of[key >> self._shift] |= _mark(key)
        else:
            np.bitwise_or.at(self._words, self._places(keys), _marks(keys))

    def suspects(self, keys: np.ndarray) -> list[int]:
        if len(keys) <= _FEW_MARKS:
            return [number for number, key in enumerate(keys.tolist()) if self._has(key)]
        marks = _marks(keys)
        suspects: list[int] = np.flatnonzero(
            self._words[self._places(keys)] & marks == marks
        ).tolist()
        return suspects

    def _has(self, key: int) -> bool:
        mark = _mark(key)
        return self._word_of[key >> self._shift] & mark == mark

    def _places(self, keys: np.ndarray) -> np.ndarray:
        return (keys >> np.uint64(self._shift)).view(np.int64)


def _mark(key: int) -> int:
    bits = 0
    for shift in _SHIFTS:
        bits |= 1 << (key >> shift & _IN_WORD)
    return bits


def _marks(keys: np.ndarray) -> np.ndarray:
    marks: np.ndarray = _ONE << (keys & np.uint64(_IN_WORD))
    for shift in _SHIFTS[1:]:
        marks |= _ONE << (keys >> np.uint64(shift) & np.uint64(_IN_WORD))
    return marks


class EventIdentity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first two fields of an event as a block holds them; decoding stops caring after these."""

    source: str
    id: str


_IDENTITIES = msgspec.msgpack.Decoder(list[EventIdentity])


def decode_identities(block: bytes) -> list[EventIdentity]:
    """The identities in a block, cheaper than its events; raises msgspec.DecodeError."""
    return _IDENTITIES.decode(block)


def identity_keys(events: Sequence[Event | EventIdentity]) -> Keys:
    """A 64-bit key per event: of the hashes of its id and its source."""
    count = len(events)
    sources = _hashes([event.source for event in events], count)
    return _keys(_hashes([event.id for event in events], count), sources)


def _keys(names: Keys, sources: Keys | np.uint64) -> Keys:
    keys: Keys = names * _TIMES + sources
    return keys


def _hashes(texts: Sequence[str], count: int) -> Keys:
    return np.fromiter(map(hash, texts), np.int64, count).view(np.uint64)


def are_all_different(keys: Keys) -> bool:
    in_order = np.sort(keys)
    return not (in_order[1:] == in_order[:-1]).any()


class _Run:
    """Sorted keys with their positions; no position exceeds `last`."""

    __slots__ = ("keys", "last", "positions")

    def __init__(self, keys: Keys, positions: np.ndarray) -> None:
        order = np.argsort(keys)
        self.keys, self.positions = keys[order], positions[order]
        self.last = int(positions.max())

    def hits(self, queried: Keys) -> Hits:
        found = self.keys.searchsorted(queried)
        found[found == len(self.keys)] = 0
        here = np.flatnonzero(self.keys[found] == queried)
        return list(zip(here.tolist(), self.positions[found[here]].tolist(), strict=True))


class _Recent:
    """The newest keys in order of arrival; sorted on demand."""

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
        if self._sorted is None:
            self._sorted = _Run(self.keys, self._positions[: self.count])
        return self._sorted

    def clear(self) -> None:
        self.count, self._sorted = 0, None

    def hits(self, queried: Keys) -> Hits:
        if not self.count:
            return []
        if len(queried) > _FEW or self._sorted is not None:
            return self.as_run().hits(queried)
        found = ((number, np.flatnonzero(self.keys == key)) for number, key in enumerate(queried))
        return [(number, int(self._positions[at[0]])) for number, at in found if len(at)]


class DedupeWindow:
    """Maps keys to positions of at least the last `window` events, and at most an eighth more.

    The newest keys are in order of arrival, older ones in sorted arrays of 16 bytes per event, plus
    one Bloom filter: about 30 MB for the default window. A lookup tests the filter for the whole
    batch; only possible hits are searched for, array by array. Merging the arrays would cost more
    than these searches.
    """

    def __init__(self, window: int = DEDUPE_WINDOW) -> None:
        self._window = window
        self._recent_limit = max(window // 16, 1)
        self._recent = _Recent()
        self._runs: list[_Run] = []
        self._marks = _BloomFilter(_LITTLE_ROOM)

    def suspects(self, keys: Keys) -> list[int]:
        """The numbers of those keys that may have been seen; a lookup costs a tenth of a search."""
        return self._marks.suspects(keys)

    def find(self, keys: Keys) -> dict[int, int]:
        """Of the keys that were seen, each by its number among these: the position."""
        suspects = self.suspects(keys)
        if not suspects:
            return {}
        wanted = keys[suspects]
        found: dict[int, int] = {}
        pieces: list[_Run | _Recent] = [*self._runs, self._recent]
        for piece in pieces:
            found |= {suspects[number]: position for number, position in piece.hits(wanted)}
        return found

    def add(self, keys: Keys, first: int) -> None:
        self._recent.add(keys, first)
        if self._marks.count + len(keys) <= self._marks.room:
            self._marks.add(keys)
        else:
            self._mark_anew()
        if self._recent.count >= self._recent_limit:
            self._runs.append(self._recent.as_run())
            self._recent.clear()
            self._forget_before(first + len(keys) - self._window)

    def __len__(self) -> int:
        return self._recent.count + sum(len(run.keys) for run in self._runs)

    def _mark_anew(self) -> None:
        """Begins a larger filter without the keys that left the window."""
        held = len(self)
        room = max(min(held * _GROWTH, 2 * self._window), held + held // 2, _FIRST_ROOM)
        self._marks = _BloomFilter(room)
        for keys in (*(run.keys for run in self._runs), self._recent.keys):
            self._marks.add(keys)

    def _forget_before(self, position: int) -> None:
        self._runs = [run for run in self._runs if run.last >= position]


class AppendGroup(msgspec.Struct):
    """The plan of a set of appends: new events with their keys, and a result per append."""

    fresh: list[Event]
    keys: Keys
    answers: list[AppendResult]


def plan_group(
    appends: Sequence[Sequence[Event]],
    next_position: int,
    find: Find,
    is_same: IsSame,
    numbered: MarksDraft | None = None,
) -> AppendGroup:
    """Decides which events are new. A repetition gets the position of its first copy, also within
    the group. `numbered` decides as well when some events are numbered by their publisher.
    """
    events = [event for append in appends for event in append]
    keys = identity_keys(events)
    suspected = find(keys)
    if numbered is None and not suspected and are_all_different(keys):
        return AppendGroup(events, keys, _consecutive(appends, next_position))
    return _plan_with_repetitions(appends, keys, suspected, next_position, is_same, numbered)


def _consecutive(appends: Sequence[Sequence[Event]], next_position: int) -> list[AppendResult]:
    answers = []
    for append in appends:
        answers.append(AppendResult(tuple(range(next_position, next_position + len(append))), 0))
        next_position += len(append)
    return answers


def _plan_with_repetitions(
    appends: Sequence[Sequence[Event]],
    keys: Keys,
    suspected: Mapping[int, int],
    next_position: int,
    is_same: IsSame,
    numbered: MarksDraft | None,
) -> AppendGroup:
    fresh: list[Event] = []
    chosen: list[int] = []
    answers: list[AppendResult] = []
    placed: dict[tuple[str, str], int] = {}
    number = 0
    for append in appends:
        positions, duplicates = [], 0
        for event in append:
            identity = (event.source, event.id)
            position = placed.get(identity, 0)
            before = suspected.get(number, 0)
            if not position and before and is_same(event, before):
                position = before
            if numbered is not None and numbered.is_old(event):
                duplicates += 1
                position = position or numbered.position_of(event)
            elif position:
                duplicates += 1
            else:
                position = placed[identity] = next_position + len(fresh)
                fresh.append(event)
                chosen.append(number)
            positions.append(position)
            number += 1
        answers.append(AppendResult(tuple(positions), duplicates))
    return AppendGroup(fresh, keys[chosen], answers)


def cut_blocks(events: Sequence[Event]) -> list[tuple[Sequence[Event], bytes]]:
    """The events in pieces small enough to be read singly, each with its bytes."""
    blocks: list[tuple[Sequence[Event], bytes]] = []
    for start in range(0, len(events), BLOCK_EVENTS):
        _cut(events[start : start + BLOCK_EVENTS], blocks)
    return blocks


def _cut(events: Sequence[Event], blocks: list[tuple[Sequence[Event], bytes]]) -> None:
    if len(events) == 1 or sum([len(event.data) for event in events]) <= BLOCK_BYTES:
        body = encode_block(events)
        if len(events) == 1 or len(body) <= 2 * BLOCK_BYTES:
            blocks.append((events, body))
            return
    middle = len(events) // 2
    _cut(events[:middle], blocks)
    _cut(events[middle:], blocks)
