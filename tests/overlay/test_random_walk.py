"""Walks: everywhere before stuck, and the difference that avoiding makes. [CX-5]"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from rapport.overlay.routing import next_hop, way_back
from rapport.transport.base import Address
from rapport_lab.topology import Topology, from_edges, mesh, ring, waxman

CONSUMER = ("consumer", 1)
TEN = [("b", number) for number in range(10)]


def walked(
    graph: Topology[Address],
    start: Address,
    chance: Chance,
    *,
    limit: int = 10_000,
    revisit: bool = False,
    avoid: tuple[Address, ...] = (),
) -> tuple[list[Address], bool]:
    """The nodes a walker was at, and whether it was stuck rather than stopped."""
    path, node = [CONSUMER], start
    was_at = [node]
    for _ in range(limit):
        neighbours = graph.neighbours[node]
        step = next_hop(neighbours, path, chance, own=node, revisit=revisit, avoid=avoid)
        if step.to is None:
            return was_at, True
        path.append(node)
        node = step.to
        was_at.append(node)
    return was_at, False


@given(st.integers(1, 40), st.integers(0, 2**32), st.sampled_from([1.0, 2.0, 3.0]))
def test_a_walker_is_everywhere_before_it_is_stuck(size: int, seed: int, degree: float) -> None:
    chance = Chance(seed)
    nodes = [("b", number) for number in range(size)]
    graph = waxman(nodes, chance, degree=degree)
    was_at, stuck = walked(graph, nodes[0], chance)
    assert stuck
    assert set(was_at) == set(nodes)
    assert was_at[-1] == nodes[0]
    assert len(was_at) - 1 <= 2 * (size - 1)


@given(st.integers(2, 30), st.integers(0, 2**32), st.integers(1, 8))
def test_who_is_avoided_is_never_gone_to_and_all_others_that_can_be_are(
    size: int, seed: int, dead: int
) -> None:
    chance = Chance(seed)
    nodes = [("b", number) for number in range(size)]
    graph = waxman(nodes, chance, degree=3)
    avoid = tuple(nodes[1 : 1 + dead])
    was_at, stuck = walked(graph, nodes[0], chance, avoid=avoid)
    alive = from_edges(
        [edge for edge in graph.edges() if not set(edge) & set(avoid)], set(nodes) - set(avoid)
    )
    assert stuck
    assert set(was_at) == set(alive.distances(nodes[0]))


def test_a_dead_end_is_left_to_where_the_walker_first_came_from() -> None:
    a, b, c, d = (("b", number) for number in range(4))
    step = next_hop((b,), (CONSUMER, a, b), Chance(1), own=c)
    assert (step.kind, step.to) == ("back", b)
    # Back at b, with c seen: a was before b, also when d was tried in between.
    step = next_hop((a, c, d), (CONSUMER, a, b, c, b, d), Chance(1), own=b)
    assert (step.kind, step.to) == ("back", a)
    step = next_hop((b,), (CONSUMER, a, b, c, b, d, b), Chance(1), own=a)
    assert (step.kind, step.to) == ("stuck", None)


def test_the_way_back_skips_one_that_died() -> None:
    a, b, c = (("b", number) for number in range(3))
    step = next_hop((b,), (CONSUMER, a, b), Chance(1), own=c, avoid=(b,))
    assert (step.kind, step.to) == ("back", a)


def test_a_walk_that_begins_with_a_node_goes_back_to_it() -> None:
    a, b = ("b", 0), ("b", 1)
    assert next_hop((a,), (a,), Chance(1), own=b, first=0).to == a
    assert next_hop((b,), (a, b), Chance(1), own=a, first=0).kind == "stuck"


def test_every_fresh_neighbour_is_as_likely() -> None:
    chance = Chance(3)
    path = (CONSUMER, *TEN[:6])
    steps = [next_hop(TEN, path, chance, own=("x", 1)).to for _ in range(4_000)]
    assert set(steps) == set(TEN[6:])
    assert all(900 < steps.count(node) < 1_100 for node in TEN[6:])


TOPOLOGIES: dict[str, Callable[[Chance], Topology[Address]]] = {
    "ring": lambda chance: ring(TEN),
    # Two links for each node that comes, as generators of topologies count connectivity.
    "waxman": lambda chance: waxman(TEN, chance, degree=3.4),
    "mesh": lambda chance: mesh(TEN),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "without", "avoiding"),
    [("ring", 0.52, 1.0), ("waxman", 0.60, 0.90), ("mesh", 0.72, 1.0)],
)
def test_avoiding_where_it_was_finds_what_a_plain_walk_misses(
    name: str, without: float, avoiding: float
) -> None:
    """Ten brokers, one copy anywhere, ten hops: the measured values of the table of decisions."""
    chance = Chance(11)

    def success(revisit: bool) -> float:
        found = 0
        for _ in range(2_000):
            graph = TOPOLOGIES[name](chance)
            start, goal = chance.choice(TEN), chance.choice(TEN)
            found += goal in walked(graph, start, chance, limit=10, revisit=revisit)[0]
        return found / 2_000

    assert success(revisit=True) == pytest.approx(without, abs=0.045)
    assert success(revisit=False) == pytest.approx(avoiding, abs=0.03)


def test_hops_to_one_of_r_copies_are_about_n_over_r_plus_one() -> None:
    """On a mesh a walk that avoids is drawing without putting back: the mean is (n-r)/(r+1)."""
    chance, size = Chance(4), 60
    nodes = [("b", number) for number in range(size)]
    graph = mesh(nodes)
    for copies in (1, 3, 9):
        hops = 0
        for _ in range(400):
            holders = set(chance.sample(nodes, copies))
            was_at, _ = walked(graph, chance.choice(nodes), chance, limit=size)
            hops += next(place for place, node in enumerate(was_at) if node in holders)
        assert hops / 400 == pytest.approx((size - copies) / (copies + 1), rel=0.15)


@given(st.lists(st.integers(0, 6), max_size=30))
def test_the_way_back_visits_nobody_twice_and_follows_steps_of_the_trail(trail: list[int]) -> None:
    path = [("b", number) for number in trail]
    back = way_back(path)
    assert len(set(back)) == len(back)
    assert set(pairwise(back)) <= set(pairwise(path))
    if path:
        assert back[0] == path[0]
        assert back[-1] == path[-1]
