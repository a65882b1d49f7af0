"""Push: what is published, passed on and kept, by radio and by IP."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.protocol import OutgoingMessage, PublishedKnowledge, Pull
from rapport.kernel.clock import Now
from rapport.transport.base import Sender

WALL = 1_700_000_000_000
SENDER = Sender(("somebody", 1))


def knowledge(component: str = "x", version: int = WALL, **more: Any) -> PublishedKnowledge:
    return PublishedKnowledge(
        component, version, version, more.pop("node", "far"), ("Role",), b"", **more
    )


def line(net: Any, length: int, **settings: Any) -> list[str]:
    names = [f"n{number:02}" for number in range(length)]
    for name in names:
        net.add(name, GossipSettings(**settings))
    net.link(*itertools.pairwise(names))
    return names


def sends(net: Any, kind: type = PublishedKnowledge) -> list[tuple[float, str, OutgoingMessage]]:
    return [sent for sent in net.sent if isinstance(sent[2].message, kind)]


def test_with_probability_0_exactly_one_message_is_sent_by_node_and_period(net: Any) -> None:
    line(net, 10, probability=0, knowledge_offset_ms=0)
    net.run(900_000)
    assert len(net.sent) == 10 * 181


def test_with_probability_1_everything_reaches_everybody_and_nobody_sends_a_version_twice(
    net: Any,
) -> None:
    names = line(net, 10, probability=1)
    net.link((names[0], names[9]), (names[2], names[7]))
    net.run(30_000)
    assert all(len(net.heard[name]) == 9 for name in names)
    said = Counter((who, out.message.component, out.message.version) for _, who, out in sends(net))
    assert set(said.values()) == {1}


def test_an_older_version_never_takes_the_place_of_a_newer_one(net: Any) -> None:
    machine = net.add("a", GossipSettings(probability=1))
    for version in (WALL, WALL - 5, WALL, WALL + 3):
        net.tell("a", knowledge(version=version), SENDER)
    assert net.heard["a"]["x"].version == WALL + 3
    assert len(sends(net)) == 2
    assert machine.buffer.entries["x"].version == WALL + 3


def test_what_the_boundary_keeps_back_is_held_but_not_passed_on(net: Any) -> None:
    net.add("a", GossipSettings(probability=1), boundary=lambda message: message.component == "y")
    net.tell("a", knowledge("x"), SENDER)
    net.tell("a", knowledge("y"), SENDER)
    assert set(net.heard["a"]) == {"x", "y"}
    assert [out.message.component for _, _, out in sends(net)] == ["y"]


def test_what_was_pulled_is_passed_on_whatever_strategy_and_boundary_say(net: Any) -> None:
    net.add("a", GossipSettings(probability=0), boundary=lambda message: False)
    net.tell("a", Pull((("x", 0),)), SENDER)
    net.tell("a", knowledge("x"), SENDER)
    net.tell("a", knowledge("x", WALL + 1), SENDER)
    assert [out.message.version for _, _, out in sends(net)] == [WALL]


def test_on_ip_a_version_goes_to_a_random_subset_of_the_known_nodes(net: Any) -> None:
    names = [f"n{number}" for number in range(12)]
    settings = GossipSettings(radio=False, ip=True, fan_out=3, probability=0)
    for name in names:
        net.add(name, settings)
        net.nodes[name]._state.recipients.know([net.address(other) for other in names])
    net.run(50_000)
    by_turn = Counter((time, who) for time, who, _ in net.sent)
    assert set(by_turn.values()) == {3}
    assert all(out.to != net.address(who) for _, who, out in net.sent)
    reached = {out.to for _, who, out in net.sent if who == "n0"}
    assert len(reached) > 6


def test_a_node_with_radio_and_ip_joins_both_worlds(net: Any) -> None:
    net.add("radio", GossipSettings(probability=1))
    net.add("bridge", GossipSettings(probability=1, ip=True))
    net.add("ip", GossipSettings(probability=1, radio=False, ip=True))
    net.link(("radio", "bridge"))
    everybody = [net.address("bridge"), net.address("ip")]
    for name in ("bridge", "ip"):
        net.nodes[name]._state.recipients.know(everybody)
    net.run(20_000)
    assert set(net.heard["ip"]) == {"radio", "bridge"}
    assert set(net.heard["radio"]) == {"ip", "bridge"}


def test_a_component_is_published_out_of_turn_when_asked(net: Any) -> None:
    machine = net.add("a", GossipSettings(knowledge_offset_ms=0))
    net.run(1_000)
    assert machine.publish_now("a", net.scheduler.now)
    assert not machine.publish_now("other", net.scheduler.now)
    assert len(machine.outbox) == 1


def test_periods_that_were_slept_through_are_not_made_up_for(net: Any) -> None:
    machine = net.add("a", GossipSettings(knowledge_offset_ms=700))
    machine.tick(Now(WALL, 100_000.0))
    assert len(machine.outbox) == 1
    assert machine.next_due_ms() == 100_700


@pytest.mark.parametrize("offset", [0.1, 1234.5678, 4999.99999, None])
def test_tasks_are_due_at_offset_plus_n_periods_and_always_move_on(net: Any, offset: Any) -> None:
    machine = net.add("a", GossipSettings(knowledge_offset_ms=offset, knowledge_ms=333.3))
    dues = []
    for _ in range(300):
        due = machine.next_due_ms()
        assert due is not None
        dues.append(due)
        machine.tick(Now(WALL, due))
    steps = [later - earlier for earlier, later in itertools.pairwise(dues)]
    assert max(steps) == pytest.approx(333.3)
    assert min(steps) == pytest.approx(333.3)


def test_versions_grow_strictly_while_the_wall_clock_stands_or_goes_back(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    versions = []
    for wall in (WALL, WALL, WALL - 60_000, WALL - 59_000, WALL + 5, WALL + 5):
        machine.publish_now("a", Now(wall, 0.0))
        versions.append(machine.outbox[-1].message.version)
    assert versions == sorted(set(versions))


def test_a_clock_that_had_been_wrong_by_days_does_not_silence_a_node_for_days(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    for wall in (WALL + 10 * 86_400_000, WALL):
        machine.publish_now("a", Now(wall, 0.0))
    assert machine.outbox[-1].message.version == WALL


def test_versions_from_the_far_future_are_not_taken_unless_the_own_clock_was_never_set(
    net: Any,
) -> None:
    machine = net.add("a", GossipSettings())
    machine.handle(knowledge(version=2**52), SENDER, Now(WALL, 0.0))
    assert not machine.changed
    assert machine.counts["far_ahead"] == 1
    machine.handle(knowledge(version=WALL), SENDER, Now(5_000, 0.0))
    assert len(machine.changed) == 1


def test_a_restarted_node_goes_on_above_its_former_life(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    machine.publish_now("a", Now(WALL, 0.0))
    machine.handle(knowledge("a", WALL + 40_000, node="a"), SENDER, Now(WALL + 1, 1.0))
    machine.publish_now("a", Now(WALL + 2, 2.0))
    assert machine.outbox[-1].message.version == WALL + 40_001
    assert not machine.changed
    assert not machine.duplicates


def test_a_former_life_that_was_heard_before_the_first_publication_is_outdone(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    machine.handle(knowledge("a", WALL + 40_000, node="a"), SENDER, Now(WALL, 0.0))
    machine.publish_now("a", Now(WALL + 2, 2.0))
    assert machine.outbox[-1].message.version == WALL + 40_001


def test_a_forged_version_of_the_far_future_does_not_make_a_node_follow(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    machine.publish_now("a", Now(WALL, 0.0))
    machine.handle(knowledge("a", 2**52, node="a"), SENDER, Now(WALL, 0.0))
    machine.publish_now("a", Now(WALL + 9, 2.0))
    assert machine.outbox[-1].message.version == WALL + 9


@pytest.mark.parametrize(
    ("node", "address"), [("other", None), ("a", ("elsewhere", 7)), ("other", ("a", 1))]
)
def test_a_second_node_with_the_same_component_is_counted_and_never_believed(
    net: Any, node: str, address: Any
) -> None:
    told = []
    machine = net.add("a", GossipSettings(), on_duplicate=told.append)
    machine.publish_now("a", Now(WALL, 0.0))
    machine.handle(
        knowledge("a", WALL + 9, node=node, address=address), SENDER, Now(WALL + 10, 10.0)
    )
    assert not machine.changed
    assert machine.duplicates["a"].node == node
    assert machine.duplicates["a"].times == 1
    assert len(told) == 1
    assert machine.counts["doubles"] == 1


def test_a_namesake_without_an_address_is_found_out_when_it_keeps_speaking(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    for turn in range(6):
        wall = WALL + turn * 5_000
        machine.publish_now("a", Now(wall, float(turn)))
        machine.handle(knowledge("a", wall + 99, node="a"), SENDER, Now(wall + 99, float(turn)))
    assert machine.duplicates["a"].times == 3


def test_a_component_that_moved_away_is_taken_from_its_new_node(net: Any) -> None:
    machine = net.add("a", GossipSettings(knowledge_offset_ms=0))
    net.run(100)
    net.sources["a"].bodies.clear()
    net.run(5_100)
    net.tell("a", knowledge("a", WALL + 6_000, node="b"), SENDER)
    assert net.heard["a"]["a"].node == "b"
    assert not machine.duplicates


def test_a_component_that_ended_is_not_told_of_again(net: Any) -> None:
    machine = net.add("a", GossipSettings(knowledge_offset_ms=0, answers="immediate"))
    net.run(2_000)
    machine.disown("a")
    last = net.sent[-1][2].message
    net.sent.clear()
    net.tell("a", last, SENDER)
    net.tell("a", Pull((("a", 0),)), SENDER)
    assert not net.sent
    assert not net.heard["a"]


def test_a_component_that_cannot_be_published_stays_its_nodes_and_is_not_told_of(net: Any) -> None:
    machine = net.add("a", GossipSettings(knowledge_offset_ms=0, answers="immediate"))
    net.run(2_000)
    net.sources["a"].bodies["a"] = None
    net.sent.clear()
    net.run(12_000)
    net.tell("a", Pull((("a", 0),)), SENDER)
    assert not machine.publish_now("a", net.scheduler.now)
    assert not net.sent
    assert machine.counts["withheld"] == 3
    net.tell("a", knowledge("a", WALL + 13_000, node="b"), SENDER)
    assert not net.heard["a"]
    assert machine.duplicates["a"].node == "b"
    net.sources["a"].bodies["a"] = b"\x80"
    net.run(16_000)
    assert [one.message.component for _when, _node, one in net.sent] == ["a"]
