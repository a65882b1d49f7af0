"""Membership in a small world: joining, dying, leaving, coming back, parting and healing. [CX-4]"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport.overlay.membership import Membership
from rapport.overlay.membership_steps import (
    IsolationNotice,
    JoinedNetwork,
    MembershipSettings,
    NeighbourLost,
    SendDeparted,
    SendJoin,
    SendPing,
)
from rapport.transport.base import Address, Now
from rapport_lab.topology import from_edges, is_connected
from support.examples import examples

At = Callable[[float], Now]
Make = Callable[..., Any]


def address(number: int) -> Address:
    return ("b", number)


def grown(world: Make, count: int, seed: int = 1, **options: Any) -> Any:
    """A network in which each newcomer is given all that were there."""
    made = world(seed, **options)
    for number in range(count):
        place = made.chance.random(), made.chance.random()
        made.add(address(number), place)
        made.start(address(number), [address(other) for other in range(number)])
        made.run(100)
    made.run(8_000)
    return made


def told(made: Any, kind: type) -> list[Any]:
    return [step for _, _, step in made.told if isinstance(step, kind)]


# Joining


def test_three_that_start_together_find_each_other(world: Make) -> None:
    made = world()
    names = [address(number) for number in range(3)]
    for name in names:
        made.add(name, (0.0, 0.0))
    for name in names:
        made.start(name, names)
    made.run(1_000)
    assert {name: set(member.neighbours) for name, member in made.members.items()} == {
        name: set(names) - {name} for name in names
    }
    assert len(told(made, JoinedNetwork)) == 3


def test_too_few_answers_and_it_does_not_join_before_a_new_list_comes(world: Make) -> None:
    made = world()
    for number in (1, 2, 3):
        made.add(address(number), (0.0, 0.0))
    made.start(address(1), [address(2), address(7), address(8), address(9)])
    made.run(60_000)
    assert made.members[address(1)].neighbours == ()
    assert told(made, IsolationNotice) == [IsolationNotice(answered=1, needed=2)]
    assert "SendJoin" not in made.sent
    made.start(address(1), [address(2), address(3), address(9)])
    made.run(1_000)
    assert set(made.members[address(1)].neighbours) == {address(2), address(3)}


def test_a_list_of_one_asks_for_no_more_than_one(world: Make) -> None:
    made = world()
    made.add(address(1), (0.0, 0.0))
    made.add(address(2), (0.0, 0.0))
    made.start(address(1), [address(2)])
    made.run(30_000)
    assert made.members[address(1)].neighbours == (address(2),)
    assert made.members[address(2)].neighbours == (address(1),)


def test_newcomers_always_get_in_and_nobody_ever_has_too_many(world: Make) -> None:
    made = grown(world, 40, at_most=5)
    degrees = [len(member.neighbours) for member in made.members.values()]
    assert max(degrees) == 5
    assert min(degrees) >= 2
    assert is_connected(made.graph())


def test_newcomers_get_in_through_a_few_that_everybody_knows(world: Make) -> None:
    """The list of the source: the most stable brokers, the same for all."""
    made = world(at_most=4)
    for number in range(30):
        made.add(address(number), (made.chance.random(), made.chance.random()))
        made.start(address(number), [address(other) for other in range(min(number, 4))])
        made.run(100)
    made.run(30_000)
    degrees = [len(member.neighbours) for member in made.members.values()]
    assert max(degrees) <= 4
    assert min(degrees) >= 2
    assert is_connected(made.graph())


def two_towns(made: Any, at_most: int) -> tuple[list[Address], list[tuple[Address, Address]]]:
    """Members in two towns far from each other, and whom each would choose by latency alone."""
    names = [address(number) for number in range(24)]
    for number, name in enumerate(names):
        town = 0.0 if number % 2 else 100.0
        made.add(name, (town + made.chance.random(), made.chance.random()))
    nearest = [
        (name, other)
        for name in names
        for other in sorted(
            (one for one in names if one != name),
            key=lambda one: math.dist(made.places[name], made.places[one]),
        )[:at_most]
    ]
    return names, nearest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_alone_split_the_network_and_one_by_chance_holds_it_together(
    world: Make, seed: int
) -> None:
    made = world(seed, at_most=6, wait_ms=5_000)
    names, nearest = two_towns(made, at_most=6)
    assert not is_connected(from_edges(nearest, names))
    for name in names:
        made.start(name, names)
    made.run(60_000)
    assert is_connected(made.graph())
    assert max(len(member.neighbours) for member in made.members.values()) <= 6


def test_one_that_refuses_or_dies_is_replaced_by_the_next_nearest(at: At) -> None:
    member = Membership(address(0), MembershipSettings(at_most=3, pings=1), Chance(1))
    pings = member.start([address(number) for number in range(1, 7)], at(0))
    for ping in pings:
        assert isinstance(ping, SendPing)
        asked = member.answered(ping.to, ping.number, at(ping.to[1]))
    joins = [step.to for step in asked if isinstance(step, SendJoin)]
    assert joins[:2] == [address(1), address(2)]
    drawn = joins[2]
    others = [address(number) for number in range(3, 7) if address(number) != drawn]
    refused = member.welcomed(address(1), False, (), at(10))
    assert [step.to for step in refused] == [others[0]]
    member.welcomed(address(2), True, (), at(11))
    member.welcomed(drawn, True, (), at(11))
    ended = member.welcomed(others[0], True, (address(9),), at(12))
    assert ended == [JoinedNetwork((address(2), drawn, others[0]))]
    assert member.random == drawn


# Losing


def test_a_silent_neighbour_is_found_and_all_hear_of_it(world: Make) -> None:
    made = grown(world, 8)
    made.told.clear()
    died = made.time
    made.kill(address(3))
    made.run(4_100)
    lost = [(time, step) for time, _, step in made.told if isinstance(step, NeighbourLost)]
    assert {step for _, step in lost} == {NeighbourLost(address(3), abrupt=True)}
    assert len(lost) == 7
    assert lost[0][0] - died <= 4_000
    # The first to find it tells the others, whose own pings then decide within a period.
    assert lost[-1][0] - lost[0][0] < 1_000
    assert all(address(3) not in member.neighbours for member in made.members.values())


def test_one_that_leaves_says_so_and_is_not_looked_for(world: Make) -> None:
    made = grown(world, 6)
    made.told.clear()
    made.call(address(2), made.members[address(2)].leave(made.now))
    made.run(100)
    assert told(made, NeighbourLost) == [NeighbourLost(address(2), abrupt=False)] * 5
    spoken_to: set[Address] = set()
    made.cut = lambda one, other: spoken_to.add(other)
    made.run(20_000)
    assert address(2) not in spoken_to
    assert made.members[address(2)].neighbours == ()
    assert made.members[address(2)].next_due_ms() is None
    admission = made.members[address(2)].join_requested(address(1), made.now)
    assert (admission.accepted, admission.others) == (False, ())


def test_the_word_of_a_departure_goes_as_far_as_its_ttl(world: Make) -> None:
    made = world(departure_ttl=2)
    names = [address(number) for number in range(6)]
    for name in names:
        made.add(name, (0.0, 0.0))
    for one, other in pairwise(names):
        made.members[one].adopt([other], made.now)
        made.members[other].adopt([one], made.now)
    made.call(names[0], made.members[names[0]].leave(made.now))
    made.run(50)
    assert made.sent["SendDeparted"] == 2, "to the neighbour, and from it to its other one"


def test_below_two_neighbours_it_looks_again_among_those_it_knows(world: Make) -> None:
    made = grown(world, 12, at_most=3)
    lonely = address(0)
    for neighbour in made.members[lonely].neighbours:
        made.kill(neighbour)
    made.run(20_000)
    assert len(made.members[lonely].neighbours) >= 2
    assert set(made.members[lonely].neighbours) <= set(made.members)
    assert is_connected(made.graph())


def test_a_lost_random_neighbour_is_replaced_by_another_drawn_one(world: Make) -> None:
    made = grown(world, 20, at_most=6)
    member = made.members[address(19)]
    former = member.random
    assert former in member.neighbours
    made.kill(former)
    made.run(10_000)
    assert member.random != former
    assert member.random in member.neighbours


def test_a_living_neighbour_is_not_dropped_because_somebody_says_so(world: Make) -> None:
    made = grown(world, 4)
    made.told.clear()
    said = made.members[address(0)].departed(address(1), 77, 1, True, address(2), made.now)
    assert [step for step in said if isinstance(step, SendPing)]
    assert [step.to for step in said if isinstance(step, SendDeparted)] == [address(3)]
    made.call(address(0), said)
    made.run(3_000)
    assert told(made, NeighbourLost) == []


# Coming back


def test_a_restarted_one_finds_its_way_back_by_its_former_neighbours(world: Make) -> None:
    made = grown(world, 6)
    former = made.members[address(2)].neighbours
    made.kill(address(2))
    made.run(10_000)
    made.add(address(2), made.places[address(2)], former)
    made.start(address(2), [])
    made.run(1_000)
    assert len(made.members[address(2)].neighbours) >= 2
    assert is_connected(made.graph())


def test_a_restarted_one_that_knows_nobody_is_found_by_its_neighbours(world: Make) -> None:
    made = grown(world, 6)
    made.kill(address(2))
    made.run(10_000)
    made.add(address(2), made.places[address(2)])
    made.run(10_000)
    assert len(made.members[address(2)].neighbours) >= 2


def test_one_that_starts_before_all_others_of_its_former_life_keeps_trying(world: Make) -> None:
    made = world()
    made.add(address(0), (0.0, 0.0), [address(1), address(2)])
    made.start(address(0), [])
    made.run(30_000)
    assert made.members[address(0)].neighbours == ()
    made.add(address(1), (0.0, 0.0))
    made.add(address(2), (0.0, 0.0))
    made.run(10_000)
    assert set(made.members[address(0)].neighbours) == {address(1), address(2)}


@pytest.mark.slow
def test_halves_of_a_network_grow_together_after_a_partition(world: Make) -> None:
    made = grown(world, 16, at_most=5)
    made.cut = lambda one, other: (one[1] < 8) != (other[1] < 8)
    made.run(30_000)
    assert not is_connected(made.graph())
    halves = [[name for name in made.members if (name[1] < 8) == first] for first in (True, False)]
    for half in halves:
        inside = [edge for edge in made.graph().edges() if set(edge) <= set(half)]
        assert is_connected(from_edges(inside, half)), "each half is a network of its own"
    made.cut = lambda one, other: False
    made.run(15_000)
    assert is_connected(made.graph())


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_loss_neither_splits_the_network_nor_empties_it(world: Make, loss: float) -> None:
    made = grown(world, 15, loss=loss, at_most=6)
    false_alarms = len(told(made, NeighbourLost))
    for _ in range(10):
        made.run(5_000)
        assert is_connected(made.graph())
        assert all(member.neighbours for member in made.members.values())
    if loss == 0.1:
        assert len(told(made, NeighbourLost)) == false_alarms


@pytest.mark.slow
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from("skl"), st.integers(0, 9)), min_size=5, max_size=30),
    st.integers(0, 2**16),
)
def test_whatever_comes_and_goes_the_bounds_hold_and_who_is_left_is_connected(
    world: Make, changes: list[tuple[str, int]], seed: int
) -> None:
    made = world(seed, at_most=4)
    everyone = [address(number) for number in range(10)]
    for number in range(4):
        made.add(address(number), (made.chance.random(), made.chance.random()))
    for number in range(4):
        made.start(address(number), everyone[:4])
    for change, number in changes:
        name = address(number)
        if change == "s":
            if name not in made.members:
                made.add(name, (made.chance.random(), made.chance.random()))
            made.start(name, everyone)
        elif name in made.members and len(made.members) > 3:
            if change == "l":
                made.call(name, made.members[name].leave(made.now))
                made.run(50)
            made.kill(name)
        made.run(700)
        for one, member in made.members.items():
            assert len(set(member.neighbours)) == len(member.neighbours) <= 4
            assert one not in member.neighbours
    # A last list for all, as a controller would give after such a day; then time to settle.
    for name in made.members:
        made.start(name, list(made.members))
    made.run(40_000)
    assert is_connected(made.graph())


def test_one_that_was_only_ever_asked_looks_for_a_second_neighbour(world: Make) -> None:
    made = world()
    seed, *others = [address(number) for number in range(5)]
    for name in (seed, *others):
        made.add(name, (0.0, 0.0))
    for name in others:
        made.start(name, others)
    made.run(20_000)
    assert not made.members[seed].neighbours
    made.start(others[0], [seed])  # nobody else has heard of it, and all others have enough
    made.run(60_000)
    assert len(made.members[seed].neighbours) >= 2


# Topologies by hand


def test_a_topology_given_by_hand_is_kept_as_it_is(world: Make) -> None:
    made = world()
    names = [address(number) for number in range(5)]
    wanted = from_edges([(names[0], names[number]) for number in range(1, 5)], names)
    for name in names:
        made.add(name, (0.0, 0.0))
    for one, other in wanted.edges():
        made.call(one, made.members[one].connect([other], made.now))
        made.run(50)
    made.run(30_000)
    assert {n: set(others) for n, others in made.graph().neighbours.items()} == {
        n: set(others) for n, others in wanted.neighbours.items()
    }


def test_one_that_is_to_be_connected_later_is_waited_for(world: Make) -> None:
    made = world()
    for number in range(3):
        made.add(address(number), (0.0, 0.0))
    made.call(
        address(0),
        made.members[address(0)].connect([address(1), address(2), address(3)], made.now),
    )
    made.run(5_000)
    assert set(made.members[address(0)].neighbours) == {address(1), address(2)}
    made.add(address(3), (0.0, 0.0))
    made.run(5_000)
    assert address(3) in made.members[address(0)].neighbours


def test_a_ring_that_loses_one_closes_again(world: Make) -> None:
    made = world()
    names = [address(number) for number in range(6)]
    for name in names:
        made.add(name, (0.0, 0.0))
    for number, name in enumerate(names):
        beside = [names[number - 1], names[(number + 1) % 6]]
        made.call(name, made.members[name].connect(beside, made.now))
        made.run(20)
    made.kill(names[3])
    made.run(20_000)
    assert is_connected(made.graph())
    assert all(len(member.neighbours) >= 2 for member in made.members.values())


@pytest.mark.parametrize("hearsay", [True, False])
def test_those_whose_hub_died_ask_whom_they_only_heard_of(world: Make, hearsay: bool) -> None:
    made = world()
    hub, *others = [address(number) for number in range(5)]
    made.add(hub, (0.0, 0.0)).adopt(others, made.now)
    for other in others:
        made.add(other, (0.0, 0.0)).adopt([hub], made.now)
        made.call(other, [])
    for one, other in pairwise(others) if hearsay else ():
        made.members[other].heard_of(one)
    made.kill(hub)
    made.run(12_000)
    assert is_connected(made.graph()) == hearsay


def test_monitoring_begins_when_it_is_asked_for(at: At) -> None:
    member = Membership(address(0), MembershipSettings(), Chance(1), watching=False)
    member.adopt([address(1), address(2)], at(0))
    assert member.next_due_ms() is None
    member.monitor(at(0))
    assert {step.to for step in member.tick(at(1_000))} == {address(1), address(2)}
    assert member.mean_ms(address(1)) is None
    assert member.timeout_ms(address(1)) == 200


def test_settings_that_no_network_can_meet_are_refused() -> None:
    counts = ({"at_least": 0}, {"at_least": 3, "at_most": 2}, {"at_most": 1}, {"misses": 0})
    none = ({"others": -1}, {"most_candidates": 0}, {"repeats": -1}, {"wait_ms": math.nan})
    no_pause = ({"period_ms": 0}, {"look_again_ms": -1.0}, {"revisit_ms": 0.0}, {"jitter": 1.5})
    for wrong in (*counts, *none, *no_pause):
        with pytest.raises(InvalidInput) as refused:
            MembershipSettings(**wrong)
        assert refused.value.code == "overlay.bad_settings"
        assert refused.value.hint


def test_who_began_anew_and_remembers_nobody_is_found_by_those_who_have_it(world: Make) -> None:
    """The first broker of a network has no list; it is back before anybody misses its answers."""
    made, names = world(3), [address(number) for number in range(4)]
    for name in names:
        made.add(name, (0.1, 0.1))
    for name in names[1:]:
        made.start(name, names[:1])
    made.run(10_000)
    made.kill(names[0])
    made.run(500)
    again = made.add(names[0], (0.1, 0.1))
    made.run(90_000)
    assert set(again.neighbours) == set(names[1:])


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_mutual_again_whatever_words_were_lost(world: Make, seed: int) -> None:
    made = world(seed, loss=0.3, at_most=4)
    names = [address(number) for number in range(14)]
    for number, name in enumerate(names):
        made.add(name, (number % 4 / 4, number // 4 / 4))
    for name in names:
        made.start(name, [one for one in names if one != name])
    made.run(60_000)
    made.loss = 0.0
    made.run(180_000)
    assert [
        (name, near)
        for name in names
        for near in made.members[name].neighbours
        if name not in made.members[near].neighbours
    ] == []


def test_who_left_is_no_neighbour_though_its_goodbye_was_lost(world: Make) -> None:
    made, names = world(5), [address(number) for number in range(3)]
    for name in names:
        made.add(name, (0.1, 0.1))
    for name in names[1:]:
        made.start(name, [one for one in names if one != name])
    made.run(5_000)
    made.members[names[0]].leave(made.now)  # nothing of what it says is sent
    made.run(90_000)
    assert [names[0] in made.members[name].neighbours for name in names[1:]] == [False, False]
