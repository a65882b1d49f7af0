"""Consistent hashing: the owner of a key while possible owners join and leave. [EN-7]

Every name has many points on a circle, every key one; a key belongs to the next names after it. So
the whole circle always has an owner, and a name that joins or leaves moves only its own share.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

from rapport.core.errors import InvalidInput

_CIRCLE: Final = 1 << 64
_HASH_BYTES: Final = 8


def ring_position(text: str) -> int:
    """The point of a text on the circle, the same on every machine: 0 to 2**64-1."""
    return int.from_bytes(blake2b(text.encode(), digest_size=_HASH_BYTES).digest(), "big")


class HashRing:
    """Names on a circle. All who hold the same names agree, in whatever order they came.

    `points` per name trade balance against memory: the shares of equal names differ by about
    1/sqrt(points) of the mean (8 names with 128 points own 0.89 to 1.11 of it). A look-up costs
    about 2 us, joining or leaving 0.4 ms.
    """

    __slots__ = ("_names", "_owners", "_points", "_positions")

    def __init__(self, names: Iterable[str] = (), *, points: int = 128) -> None:
        if points < 1:
            raise InvalidInput(
                "a name needs one point on the ring at least", code="overlay.bad_settings"
            )
        self._points = points
        self._names: set[str] = set()
        self._positions: list[int] = []
        self._owners: list[str] = []
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(sorted(self._names))

    def add(self, name: str) -> bool:
        """Adds a name; false if it is present."""
        if name in self._names:
            return False
        self._names.add(name)
        for number in range(self._points):
            place = ring_position(f"{name}\0{number}")
            index = bisect_left(self._positions, place)
            # At a shared point the order must not depend on the order of insertion.
            while index < len(self._positions) and self._positions[index] == place:
                if self._owners[index] > name:
                    break
                index += 1
            self._positions.insert(index, place)
            self._owners.insert(index, name)
        return True

    def remove(self, name: str) -> bool:
        """Removes a name; its share falls to the next ones. False if it is absent."""
        if name not in self._names:
            return False
        self._names.remove(name)
        kept = [index for index, owner in enumerate(self._owners) if owner != name]
        self._positions = [self._positions[index] for index in kept]
        self._owners = [self._owners[index] for index in kept]
        return True

    def owner(self, key: str) -> str | None:
        """The owner of the key; None if the ring is empty."""
        if not self._positions:
            return None
        index = bisect_right(self._positions, ring_position(key))
        return self._owners[index if index < len(self._owners) else 0]

    def owners(self, key: str, count: int) -> list[str]:
        """The owner and its successors, `count` different names or all. Without the first the
        second is the owner, so copies belong there.
        """
        found: list[str] = []
        wanted = min(count, len(self._names))
        index = bisect_right(self._positions, ring_position(key))
        while len(found) < wanted:
            owner = self._owners[index % len(self._owners)]
            if owner not in found:
                found.append(owner)
            index += 1
        return found

    def shares(self) -> dict[str, float]:
        """The part of the circle of each name; their sum is 1, or there are none."""
        shares = dict.fromkeys(self, 0.0)
        for index, place in enumerate(self._positions):
            before = self._positions[index - 1] if index else self._positions[-1] - _CIRCLE
            shares[self._owners[index]] += (place - before) / _CIRCLE
        return shares
