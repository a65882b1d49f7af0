"""The cache of a listener: order, room, marks. [CH-7]"""

from __future__ import annotations

from rapport.channel.agents import listener_state
from rapport.channel.agents.listener_state import ListenerCache
from support.judge.model_source import make_stored


def make(acknowledged: int = 0, most_events: int = 10, most_bytes: int = 10**6) -> ListenerCache:
    return ListenerCache(acknowledged, most_events=most_events, most_bytes=most_bytes)


def put(cache: ListenerCache, token: str, *positions: int) -> int:
    return cache.put(token, [make_stored(one) for one in positions], "h")


def positions(events) -> list[int]:
    return [one.position for one in events]


def test_what_comes_twice_is_dropped_and_order_is_kept():
    cache = make()
    assert put(cache, "a", 1, 2, 5) == 3
    assert put(cache, "a", 1, 2, 5) == 0
    assert put(cache, "b", 5, 6) == 1
    taken = cache.take(10)
    assert positions(taken) == [1, 2, 5, 6]
    assert {one.handback for one in taken} == {"h"}


def test_there_is_room_only_for_whole_sets_and_only_while_bytes_are_left():
    cache = make(most_events=4)
    put(cache, "a", 1, 2)
    assert cache.has_room(2)
    assert not cache.has_room(3)
    small = make(most_bytes=600)
    assert small.has_room(1)
    put(small, "a", 1, 2)
    assert not small.has_room(1)
    small.take(1)
    assert small.has_room(1)


def test_the_open_token_is_that_of_the_first_set_with_something_left():
    cache = make()
    put(cache, "a", 1, 2)
    put(cache, "b", 3, 4)
    cache.take(4)
    assert cache.open_token() == "a"
    cache.acknowledge(1)
    assert cache.open_token() == "a"
    cache.acknowledge(3)
    assert (cache.open_token(), cache.acknowledged) == ("b", 3)
    cache.acknowledge(4)
    assert cache.open_token() == ""
    cache.acknowledge(2)
    assert cache.acknowledged == 4


def test_acknowledging_ahead_drops_what_waits_and_what_comes():
    cache = make()
    put(cache, "a", 1, 2, 3)
    cache.acknowledge(5)
    assert (len(cache), cache.waiting_bytes) == (0, 0)
    assert put(cache, "b", 4, 5, 6) == 1
    assert positions(cache.take(9)) == [6]


def test_what_is_given_back_comes_next_unless_it_was_acknowledged():
    cache = make()
    put(cache, "a", 1, 2, 3, 4)
    taken = cache.take(3)
    assert cache.handed() == 3
    cache.acknowledge(1)
    cache.give_back(taken)
    assert cache.handed() == 1
    assert positions(cache.take(9)) == [2, 3, 4]
    assert (cache.handed(), cache.waiting_bytes) == (4, 0)


def test_who_never_acknowledges_loses_marks_but_no_event(monkeypatch):
    monkeypatch.setattr(listener_state, "_MOST_MARKS", 5)
    cache = make(most_events=1_000)
    for position in range(1, 100):
        put(cache, f"t{position}", position)
    assert len(cache._sets) <= 6
    for done in range(1, 99):
        cache.acknowledge(done)
        assert int(cache.open_token()[1:]) <= done + 1
    cache.acknowledge(99)
    assert cache.open_token() == ""


def test_of_events_with_one_position_none_is_dropped_because_another_is_done():
    cache = make()
    assert put(cache, "a", 3, 4, 4, 4, 5) == 5
    first, second = cache.take(2)
    cache.acknowledge(cache.mark_of(first))
    cache.acknowledge(cache.mark_of(second))
    assert cache.acknowledged == 3
    cache.give_back([second])
    again = cache.take(3)
    assert positions(again) == [4, 4, 4]
    cache.acknowledge(cache.mark_of(again[-1]))
    assert cache.acknowledged == 4
    assert positions(cache.take(9)) == [5]
