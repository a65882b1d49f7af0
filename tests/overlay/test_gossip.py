"""Push gossip: everybody knows after a few rounds. [EN-5]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.chance import Chance
from rapport.overlay.gossip import Rumour, Rumours, RumourSettings
from rapport.transport.base import Address, Now


def rounds_until_all_know(size: int, seed: int, settings: RumourSettings) -> int | None:
    """Rounds in step; None when the rumour died out before."""
    chance = Chance(seed)
    nodes: list[Address] = [("n", number) for number in range(size)]
    machines = [Rumours(chance, settings) for _ in nodes]
    machines[0].spread("key", "body", Now(0, 0.0))
    telling, knows, rounds = [0], {0}, 0
    while telling and len(knows) < size:
        rounds += 1
        told = [one for node in telling for one in machines[node].round(nodes)]
        for (_, number), rumours in told:
            for rumour in rumours:
                if machines[number].heard(rumour, Now(0, float(rounds))):
                    knows.add(number)
                    telling.append(number)
        telling = [node for node in telling if machines[node].active]
    return rounds if len(knows) == size else None


def test_a_thousand_know_after_about_nine_rounds_of_fan_out_three() -> None:
    rounds = [rounds_until_all_know(1_000, seed, RumourSettings()) for seed in range(5)]
    assert all(found is not None and 7 <= found <= 10 for found in rounds)


@pytest.mark.slow
def test_ten_thousand_know_after_about_ten_rounds_of_fan_out_three() -> None:
    found = rounds_until_all_know(10_000, 1, RumourSettings())
    assert found is not None
    assert 9 <= found <= 12


def test_telling_once_misses_a_part_of_all() -> None:
    assert rounds_until_all_know(1_000, 1, RumourSettings(rounds=1)) is None


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12))
def test_a_node_sends_a_bounded_number_of_messages_per_rumour(
    fan_out: int, rounds: int, others: int
) -> None:
    machine = Rumours(Chance(1), RumourSettings(fan_out=fan_out, rounds=rounds))
    machine.spread("key", "body", Now(0, 0.0))
    known = [("n", number) for number in range(others)]
    sent = 0
    for _ in range(20):
        told = machine.round(known)
        assert len({to for to, _ in told}) == len(told) <= fan_out
        sent += len(told)
    assert sent == min(fan_out, others) * rounds
    assert machine.active == 0
    assert not machine.heard(Rumour("key", "body", 5), Now(0, 1.0))


def test_a_rumour_goes_through_as_many_hands_as_its_ttl_allows() -> None:
    settings, now, reached = RumourSettings(ttl=3), Now(0, 0.0), 0
    machine = Rumours(Chance(1), settings)
    machine.spread("key", "body", now)
    while told := machine.round([("next", 1)]):
        machine = Rumours(Chance(1), settings)
        assert machine.heard(told[0].rumours[0], now)
        reached += 1
    assert reached == 3


def test_probability_decides_once_who_passes_it_on() -> None:
    settings = RumourSettings(probability=0.3)
    chance = Chance(1)
    passing = 0
    for _ in range(2_000):
        machine = Rumours(chance, settings)
        assert machine.heard(Rumour("key", "body", 5), Now(0, 0.0))
        passing += machine.active
    assert passing / 2_000 == pytest.approx(0.3, abs=0.04)


def test_the_oldest_of_too_many_is_told_no_more() -> None:
    machine = Rumours(Chance(1), RumourSettings(active=2))
    for key in "abc":
        machine.spread(key, key, Now(0, 0.0))
    told = machine.round([("n", 1)])
    assert [rumour.key for rumour in told[0].rumours] == ["b", "c"]
    machine.forget("b")
    assert [rumour.key for rumour in machine.round([("n", 1)])[0].rumours] == ["c"]
