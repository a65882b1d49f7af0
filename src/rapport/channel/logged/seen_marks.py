"""A rough picture of many keys: says of most strangers that they were never seen. Pure. [CH-6]"""

from __future__ import annotations

import numpy as np

_BITS_PER_KEY = 64
"""At least, when there are as many keys as there is room for."""
_WORD_BITS = 64
_IN_WORD = _WORD_BITS - 1
_SHIFTS = (0, 6, 12, 18)
"""Where in a key the numbers of its bits stand; its word is by its beginning."""
_FIRST_ROOM, _GROWTH = 4_096, 8
_LITTLE_ROOM = 32
"""As many keys most channels never get: they have a picture of some hundred bytes."""
_FEW = 8
"""Up to this many keys, going one by one is cheaper than with arrays."""
_ONE = np.uint64(1)


class _Picture:
    """Four bits for every key, all in one word of memory: a full one suspects a stranger some two
    times in ten thousand. `room`: for how many keys it is made; `count`: how many it was given.
    """

    def __init__(self, room: int) -> None:
        self.room, self.count = room, 0
        words = max(-(-room * _BITS_PER_KEY // _WORD_BITS) - 1, 1).bit_length()
        self._shift = _WORD_BITS - words
        self._words = np.zeros(1 << words, np.uint64)
        self._word_of = self._words.data  # one of them, at a third of the cost

    def add(self, keys: np.ndarray) -> None:
        self.count += len(keys)
        if len(keys) <= _FEW:
            for key in keys.tolist():
                self._word_of[key >> self._shift] |= _mark(key)
        else:
            np.bitwise_or.at(self._words, self._places(keys), _marks(keys))

    def has(self, key: int, mark: int) -> bool:
        return self._word_of[key >> self._shift] & mark == mark

    def have(self, keys: np.ndarray, marks: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._words[self._places(keys)] & marks == marks
        return found

    def _places(self, keys: np.ndarray) -> np.ndarray:
        return (keys >> np.uint64(self._shift)).view(np.int64)


class SeenMarks:
    """Marks at least the last `window` keys, in pictures of which each is larger than the one
    before, up to the window: since keys cannot be taken off one by one, the oldest picture is
    dropped when the others hold as many keys as are wanted. To search for a key costs ten times as
    much as a look here, all of it waiting for memory.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._pictures = [_Picture(_LITTLE_ROOM)]
        self._first: list[int] | None = []
        """All keys while they are few: then the little picture is made again, as a larger one."""

    def add(self, keys: np.ndarray) -> None:
        """Marks keys."""
        newest = self._pictures[-1]
        if newest.count + len(keys) > newest.room:
            newest = self._begin(len(keys))
        newest.add(keys)
        if self._first is not None:
            self._first += keys.tolist()

    def _begin(self, needed: int) -> _Picture:
        """The next picture, which has room for so many keys at least: in one that is too small for
        a large batch nearly every bit would be set, and every stranger be suspected.
        """
        if self._first is not None:
            picture = _Picture(max(_FIRST_ROOM, len(self._first) + needed))
            picture.add(np.array(self._first, np.uint64))
            self._first, self._pictures = None, [picture]
            return picture
        while sum(picture.count for picture in self._pictures[1:]) >= self._window:
            del self._pictures[0]
        usual = min(self._pictures[-1].room * _GROWTH, max(self._window, _FIRST_ROOM))
        self._pictures.append(_Picture(max(usual, needed)))
        return self._pictures[-1]

    def suspects(self, keys: np.ndarray) -> list[int]:
        """The numbers of those keys that may have been added."""
        if len(keys) <= _FEW:
            return [number for number, key in enumerate(keys.tolist()) if self._has(key)]
        marks = _marks(keys)
        found = self._pictures[0].have(keys, marks)
        for picture in self._pictures[1:]:
            found |= picture.have(keys, marks)
        suspects: list[int] = np.flatnonzero(found).tolist()
        return suspects

    def _has(self, key: int) -> bool:
        mark = _mark(key)
        return any(picture.has(key, mark) for picture in self._pictures)


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
