"""What was met before: a set that forgets by age and by number. [CX-5, EN-5]"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from rapport.core.errors import InvalidInput
from rapport.transport.base import Now


class Seen:
    """Remembers keys for `keep_ms` after they were first met, at most `capacity` of them.

    When full the oldest is forgotten first, so a key is surely remembered while fewer than
    `capacity` others follow it within `keep_ms`. Each key may carry a level (a TTL). A call costs
    about half a microsecond, whatever the number of keys.
    """

    __slots__ = ("_capacity", "_keep_ms", "_level", "_order")

    def __init__(self, capacity: int, keep_ms: float) -> None:
        if capacity < 1 or keep_ms <= 0:
            raise InvalidInput(
                "a memory needs room for one key and some time", code="overlay.bad_settings"
            )
        self._capacity, self._keep_ms = capacity, keep_ms
        self._level: dict[Hashable, int] = {}
        self._order: deque[tuple[float, Hashable]] = deque()

    def first_time(self, key: Hashable, now: Now) -> bool:
        """Whether the key is not remembered; from now on it is."""
        return self.rises(key, 0, now)

    def rises(self, key: Hashable, level: int, now: Now) -> bool:
        """Whether the key is new or has a higher level than ever; remembers the level."""
        order = self._order
        if order and order[0][0] <= now.steady_ms:
            self._forget_old(now.steady_ms)
        before = self._level.get(key)
        if before is not None:
            if level <= before:
                return False
            self._level[key] = level
            return True
        if len(order) >= self._capacity:
            del self._level[order.popleft()[1]]
        self._level[key] = level
        order.append((now.steady_ms + self._keep_ms, key))
        return True

    def knows(self, key: Hashable, now: Now) -> bool:
        """Whether the key is remembered; changes nothing that can be noticed."""
        if self._order and self._order[0][0] <= now.steady_ms:
            self._forget_old(now.steady_ms)
        return key in self._level

    def level_of(self, key: Hashable, now: Now) -> int | None:
        """The highest level of a key that is remembered; changes nothing that can be noticed."""
        return self._level.get(key) if self.knows(key, now) else None

    def __len__(self) -> int:
        return len(self._order)

    def _forget_old(self, steady_ms: float) -> None:
        order = self._order
        while order and order[0][0] <= steady_ms:
            del self._level[order.popleft()[1]]
