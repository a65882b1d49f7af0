"""What a node remembers is bounded, whatever it is sent."""

from __future__ import annotations

from typing import Any

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.strategies import Adaptive, CounterBased
from rapport.ensemble.protocol import Header, Headers, Part, PublishedKnowledge, Pull, PullParts
from rapport.kernel.clock import Chance
from rapport.transport.base import Sender

WALL = 1_700_000_000_000


def flood(net: Any, count: int) -> None:
    for number in range(count):
        name, sender = f"c{number}", Sender((f"n{number}", number % 60_000))
        net.tell("a", PublishedKnowledge(name, WALL, WALL, "n", (), b""), sender)
        net.tell("a", Headers((Header(f"h{name}", WALL, ("h", 1)),)), sender)
        net.tell("a", Pull(((f"p{name}", 0), ("a", 0))), sender)
        net.tell("a", Pull(((name, 0), ("a", 0)), sender.address), sender)
        net.tell("a", Part(f"t{name}", WALL, 0, 9, 1, b"x"), sender)
        net.tell("a", PullParts(name, WALL, (0, 1), sender.address), sender)


def test_a_flood_of_names_fills_no_memory(net: Any) -> None:
    settings = GossipSettings(
        components=100, waiting=50, parts_messages=20, ip=True, header_ms=5_000, pull_ms=5_000
    )
    machine = net.add("a", settings, strategy=CounterBased(Chance(1)))
    flood(net, 3_000)
    assert len(machine.buffer.entries) <= 100
    assert len(machine._waiting) <= 50
    assert len(machine._strategy._heard) <= 151
    assert machine.incomplete <= 20
    assert len(machine._pull._answered) <= 8_192
    assert len(machine._parts._answers._answered) <= 8_192
    assert len(machine._parts._answers._waiting) <= 1_024
    assert not machine.duplicates


def test_a_strategy_forgets_what_was_pushed_out_while_it_waited(net: Any) -> None:
    strategy = CounterBased(Chance(1), wait_ms=100)
    net.add("a", GossipSettings(components=20, waiting=50), strategy=strategy)
    for turn in range(30):
        for number in range(100):
            name = f"c{turn}.{number}"
            net.tell("a", PublishedKnowledge(name, WALL, WALL, "n", (), b""), Sender(("n", 1)))
        net.run(net.scheduler.time_ms + 200)
    assert strategy._heard == {}


def test_the_adaptive_strategy_remembers_only_so_many_components(net: Any) -> None:
    strategy = Adaptive(Chance(1), remembered=64)
    net.add("a", GossipSettings(), strategy=strategy)
    flood(net, 500)
    assert len(strategy._counts) <= 64


def test_what_is_not_heard_of_for_long_is_forgotten(net: Any) -> None:
    machine = net.add("a", GossipSettings(forget_ms=60_000, global_ms=20_000))
    flood(net, 50)
    net.run(100_000)
    assert set(machine.buffer.entries) == {"a"}
    assert machine.counts["forgotten"] > 0


def test_a_node_that_is_pushed_out_of_its_own_memory_goes_on(net: Any) -> None:
    machine = net.add("a", GossipSettings(components=5, knowledge_offset_ms=0))
    net.run(100)
    flood(net, 50)
    net.run(20_000)
    assert machine.buffer.entries["a"].version > WALL
    assert machine.counts["pushed_out"] > 0
