"""Graphs for tests and simulations of networks: ring, mesh, Waxman, regular, any list of edges.
[CX-7]
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance

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


Node = TypeVar("Node", bound=Hashable)
Edge = tuple[Node, Node]


class Topology(Generic[Node]):
    """Each node's neighbours, without loops and double edges; mutual as the makers here give it."""

    __slots__ = ("neighbours",)

    def __init__(self, neighbours: dict[Node, tuple[Node, ...]]) -> None:
        self.neighbours = neighbours

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order in which they were given."""
        return tuple(self.neighbours)

    def edges(self) -> list[Edge[Node]]:
        """Every edge once."""
        place = {node: number for number, node in enumerate(self.neighbours)}
        return [
            (node, other)
            for node, others in self.neighbours.items()
            for other in others
            if place[node] < place[other]
        ]

    def mean_degree(self) -> float:
        """Neighbours per node."""
        if not self.neighbours:
            return 0.0
        return sum(map(len, self.neighbours.values())) / len(self.neighbours)

    def distances(self, start: Node, most: int | None = None) -> dict[Node, int]:
        """Hops from a node to all that are reachable from it, within `most` hops when given."""
        found, border, hops = {start: 0}, [start], 0
        while border and (most is None or hops < most):
            hops += 1
            border = [
                other
                for node in border
                for other in self.neighbours[node]
                if other not in found and found.setdefault(other, hops) == hops
            ]
        return found


def is_connected(topology: Topology[Node]) -> bool:
    """Whether there is a way from every node to every other; true for an empty one."""
    if not topology.neighbours:
        return True
    return len(topology.distances(topology.nodes[0])) == len(topology.neighbours)


def from_edges(edges: Iterable[Edge[Node]], nodes: Iterable[Node] = ()) -> Topology[Node]:
    """Of edges in any direction, perhaps doubled; `nodes` adds some that may have none."""
    found: dict[Node, dict[Node, None]] = {node: {} for node in nodes}
    for one, other in edges:
        if one == other:
            raise InvalidInput(
                f"an edge leads from {one} to itself",
                code="overlay.bad_topology",
                hint="an edge joins two different nodes",
            )
        found.setdefault(one, {})[other] = None
        found.setdefault(other, {})[one] = None
    return Topology({node: tuple(others) for node, others in found.items()})


def ring(nodes: Sequence[Node]) -> Topology[Node]:
    """Each with the one before and the one after."""
    pairs = zip(nodes, (*nodes[1:], *nodes[:1]), strict=True)
    return from_edges(((one, other) for one, other in pairs if one != other), nodes)


def mesh(nodes: Sequence[Node]) -> Topology[Node]:
    """Each with all others."""
    return Topology(
        {node: (*nodes[:place], *nodes[place + 1 :]) for place, node in enumerate(nodes)}
    )


def waxman(
    nodes: Sequence[Node],
    chance: Chance,
    *,
    alpha: float = 0.4,
    beta: float = 0.2,
    degree: float | None = None,
) -> Topology[Node]:
    """Nodes at random places of a unit square, joined with probability
    `alpha * exp(-distance / (beta * diagonal))`; connected, because parts are joined by an edge
    between nodes that are near each other. Costs n*n draws.

    With `degree` (the wished mean number of neighbours) the graph grows instead: each node is
    joined to an earlier one, then edges are drawn until there are n*degree/2, all with
    probabilities in the proportion above, so `alpha` means nothing. Costs about n*degree/beta.
    Fewer than n-1 edges connect nobody: the least mean degree is 2(n-1)/n.
    """
    at: list[Place] = [(chance.random(), chance.random()) for _ in nodes]
    scale = beta * math.sqrt(2)
    if degree is None:
        pairs = edge_of_each_pair(at, chance, alpha, scale)
        pairs += bridges(at, pairs)
    else:
        pairs = grown_edges(at, chance, round(len(nodes) * degree / 2), scale)
    return from_edges(((nodes[one], nodes[other]) for one, other in pairs), nodes)


def random_regular(nodes: Sequence[Node], degree: int, chance: Chance) -> Topology[Node]:
    """Each with exactly `degree` neighbours, drawn at random, connected; raises InvalidInput when
    no such graph exists.
    """
    total = len(nodes)
    if degree < 2 or degree >= total or total * degree % 2:
        raise InvalidInput(
            f"no connected graph has {total} nodes of degree {degree} each",
            code="overlay.bad_topology",
            hint="a degree of at least 2 and below the number of nodes, one of them even",
        )
    while True:
        edges = paired_stubs(total, degree, chance)
        made = from_edges(((nodes[one], nodes[other]) for one, other in edges), nodes)
        if is_connected(made):
            return made
