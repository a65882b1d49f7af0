"""Search and replication as plain functions on lists of neighbours, written a second time: the
judge of the statistics of simulated brokers. No messages, no time, no failures. [CX-12]
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

Neighbours = Sequence[Sequence[int]]


class Walked(NamedTuple):
    """How a walk ended."""

    found: bool
    hops: int
    path: list[int]
    """The brokers from the first to the last, without the ways that led nowhere."""
    seen: int
    """How many different brokers were looked at, on the way or from beside it."""


def walk(
    neighbours: Neighbours,
    holders: Collection[int],
    start: int,
    limit: int,
    chance: random.Random,
    *,
    depth: int = 0,
    avoid: bool = True,
) -> Walked:
    """A random walk until a holder is met, or seen from at most `depth` away, or the limit."""
    path, visited, seen = [start], {start}, set[int]()
    for hops in range(limit + 1):
        here = path[-1]
        near = within(neighbours, here, depth)
        seen |= near
        if not near.isdisjoint(holders):
            return Walked(True, hops, path, len(seen))
        fresh = [each for each in neighbours[here] if not avoid or each not in visited]
        if fresh:
            path.append(chance.choice(fresh))
            visited.add(path[-1])
        elif len(path) > 1:
            path.pop()
        else:
            return Walked(False, hops, path, len(seen))
    return Walked(False, limit, path, len(seen))


def within(neighbours: Neighbours, start: int, depth: int) -> set[int]:
    """The brokers at most so many steps away."""
    found, edge = {start}, [start]
    for _ in range(depth):
        edge = [near for each in edge for near in neighbours[each] if near not in found]
        found.update(edge)
    return found


class Asked(NamedTuple):
    """What a series of requests cost, and what it left behind."""

    hops: list[int]
    copies: list[float]
    """For each key the mean number of copies over the second half of the requests."""


def ask_in_turn(
    neighbours: Neighbours,
    homes: Sequence[int],
    keys: Sequence[int],
    chance: random.Random,
    *,
    marks: str,
    lifetime: int,
) -> Asked:
    """Requests one after the other, each from a broker chosen by chance; each leaves copies on its
    path: `path` on half of the brokers, `one` on one, `none`. A copy lives for so many requests.
    """
    expires: list[dict[int, int]] = [{} for _ in homes]
    totals, hops = [0.0] * len(homes), []
    for turn, key in enumerate(keys):
        alive = expires[key]
        for broker in [broker for broker, until in alive.items() if until <= turn]:
            del alive[broker]
        start = chance.randrange(len(neighbours))
        walked = walk(
            neighbours, {homes[key], *alive}, start, 10 * len(neighbours), chance, avoid=True
        )
        hops.append(walked.hops)
        for broker in chosen(walked.path[:-1], marks, chance):
            alive[broker] = turn + lifetime
        if turn * 2 >= len(keys):
            for each, copies in enumerate(expires):
                totals[each] += 1 + sum(until > turn for until in copies.values())
    counted = len(keys) - (len(keys) + 1) // 2
    return Asked(hops, [total / max(counted, 1) for total in totals])


def chosen(path: Sequence[int], marks: str, chance: random.Random) -> list[int]:
    """The brokers of a path that keep a copy."""
    count = {"none": 0, "one": min(1, len(path)), "path": (len(path) + 1) // 2}[marks]
    return chance.sample(list(path), count)
