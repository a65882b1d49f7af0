"""The next step of a random walk that avoids where it was. [CX-5]

The walker carries its trail: every address it was sent on from, in order, back steps too. From it
alone each node knows where the walker was and where it first came from, so the walk is a random
depth-first search without state in the nodes: on a connected graph it is stuck only after it was
everywhere, within 2(n-1) steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from rapport.kernel.chance import Chance
from rapport.transport.base import Address

_GUESSES = 3


class Step(msgspec.Struct, frozen=True, gc=False):
    """Where a walker goes: `forward`, `back`, or nowhere (`stuck`, then `to` is None)."""

    kind: Literal["forward", "back", "stuck"]
    to: Address | None = None


STUCK = Step("stuck")


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
    return STUCK


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
