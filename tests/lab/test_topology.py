"""Topologies: mutual, connected, of the wished degree. [CX-7]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport_lab.topology import (
    Topology,
    from_edges,
    is_connected,
    mesh,
    random_regular,
    ring,
    waxman,
)


def is_mutual(topology: Topology[int]) -> bool:
    neighbours = topology.neighbours
    return all(
        node in neighbours[other] and other != node and len(set(others)) == len(others)
        for node, others in neighbours.items()
        for other in others
    )


def test_a_ring_joins_each_with_two_and_all_with_each_other() -> None:
    made = ring(range(10))
    assert made.neighbours[0] == (1, 9)
    assert {len(others) for others in made.neighbours.values()} == {2}
    assert is_connected(made)
    assert max(made.distances(0).values()) == 5


def test_small_rings_have_neither_loops_nor_double_edges() -> None:
    assert ring([]).neighbours == {}
    assert ring([7]).neighbours == {7: ()}
    assert ring([7, 8]).neighbours == {7: (8,), 8: (7,)}


def test_a_mesh_joins_each_with_all() -> None:
    made = mesh(list(range(6)))
    assert made.neighbours[3] == (0, 1, 2, 4, 5)
    assert len(made.edges()) == 15


def test_edges_make_a_graph_in_both_directions_once() -> None:
    made = from_edges([("a", "b"), ("b", "a"), ("b", "c")], nodes=["z"])
    assert made.neighbours == {"z": (), "a": ("b",), "b": ("a", "c"), "c": ("b",)}
    assert not is_connected(made)
    assert made.edges() == [("a", "b"), ("b", "c")]


def test_an_edge_to_itself_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        from_edges([("a", "a")])
    assert refused.value.code == "overlay.bad_topology"


@given(st.integers(0, 40), st.integers(0, 2**32), st.sampled_from([None, 1.0, 2.0, 3.4, 8.0]))
def test_waxman_is_connected_and_mutual_for_any_size_and_degree(
    size: int, seed: int, degree: float | None
) -> None:
    made = waxman(list(range(size)), Chance(seed), degree=degree)
    assert made.nodes == tuple(range(size))
    assert is_connected(made)
    assert is_mutual(made)
    if degree is not None and size > 1:
        wished = min(max(round(size * degree / 2), size - 1), size * (size - 1) // 2)
        assert len(made.edges()) == wished


def test_waxman_prefers_near_nodes() -> None:
    """With a small beta neighbours of a node are neighbours of each other."""

    def triangles(beta: float) -> int:
        neighbours = waxman(list(range(300)), Chance(1), beta=beta, degree=6).neighbours
        return sum(
            other in neighbours[one]
            for others in neighbours.values()
            for one in others
            for other in others
        )

    assert triangles(0.05) > 4 * triangles(5.0)


def test_alpha_makes_waxman_denser() -> None:
    nodes = list(range(100))
    sparse = waxman(nodes, Chance(1), alpha=0.2, beta=0.2).mean_degree()
    assert waxman(nodes, Chance(1), alpha=0.8, beta=0.2).mean_degree() > 2.5 * sparse


def test_the_same_seed_gives_the_same_graph() -> None:
    nodes = list(range(50))
    one, other = (waxman(nodes, Chance(5), degree=4).neighbours for _ in range(2))
    assert one == other


@given(st.integers(3, 40), st.integers(2, 6), st.integers(0, 2**32))
def test_regular_graphs_have_the_same_degree_everywhere(size: int, degree: int, seed: int) -> None:
    nodes = list(range(size))
    if degree >= size or size * degree % 2:
        with pytest.raises(InvalidInput):
            random_regular(nodes, degree, Chance(seed))
        return
    made = random_regular(nodes, degree, Chance(seed))
    assert {len(others) for others in made.neighbours.values()} == {degree}
    assert is_connected(made)
    assert is_mutual(made)


def test_ten_thousand_nodes_are_joined_in_a_moment() -> None:
    made = waxman(list(range(10_000)), Chance(1), degree=8)
    assert is_connected(made)
    assert made.mean_degree() == 8
