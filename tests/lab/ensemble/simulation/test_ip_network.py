from __future__ import annotations

from typing import Any

import pytest

from rapport.core.errors import DuplicateName, InvalidInput, TooLarge
from rapport.kernel.clock import Chance
from rapport_lab.ensemble.simulation.ip_network import IpNetwork, IpSettings
from rapport_lab.scheduler import Scheduler

_HERE, _THERE = ("here", 0), ("there", 1)


def _network(**settings: Any) -> tuple[Scheduler, IpNetwork, list[tuple[float, int, Any, int]]]:
    scheduler = Scheduler()
    network = IpNetwork(scheduler, Chance(1), IpSettings(**settings))
    arrived: list[tuple[float, int, Any, int]] = []
    network.on_arrive = lambda sender, message, to: arrived.append(
        (scheduler.time_ms, sender, message, to)
    )
    network.open(0, _HERE)
    network.open(1, _THERE)
    return scheduler, network, arrived


def test_a_message_arrives_after_the_delay() -> None:
    scheduler, network, arrived = _network(delay_ms=30, jitter_ms=0)
    network.send(0, "x", _THERE, 100)
    scheduler.run()
    assert arrived == [(30.0, 0, "x", 1)]
    assert (network.sent_by, network.received_by) == ({0: 1}, {1: 1})


def test_jitter_is_added_and_messages_may_overtake_each_other() -> None:
    scheduler, network, arrived = _network(delay_ms=10, jitter_ms=50)
    for number in range(50):
        network.send(0, number, _THERE, 100)
    scheduler.run()
    assert all(10 <= time_ms <= 60 for time_ms, *_ in arrived)
    order = [message for _, _, message, _ in arrived]
    assert order != sorted(order) == list(range(50))


def test_what_is_lost_or_finds_nobody_is_counted_and_told() -> None:
    scheduler, network, arrived = _network(loss=0.5)
    missed: list[str] = []
    network.on_miss = lambda _sender, _message, _to, why: missed.append(why)
    for _ in range(200):
        network.send(0, "x", _THERE, 100)
        network.send(0, "x", ("nowhere", 9), 100)
    scheduler.run()
    counters = network.counters
    assert counters.sent == 400 == counters.delivered + counters.lost + counters.nobody
    assert len(arrived) == counters.delivered
    assert (missed.count("lost"), missed.count("nobody")) == (counters.lost, counters.nobody)
    assert 150 < counters.lost < 250


def test_who_left_receives_nothing_that_was_under_way() -> None:
    scheduler, network, arrived = _network()
    network.send(0, "x", _THERE, 100)
    network.close(_THERE)
    scheduler.run()
    assert (arrived, network.counters.nobody) == ([], 1)


def test_an_address_belongs_to_one_node() -> None:
    _, network, _ = _network()
    network.open(1, _THERE)
    with pytest.raises(DuplicateName):
        network.open(2, _THERE)


def test_what_is_too_large_or_impossible_is_refused() -> None:
    _, network, _ = _network()
    with pytest.raises(TooLarge):
        network.send(0, "x", _THERE, 1_501)
    with pytest.raises(InvalidInput):
        IpSettings(loss=-0.1)
