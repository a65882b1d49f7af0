"""The next step of a random walk that avoids where it was. [CX-5]

The walker carries its trail: every address it was sent on from, in order, back steps too. From it
alone each node knows where the walker was and where it first came from, so the walk is a random
depth-first search without state in the nodes: on a connected graph it is stuck only after it was
everywhere, within 2(n-1) steps.

What was met before: a set that forgets by age and by number. [CX-5, EN-5]

Telling all within some hops: flooding with a time to live, whole or of limited width.
[CX-4, CX-5, EN-5]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.chance import Chance
from rapport.transport.base import Address, Now

_GUESSES = 3


class Step(msgspec.Struct, frozen=True, gc=False):
    """Where a walker goes: `forward`, `back`, or nowhere (`stuck`, then `to` is None)."""

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
    """A uniformly random neighbour that is not on the path; in a dead end back to where this node
    was first reached from; stuck when that is before the first that walks.

    Args:
        path: the trail; it ends with who sent the walker here.
        own: this node; without it a node that a walker came back to cannot tell whence it first
            came, so give it wherever walkers go back.
        avoid: who is not to be gone to, for example because it did not acknowledge.
        revisit: any neighbour will do, the plain random walk.
        first: the place on the path of the first that walks; 1 where the path begins with a
            consumer, who is never gone to.

    Costs about a microsecond while most neighbours are fresh, else path plus neighbours.
    """
    count = len(neighbours)
    if count:
        # Most neighbours are fresh most of the time: guessing is cheaper than listing, and as fair.
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
    """To the node this one was first reached from; if that is avoided, to where that was first
    reached from, and so on.
    """
    place = _place_before(path, own, len(path))
    while place >= first:
        if path[place] not in avoid and path[place] != own:
            return Step("back", path[place])
        place = _place_before(path, path[place], place)
    return DEAD_END


def _place_before(path: Sequence[Address], node: Address | None, end: int) -> int:
    """The place of whom the node was first reached from; -1 when there is none."""
    for place in range(end):
        if path[place] == node:
            return place - 1
    return end - 1


def way_back(trail: Sequence[Address]) -> tuple[Address, ...]:
    """The trail without its detours: an answer need not go into dead ends again.

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


class Flood:
    """Decides who gets a message on.

    Without loss exactly those within `ttl` hops of the origin get it, whatever the delays: a copy
    that comes later over a shorter way, and so may go further, is passed on again. Act on what
    `is_new` says, not on whether there is someone to pass it on to.
    """

    __slots__ = ("_chance", "_seen")

    def __init__(self, seen: SeenFilter, chance: Chance | None = None) -> None:
        """`chance` is needed only for flooding with a `width`."""
        self._seen, self._chance = seen, chance

    def is_new(self, key: Hashable, now: Now) -> bool:
        """Whether `spread` was not called with this key; ask before."""
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
        """Who gets it on, with `ttl - 1`: all neighbours but who sent it, nobody at ttl 0 or when
        it was passed on before. The origin calls it with `came_from` None.

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
