"""The seen-set: bounded, exact within its bounds. [CX-5]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.overlay.routing import SeenFilter
from rapport.transport.base import Now

moves = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), max_size=200)


def test_a_key_is_new_once_and_again_after_its_time() -> None:
    seen = SeenFilter(10, keep_ms=100)
    assert seen.first_time("a", Now(0, 0.0))
    assert not seen.first_time("a", Now(0, 99.9))
    assert seen.first_time("a", Now(0, 100.0))


def test_the_oldest_gives_way_when_it_is_full() -> None:
    seen = SeenFilter(2, keep_ms=1e9)
    now = Now(0, 0.0)
    assert [seen.first_time(key, now) for key in "abc"] == [True] * 3
    assert len(seen) == 2
    assert not seen.first_time("c", now)
    assert seen.first_time("a", now)


def test_a_level_rises_only_upwards() -> None:
    seen = SeenFilter(10, keep_ms=100)
    levels = [(2, True), (2, False), (1, False), (3, True), (2, False)]
    assert [seen.rises("a", level, Now(0, 1.0)) for level, _ in levels] == [
        new for _, new in levels
    ]
    assert seen.knows("a", Now(0, 50.0))
    assert not seen.knows("a", Now(0, 101.0))


@given(moves, st.integers(1, 8))
def test_it_agrees_with_a_plain_list_and_stays_bounded(
    moves: list[tuple[int, int]], capacity: int
) -> None:
    seen, kept, time = SeenFilter(capacity, keep_ms=50), list[tuple[int, int]](), 0
    for key, passed in moves:
        time += passed
        kept = [(met, one) for met, one in kept if met + 50 > time]
        is_new = all(one != key for _, one in kept)
        if is_new:
            kept = [*kept, (time, key)][-capacity:]
        assert seen.first_time(key, Now(0, float(time))) == is_new
        assert len(seen) == len(kept) <= capacity


def test_a_memory_without_room_is_refused() -> None:
    for capacity, keep_ms in ((0, 1.0), (1, 0.0)):
        with pytest.raises(InvalidInput):
            SeenFilter(capacity, keep_ms)
