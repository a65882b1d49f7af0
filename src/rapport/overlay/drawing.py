"""Edges drawn by chance between numbered nodes: what the random topologies are made of. [CX-7]"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rapport.kernel.chance import Chance

Place = tuple[float, float]
Pair = tuple[int, int]
"""Two numbers of nodes, the smaller first."""


def edge_of_each_pair(
    at: Sequence[Place], chance: Chance, alpha: float, scale: float
) -> list[Pair]:
    """Each pair with Waxman's probability `alpha * exp(-distance / scale)`."""
    return [
        (one, other)
        for other in range(len(at))
        for one in range(other)
        if chance.random() < alpha * math.exp(-math.dist(at[one], at[other]) / scale)
    ]


def bridges(at: Sequence[Place], pairs: Sequence[Pair]) -> list[Pair]:
    """Edges that make one of several parts: each part is joined to the nearest node of those
    joined before.
    """
    joined, *rest = _parts(len(at), pairs) or [[]]
    found: list[Pair] = []
    for part in rest:
        pairs_between = ((one, other) for one in part for other in joined)
        near = min(pairs_between, key=lambda pair: math.dist(at[pair[0]], at[pair[1]]))
        found.append((min(near), max(near)))
        joined += part
    return found


def grown_edges(at: Sequence[Place], chance: Chance, wanted: int, scale: float) -> list[Pair]:
    """A connected graph of so many edges (at least n-1, at most all): each node is joined to an
    earlier one, the rest is drawn from all pairs, in proportion to `exp(-distance / scale)`.
    """
    total = len(at)
    found: dict[Pair, None] = {}
    for node in range(1, total):
        found[_drawn_before(node, at, chance, scale), node] = None
    while len(found) < min(wanted, total * (total - 1) // 2):
        node = int(chance.random() * total)
        other = int(chance.random() * total)
        if node != other and _is_drawn(at[node], at[other], chance, scale):
            found[min(node, other), max(node, other)] = None
    return list(found)


def paired_stubs(total: int, degree: int, chance: Chance) -> list[Pair]:
    """Edges so that each node has exactly `degree`: ends are paired at random, those that give a
    loop or a double edge again, all again when that leads nowhere (Steger and Wormald).
    """
    while True:
        found: dict[Pair, None] = {}
        ends = [node for node in range(total) for _ in range(degree)]
        stalled = 0
        while ends and stalled < 20:
            chance.shuffle(ends)
            left = _pair_up(ends, found)
            stalled = stalled + 1 if len(left) == len(ends) else 0
            ends = left
        if not ends:
            return list(found)


def _pair_up(ends: list[int], found: dict[Pair, None]) -> list[int]:
    """Adds the edges that are possible; gives the ends of the others."""
    left: list[int] = []
    for one, other in zip(ends[::2], ends[1::2], strict=True):
        pair = (one, other) if one < other else (other, one)
        if one == other or pair in found:
            left += (one, other)
        else:
            found[pair] = None
    return left


def _drawn_before(node: int, at: Sequence[Place], chance: Chance, scale: float) -> int:
    while True:
        earlier = int(chance.random() * node)
        if _is_drawn(at[earlier], at[node], chance, scale):
            return earlier


def _is_drawn(one: Place, other: Place, chance: Chance, scale: float) -> bool:
    return chance.random() < math.exp(-math.dist(one, other) / scale)


def _parts(total: int, pairs: Sequence[Pair]) -> list[list[int]]:
    """The connected parts, that of the first node first."""
    beside: list[list[int]] = [[] for _ in range(total)]
    for one, other in pairs:
        beside[one].append(other)
        beside[other].append(one)
    met = [False] * total
    parts: list[list[int]] = []
    for start in range(total):
        if not met[start]:
            part, met[start] = [start], True
            for node in part:  # grows while it is read
                for other in beside[node]:
                    if not met[other]:
                        met[other] = True
                        part.append(other)
            parts.append(part)
    return parts
