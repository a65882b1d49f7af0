"""Brokers whose clocks differ by less than a second or so: what is true is found all the same, and
never before it is valid by the clock of who tells it. [CX-1, CX-3]
"""

from __future__ import annotations

import itertools

import pytest

from rapport.context.broker.broker_settings import BrokerSettings, SearchSettings
from rapport.context.protocol import Notice, NoticeAck, Put, Watch
from rapport.core.context_record import ContextRecord
from rapport.kernel.clock import Now
from rapport.transport.base import Sender
from rapport_lab.topology import from_edges

WATCHER = ("watcher", 1)


class Late:
    """A machine whose wall clock is behind, or ahead."""

    def __init__(self, machine, behind_ms: int) -> None:
        self._machine, self._behind_ms = machine, behind_ms

    def __getattr__(self, name: str):
        return getattr(self._machine, name)

    def handle(self, message, sender, now: Now) -> None:
        self._machine.handle(message, sender, self._own(now))

    def tick(self, now: Now) -> None:
        self._machine.tick(self._own(now))

    def _own(self, now: Now) -> Now:
        return Now(now.wall_ms - self._behind_ms, now.steady_ms)


def differing(network, names, behind_ms: dict[int, int], settings: BrokerSettings | None = None):
    net = network(from_edges(list(itertools.pairwise(names))), settings)
    for number, behind in behind_ms.items():
        net.machines[names[number]] = Late(net.machines[names[number]], behind)
    return net


@pytest.mark.parametrize("behind_ms", [{0: 10}, {0: 700}, {1: 700}, {0: 700, 1: 300}])
def test_what_was_just_sent_is_found_where_the_clock_is_behind(
    network, brokers, behind_ms: dict[int, int]
) -> None:
    names = brokers(3)
    net = differing(network, names, behind_ms)
    net.run(2_000)
    for version in range(10):
        net.put(names[2], f"r{version % 3}", v=version, valid_ms=4_000)
        outcome = net.ask(names[0], f"r{version % 3}")
        assert outcome.found
        assert outcome.reply.record.values == {"v": version}
        assert outcome.took_ms <= max(behind_ms.values()) + 200


@pytest.mark.parametrize("strategy", ["walkers", "flood", "ring"])
def test_no_way_of_searching_gives_up_what_is_about_to_begin(network, brokers, strategy) -> None:
    names = brokers(3)
    settings = BrokerSettings(search=SearchSettings(strategy=strategy))
    net = differing(network, names, {0: 900}, settings)
    net.run(2_000)
    net.put(names[2], "r1", v=1)
    assert net.ask(names[0], "r1").found


def test_a_clock_that_is_far_behind_is_said_at_once(network, brokers) -> None:
    names = brokers(2)
    net = differing(network, names, {0: 3_600_000})
    net.run(2_000)
    net.put(names[1], "r1", v=1)
    outcome = net.ask(names[0], "r1")
    assert "clock" in outcome.reply.why
    assert outcome.took_ms < 200


def test_changes_quicker_than_the_clocks_differ_are_sent(network, brokers) -> None:
    names = brokers(2)
    net = differing(network, names, {0: 700})
    net.put(names[1], "r1", v=0)
    net.run(2_000)
    net.deliver(Watch(7, net.question("r1"), 60_000), Sender(WATCHER, "x", "client"), names[0])
    net.run(1_500)
    told: list[int] = []
    for version in range(1, 30):
        net.put(names[1], "r1", v=version)
        net.run(100)
        for message, source in net.inbox.pop(WATCHER, []):
            if isinstance(message, Notice):
                assert message.record.valid_from <= net.now.wall_ms - 700
                told.append(message.record.values["v"])
                net.send(NoticeAck(message.id, message.number), WATCHER, source, "client")
    assert told == sorted(told)
    assert told[-1] >= 20
    assert len(set(told)) >= 20


def test_a_holder_started_anew_with_its_clock_set_back_is_followed_as_before(
    network, brokers
) -> None:
    """It counts its notices from its clock, and what it tells is valid all the same."""
    names = brokers(2)
    net = differing(network, names, {})
    told: list[int] = []

    def put(version: int) -> None:
        wall = net.now.wall_ms - 20_000 + version
        entity = net.question("r1").entity
        record = ContextRecord("p", entity, "status", wall, wall + 600_000, {"v": version})
        net.deliver(Put(version, record), Sender(("p", 1), "", "client"), names[1])

    def run(duration_ms: int) -> None:
        for _ in range(duration_ms // 50):
            net.run(50)
            for message, source in net.inbox.pop(WATCHER, []):
                if isinstance(message, Notice):
                    told.append(message.record.values["v"])
                    net.send(NoticeAck(message.id, message.number), WATCHER, source, "client")

    put(0)
    net.run(1_000)
    net.deliver(Watch(7, net.question("r1"), 600_000), Sender(WATCHER, "x", "client"), names[0])
    run(1_000)
    net.add(names[1]).adopt([names[0]], net.now)
    net.machines[names[1]] = Late(net.machines[names[1]], 10_000)
    put(1)
    run(6_000)  # until the watch is renewed
    put(2)
    run(1_000)
    assert told == [0, 1, 2]
