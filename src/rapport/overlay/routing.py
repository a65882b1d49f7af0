"""Routing decisions without routing tables: random walks, flooding, and the filter of seen
messages. [CX-4, CX-5, EN-5]

A walker carries its trail: every address that forwarded it, in order, including steps back. The
trail alone shows each node where the walker was and where it first came from, so the walk is a
random depth-first search without state in the nodes: on a connected graph it ends only after it
visited every node, within 2(n-1) steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport.transport.base import Address, Now

_GUESSES = 3


class Step(msgspec.Struct, frozen=True, gc=False):
    """The next step of a walker: `forward`, `back`, or none (`stuck`, then `to` is None)."""

    kind: Literal["forward", "back", "stuck"]
    to: Address | None = None


DEAD_END = Step("stuck")


def next_hop(
    neighbours: Sequence[Address],
    path: Sequence[Address],
    chance: Chance,
    *,
    own: Address | None = None,
    avoid: Collection[Address] = (),
    revisit: bool = False,
    first: int = 1,
) -> Step:
    """Chooses a uniformly random neighbour that is not on the path; in a dead end, the node from
    which this one was first reached; stuck if the walk began here.

    Args:
        path: The trail; it ends with the sender of the walker.
        own: This node; needed to go back correctly if walkers return to a node.
        avoid: Nodes to avoid, for example because they did not acknowledge.
        revisit: Allows any neighbour: the plain random walk.
        first: Index on the path of the first node that may be visited; 1 if the path begins with a
            consumer.

    Costs about a microsecond while most neighbours are unvisited, else O(path + neighbours).
    """
    count = len(neighbours)
    if count:
        # Usually most neighbours are unvisited: drawing is cheaper than listing, and as uniform.
        barred = () if revisit else path
        for _ in range(_GUESSES):
            to = neighbours[int(chance.random() * count)]
            if to not in barred and to not in avoid and to != own:
                return Step("forward", to)
        left_out = {own, *avoid, *barred}
        fresh = [neighbour for neighbour in neighbours if neighbour not in left_out]
        if fresh:
            return Step("forward", fresh[int(chance.random() * len(fresh))])
    return _back(path, own, avoid, first)


def _back(
    path: Sequence[Address], own: Address | None, avoid: Collection[Address], first: int
) -> Step:
    """A step to the node from which this one was first reached; if that is avoided, to its own
    predecessor, and so on.
    """
    place = _predecessor(path, own, len(path))
    while place >= first:
        if path[place] not in avoid and path[place] != own:
            return Step("back", path[place])
        place = _predecessor(path, path[place], place)
    return DEAD_END


def _predecessor(path: Sequence[Address], node: Address | None, end: int) -> int:
    """The index of the node's first predecessor; -1 if it has none."""
    for place in range(end):
        if path[place] == node:
            return place - 1
    return end - 1


def way_back(trail: Sequence[Address]) -> tuple[Address, ...]:
    """The trail without its detours, for the answer.

    >>> way_back((("c", 1), ("a", 1), ("b", 1), ("x", 1), ("b", 1), ("d", 1)))
    (('c', 1), ('a', 1), ('b', 1), ('d', 1))
    """
    place: dict[Address, int] = {}
    kept: list[Address] = []
    for node in trail:
        at = place.get(node)
        if at is None:
            place[node] = len(kept)
            kept.append(node)
        else:
            for gone in kept[at + 1 :]:
                del place[gone]
            del kept[at + 1 :]
    return tuple(kept)


class SeenFilter:
    """Remembers keys for `keep_ms` after they were first seen, at most `capacity` of them.

    When full it forgets the oldest first, so a key is remembered while fewer than `capacity` others
    follow it within `keep_ms`. Each key has a level (a TTL). A call costs about half a microsecond,
    independent of the number of keys.
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
        """Whether the key is new; remembers it."""
        return self.rises(key, 0, now)

    def rises(self, key: Hashable, level: int, now: Now) -> bool:
        """Whether the key is new or has a higher level than before; remembers the level."""
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
        if self._order and self._order[0][0] <= now.steady_ms:
            self._forget_old(now.steady_ms)
        return key in self._level

    def level_of(self, key: Hashable, now: Now) -> int | None:
        return self._level.get(key) if self.knows(key, now) else None

    def __len__(self) -> int:
        return len(self._order)

    def _forget_old(self, steady_ms: float) -> None:
        order = self._order
        while order and order[0][0] <= steady_ms:
            del self._level[order.popleft()[1]]


class Flood:
    """Flooding with a time to live, to all neighbours or a limited number.

    Without loss exactly the nodes within `ttl` hops of the origin receive a message, whatever the
    delays: a later copy over a shorter path is forwarded again. Handle a message if `is_new`, not
    depending on the receivers of `spread`.
    """

    __slots__ = ("_chance", "_seen")

    def __init__(self, seen: SeenFilter, chance: Chance | None = None) -> None:
        """`chance` is needed only for flooding with a `width`."""
        self._seen, self._chance = seen, chance

    def is_new(self, key: Hashable, now: Now) -> bool:
        """Whether `spread` was not called with this key yet."""
        return not self._seen.knows(key, now)

    def spread(
        self,
        key: Hashable,
        ttl: int,
        came_from: Address | None,
        neighbours: Sequence[Address],
        now: Now,
        *,
        width: int = 0,
    ) -> list[Address]:
        """The next receivers, with `ttl - 1`: all neighbours except the sender; none at ttl 0 or if
        it was forwarded before. The origin passes None as `came_from`.

        Normalized flooding: with a `width` (the least degree of the network) no more than so many,
        drawn uniformly, so that nodes with many neighbours do not multiply the messages.
        """
        if not self._seen.rises(key, ttl, now) or ttl <= 0:
            return []
        to = [neighbour for neighbour in neighbours if neighbour != came_from]
        if width and len(to) > width:
            if self._chance is None:
                raise InvalidInput(
                    "flooding of limited width draws who gets it",
                    code="overlay.no_chance",
                    hint="give Flood a chance",
                )
            return self._chance.sample(to, width)
        return to
