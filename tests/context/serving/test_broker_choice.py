"""Which broker a client talks to. [CX-11]"""

from collections.abc import Callable

import pytest

from rapport.context.clients.broker_link import BrokerChoice
from rapport.context.connections import ClientSettings
from rapport.kernel.clock import Chance
from rapport.transport.base import Address

NEAR, FAR, OTHER = ("near", 1), ("far", 1), ("other", 1)
SETTINGS = ClientSettings()

World = Callable[[Address, float], tuple[float, float] | None]
"""Round trip and load of a broker at a time; None when it is gone."""


def play(choice: BrokerChoice, world: World, begin: float, end: float) -> list[Address | None]:
    """Lets time pass in steps of 1 ms; says who was chosen, each change once."""
    chosen: list[Address | None] = [choice.current]
    answers: list[tuple[float, Address, int, float]] = []
    now = begin
    while now < end:
        for ping, to in choice.due(now):
            found = world(to, now)
            if found is not None:
                answers.append((now + found[0], to, ping.id, found[1]))
        for answer in [one for one in answers if one[0] <= now]:
            answers.remove(answer)
            choice.answered(answer[1], answer[2], answer[3], answer[0])
        if choice.current != chosen[-1]:
            chosen.append(choice.current)
        now += 1
    return chosen


def fixed(**round_trips: float) -> World:
    return lambda address, _now: (
        (round_trips[address[0]], 0.0) if address[0] in round_trips else None
    )


def test_the_nearest_is_chosen_after_three_pings_each() -> None:
    choice = BrokerChoice([FAR, NEAR], SETTINGS, Chance(1), 0)
    assert play(choice, fixed(near=2, far=30), 0, 500) == [None, NEAR]
    assert choice.candidates[FAR].answers == 3


def test_who_does_not_answer_is_not_waited_for_long() -> None:
    choice = BrokerChoice([FAR, NEAR], SETTINGS, Chance(1), 0)
    play(choice, fixed(near=2), 0, 1_100)
    assert choice.current == NEAR


def test_a_broker_that_dies_is_left_within_its_patience() -> None:
    choice = BrokerChoice([FAR, NEAR], SETTINGS, Chance(1), 0)
    play(choice, fixed(near=2, far=30), 0, 500)
    for ping, _to in choice.doubt(NEAR, 500):
        assert ping.id
    assert play(choice, fixed(far=30), 500, 1_000) == [NEAR, FAR]


def test_who_is_gone_stays_the_choice_until_another_is_there() -> None:
    choice = BrokerChoice([FAR, NEAR], SETTINGS, Chance(1), 0)
    play(choice, fixed(near=2), 0, 1_100)
    assert play(choice, fixed(), 1_100, 12_000) == [NEAR]
    assert choice.candidates[NEAR].misses >= 3
    assert play(choice, fixed(far=30), 12_000, 22_000) == [NEAR, FAR]


def test_where_there_is_one_broker_there_is_nothing_to_choose() -> None:
    assert BrokerChoice([NEAR], SETTINGS, Chance(1), 0).current == NEAR


def test_a_loaded_broker_is_left_for_an_idle_one_but_not_for_a_passing_peak() -> None:
    def loaded_from(start: float, end: float) -> World:
        return lambda address, now: (1.0, 1.0 if address == NEAR and start <= now < end else 0.0)

    choice = BrokerChoice([NEAR, OTHER], SETTINGS, Chance(1), 0)
    play(choice, lambda address, _now: (1.0, 0.0 if address == NEAR else 0.9), 0, 500)
    assert choice.current == NEAR
    assert play(choice, loaded_from(5_000, 9_000), 500, 30_000) == [NEAR]
    assert play(choice, loaded_from(30_000, 99_000), 30_000, 80_000) == [NEAR, OTHER]


def test_two_equal_brokers_cause_no_changes() -> None:
    chance = Chance(7)
    choice = BrokerChoice([NEAR, OTHER], SETTINGS, Chance(1), 0)
    play(choice, lambda _address, _now: (chance.uniform(0.5, 3.0), chance.random() / 3), 0, 60_000)
    assert choice.changes == 1


def test_clients_that_start_together_spread_over_similar_brokers() -> None:
    chosen = set()
    for seed in range(12):
        choice = BrokerChoice([NEAR, OTHER], SETTINGS, Chance(seed), 0)
        play(choice, fixed(near=1.0, other=1.1), 0, 200)
        chosen.add(choice.current)
    assert chosen == {NEAR, OTHER}


@pytest.mark.parametrize("round_trip_ms", [260, 400, 600, 900])
def test_brokers_that_are_all_far_away_are_chosen_from_as_well(round_trip_ms: float) -> None:
    choice = BrokerChoice([FAR, OTHER], SETTINGS, Chance(1), 0)
    world = fixed(far=round_trip_ms, other=round_trip_ms + 800)
    play(choice, world, 0, 3_000)
    assert choice.current == FAR
    assert choice.candidates[FAR].round_trip_ms == pytest.approx(round_trip_ms, abs=2)
    assert play(choice, world, 3_000, 30_000) == [FAR]
