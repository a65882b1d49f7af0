"""Flooding reaches exactly the ball around its origin. [CX-4, CX-5]"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport.overlay.routing import Flood, SeenFilter
from rapport.transport.base import Address, Now
from rapport_lab.topology import Topology, random_regular, waxman


def flooded(
    graph: Topology[Address],
    start: Address,
    ttl: int,
    delay: Callable[[], float],
    *,
    width: int = 0,
    loss: Callable[[], bool] = lambda: False,
) -> tuple[set[Address], int]:
    """Who was reached, and by how many messages."""
    floods = {node: Flood(SeenFilter(100, 1e9), Chance(1)) for node in graph.nodes}
    reached, messages = set[Address](), 0
    events: list[tuple[float, int, Address, Address | None, int]] = [(0.0, 0, start, None, ttl)]
    while events:
        time, _, node, came_from, left = heapq.heappop(events)
        now = Now(0, time)
        assert floods[node].is_new("key", now) == (node not in reached)
        reached.add(node)
        neighbours = graph.neighbours[node]
        for to in floods[node].spread("key", left, came_from, neighbours, now, width=width):
            messages += 1
            if not loss():
                heapq.heappush(events, (time + delay(), messages, to, node, left - 1))
    return reached, messages


def addresses(count: int) -> list[Address]:
    return [("b", number) for number in range(count)]


@given(st.integers(2, 40), st.integers(0, 5), st.integers(0, 2**32))
def test_it_reaches_exactly_the_ball_of_its_ttl_whatever_the_delays(
    size: int, ttl: int, seed: int
) -> None:
    chance = Chance(seed)
    graph = waxman(addresses(size), chance, degree=3)
    reached, _ = flooded(graph, ("b", 0), ttl, chance.random)
    assert reached == set(graph.distances(("b", 0), ttl))


def test_with_equal_delays_no_node_passes_it_on_twice() -> None:
    graph = random_regular(addresses(100), 4, Chance(1))
    reached, messages = flooded(graph, ("b", 0), 100, lambda: 1.0)
    assert len(reached) == 100
    # The origin tells four, every other node three at most.
    assert messages == 4 + 99 * 3


def test_normalized_flooding_sends_less_where_degrees_differ() -> None:
    """A hub among many: its width decides, not its degree."""
    chance = Chance(2)
    graph = waxman(addresses(200), chance, degree=10)
    all_reached, whole = flooded(graph, ("b", 0), 20, lambda: 1.0)
    some_reached, narrow = flooded(graph, ("b", 0), 20, lambda: 1.0, width=3)
    assert len(all_reached) == 200
    assert narrow < whole / 2
    assert len(some_reached) > 160


def test_what_was_passed_on_is_not_passed_on_again() -> None:
    flood = Flood(SeenFilter(10, 100))
    neighbours = [("a", 1), ("b", 1), ("c", 1)]
    now = Now(0, 0.0)
    assert flood.spread("k", 2, ("a", 1), neighbours, now) == [("b", 1), ("c", 1)]
    assert flood.spread("k", 2, ("b", 1), neighbours, now) == []
    assert flood.spread("other", 0, ("b", 1), neighbours, now) == []
    assert not flood.is_new("other", now)


def test_a_width_needs_chance() -> None:
    with pytest.raises(InvalidInput) as refused:
        Flood(SeenFilter(1, 1)).spread("k", 1, None, addresses(3), Now(0, 0.0), width=2)
    assert refused.value.code == "overlay.no_chance"
