"""Headers, marks and pulls, by radio and by IP."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import PullCounts, RandomRecipients
from rapport.ensemble.gossip.strategies import CounterBased
from rapport.ensemble.protocol import Header, Headers, PublishedKnowledge, Pull, encode
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender

WALL = 1_700_000_000_000
SENDER = Sender(("somebody", 1))
PULL = GossipSettings(
    probability=0, header_ms=5_000, pull_ms=5_000, local_ms=6_000, global_ms=10_000
)
ON_IP = GossipSettings(
    probability=0,
    header_ms=5_000,
    pull_ms=5_000,
    local_ms=6_000,
    global_ms=60_000,
    radio=False,
    ip=True,
    fan_out=1,
)


def knowledge(component: str = "x", version: int = WALL, address: Address | None = None) -> Any:
    return PublishedKnowledge(component, version, version, "far", ("Role",), b"", address)


def said(net: Any, kind: type) -> list[Any]:
    return [out.message for _, _, out in net.sent if isinstance(out.message, kind)]


def test_the_global_time_is_the_greatest_that_anybody_told(net: Any) -> None:
    machine = net.add("a", PULL)
    net.run(3_000)
    for time_ms in (WALL + 1_000, WALL + 2_500, WALL + 1_500):
        net.tell("a", Headers((Header("x", time_ms),)), SENDER)
    assert machine.buffer.entries["x"].global_ms == WALL + 2_500
    net.tell("a", knowledge("x", WALL + 2_700), SENDER)
    assert machine.buffer.entries["x"].global_ms == WALL + 2_700


def test_a_header_from_the_future_counts_as_of_now_and_an_old_one_as_nothing(net: Any) -> None:
    machine = net.add("a", PULL)
    net.run(3_000)
    net.tell("a", Headers((Header("x", WALL + 9_999_999), Header("y", WALL - 20_000))), SENDER)
    assert machine.buffer.entries["x"].global_ms == WALL + 3_000
    assert "y" not in machine.buffer.entries


def test_a_header_alone_is_pulled_only_after_the_local_time_out(net: Any) -> None:
    net.add("a", GossipSettings(probability=0, pull_ms=1_000, local_ms=6_000, pull_offset_ms=0))
    net.run(500)
    net.tell("a", Headers((Header("x", WALL + 500),)), SENDER)
    net.run(6_400)
    assert not said(net, Pull)
    net.run(7_000)
    assert said(net, Pull) == [Pull((("x", 0),))]


def test_a_mark_is_gone_after_one_version_was_passed_on(net: Any) -> None:
    net.add("a", PULL)
    net.tell("a", Pull((("x", 0),)), SENDER)
    for version in (WALL, WALL + 1):
        net.tell("a", knowledge("x", version), SENDER)
    assert [one.version for one in said(net, PublishedKnowledge) if one.component == "x"] == [WALL]


def test_a_mark_that_nobody_renews_is_released(net: Any) -> None:
    net.add("a", PULL)
    net.tell("a", Pull((("x", 0),)), SENDER)
    net.run(10_001)
    net.tell("a", knowledge("x", WALL + 10_000), SENDER)
    assert not [one for one in said(net, PublishedKnowledge) if one.component == "x"]


def test_a_pull_for_what_nobody_has_does_not_keep_it_alive_for_ever(net: Any) -> None:
    for name in "abc":
        net.add(name, PULL)
    net.link(("a", "b"), ("b", "c"), ("a", "c"))
    net.run(1_000)
    net.tell("a", Headers((Header("ghost", WALL + 1_000),)), SENDER)
    net.run(60_000)
    asked = [t for t, _, out in net.sent if "ghost" in str(out.message)]
    assert asked
    assert max(asked) < 15_000


def test_many_headers_share_packets_and_each_packet_fits(net: Any) -> None:
    machine = net.add("a", PULL)
    names = [f"component/{number:04}" for number in range(300)]
    for name in names:
        net.tell("a", knowledge(name), SENDER)
    net.run(5_000)
    packets = [out.message for _, _, out in net.sent if isinstance(out.message, Headers)]
    assert 5 < len(packets) < 12
    assert [header.component for packet in packets for header in packet.headers] == names
    assert all(len(encode(packet)) <= machine.settings.part_bytes for packet in packets)


def test_an_immediate_answer_is_given_once_to_several_askers(net: Any) -> None:
    net.add("a", GossipSettings(probability=0, answers="immediate"))
    net.tell("a", knowledge("x"), SENDER)
    for _ in range(5):
        net.tell("a", Pull((("x", 0),)), SENDER)
    assert len(said(net, PublishedKnowledge)) == 1
    net.run(4_000)
    net.sent.clear()
    net.tell("a", Pull((("x", 0),)), SENDER)
    assert [one.component for one in said(net, PublishedKnowledge)] == ["x"]


def test_who_has_the_newest_is_sent_nothing(net: Any) -> None:
    net.add("a", GossipSettings(probability=0, answers="immediate"))
    net.tell("a", knowledge("x"), SENDER)
    net.tell("a", Pull((("x", WALL),)), SENDER)
    assert not said(net, PublishedKnowledge)


def test_by_time_of_arrival_a_clock_that_is_behind_does_not_make_everything_outdated(
    make_net: Any,
) -> None:
    pulls = {}
    for times in ("created", "received"):
        net = make_net()
        net.add(
            "a",
            GossipSettings(
                probability=0, header_ms=5_000, pull_ms=5_000, pull_offset_ms=0, times=times
            ),
        )
        for turn in range(6):
            net.run(turn * 5_000 + 4_900)
            behind = net.scheduler.now.wall_ms - 15_000
            net.tell("a", knowledge("x", behind), SENDER)
        pulls[times] = len(said(net, Pull))
    assert pulls["received"] == 0 < pulls["created"]


# On IP


def know_each_other(net: Any, *names: str) -> None:
    for name in names:
        net.nodes[name]._state.recipients.know([net.address(other) for other in names])


def test_on_ip_a_pull_goes_straight_to_the_source_and_the_answer_straight_back(net: Any) -> None:
    for name in "abc":
        net.add(name, ON_IP)
    source = net.address("c")
    net.run(1_000)
    net.tell("a", Headers((Header("c", WALL + 100, source),)), SENDER)
    net.run(20_000)
    pulls = [(out.to, out.message) for _, who, out in net.sent if isinstance(out.message, Pull)]
    assert pulls[0] == (source, Pull((("c", 0),), net.address("a")))
    answers = [
        (who, out.to) for _, who, out in net.sent if isinstance(out.message, PublishedKnowledge)
    ]
    assert ("c", net.address("a")) in answers
    assert net.heard["a"]["c"].address == source


def test_a_pull_with_a_forged_address_is_answered_to_its_sender_only(net: Any) -> None:
    machine = net.add("a", ON_IP)
    net.tell("a", knowledge("x"), SENDER)
    net.tell("a", Pull((("x", 0),), ("victim", 9)), Sender(("attacker", 5)))
    assert {out.to for _, _, out in net.sent} == {("attacker", 5)}
    assert machine.counts["other_reply_to"] == 1


def test_the_same_asker_gets_one_answer_for_a_version_in_some_time(net: Any) -> None:
    net.add("a", ON_IP)
    net.tell("a", knowledge("x"), SENDER)
    for _ in range(100):
        net.tell("a", Pull((("x", 0),) * 50, ("asker", 5)), Sender(("asker", 5)))
    assert len(net.sent) == 1


def test_when_the_source_does_not_answer_others_are_asked(net: Any) -> None:
    for name in "ab":
        net.add(name, ON_IP)
    know_each_other(net, "a", "b")
    net.sources["a"].bodies.clear()
    net.sources["b"].bodies.clear()
    net.tell("b", knowledge("x", WALL - 5_000), SENDER)
    net.tell("a", Headers((Header("x", WALL - 5_000, ("dead", 1)),)), SENDER)
    net.run(30_000)
    assert net.heard["a"]["x"].version == WALL - 5_000


def test_a_node_with_both_media_pulls_by_ip_where_it_knows_the_address_else_by_radio(
    net: Any,
) -> None:
    both = msgspec.structs.replace(ON_IP, radio=True)
    net.add("a", both)
    net.run(1_000)
    known = Header("x", WALL + 500, ("source", 1))
    net.tell("a", Headers((known, Header("y", WALL + 500))), SENDER)
    net.run(11_000)
    pulls = [(out.to, out.message) for _, _, out in net.sent if isinstance(out.message, Pull)]
    assert pulls[:2] == [
        (("source", 1), Pull((("x", 0),), net.address("a"))),
        (None, Pull((("y", 0),))),
    ]


def test_an_address_is_asked_once_a_round_for_what_lives_there_and_for_the_rest(net: Any) -> None:
    for name in "ab":
        net.add(name, ON_IP)
        net.sources[name].bodies.clear()
    know_each_other(net, "a", "b")
    net.run(1_000)
    of_b = Header("y", WALL + 500, net.address("b"))
    net.tell("a", Headers((of_b, Header("z", WALL + 500))), SENDER)
    net.run(30_000)
    of_a = [(time, out) for time, who, out in net.sent if who == "a"]
    pulls = [(time, out) for time, out in of_a if isinstance(out.message, Pull)]
    assert len(pulls) >= 3
    assert len({time for time, _ in pulls}) == len(pulls)
    assert {out.message.wanted for _, out in pulls} == {(("y", 0), ("z", 0))}


@pytest.mark.parametrize("pulled", [True, False], ids=["pulled", "not pulled"])
def test_what_was_said_in_answer_is_not_said_again_when_the_strategy_waited(
    net: Any, pulled: bool
) -> None:
    strategy = CounterBased(Chance(1), threshold=99, wait_ms=500)
    immediate = msgspec.structs.replace(PULL, answers="immediate")
    machine = net.add("a", immediate, strategy=strategy)
    net.sources["a"].bodies.clear()
    net.tell("a", knowledge(), SENDER)
    assert said(net, PublishedKnowledge) == []
    if pulled:
        net.tell("a", Pull((("x", 0),)), SENDER)
        assert said(net, PublishedKnowledge) == [knowledge()]
    net.run(2_000)
    assert said(net, PublishedKnowledge) == [knowledge()]
    assert not machine._waiting
    assert not strategy._heard


def test_frequent_askers_are_preferred_and_forgotten_when_they_stop() -> None:
    askers, now = PullCounts(), Now(WALL, 0.0)
    nodes = [(f"n{number}", 1) for number in range(50)]
    recipients = RandomRecipients(2, Chance(1), known=nodes, own=nodes[0], askers=askers)
    for _ in range(5):
        askers.asked("x", nodes[7])
    drawn = [recipients.to_publish("x", now) for _ in range(10)]
    assert all(nodes[7] in some and len(set(some)) == 2 for some in drawn)
    assert len({some[1] for some in drawn}) > 5
    for _ in range(60):
        recipients.to_publish("x", now)
    assert len(askers) == 0


def test_an_asker_that_is_no_known_node_is_not_published_to() -> None:
    askers = PullCounts()
    recipients = RandomRecipients(2, Chance(1), known=[("n1", 1)], askers=askers)
    askers.asked("x", ("stranger", 9))
    assert recipients.to_publish("x", Now(WALL, 0.0)) == [("n1", 1)]


def test_askers_are_remembered_within_limits() -> None:
    askers = PullCounts(most=4, components=3)
    for number in range(100):
        askers.asked(f"c{number % 10}", (f"n{number}", 1))
    assert len(askers) <= 12


@pytest.mark.parametrize("wall", [WALL - 3_600_000, WALL + 3_600_000])
def test_a_clock_that_jumps_by_an_hour_ends_headers_but_harms_nothing(net: Any, wall: int) -> None:
    machine = net.add("a", PULL)
    net.tell("a", knowledge("x"), SENDER)
    machine.tick(Now(wall, 6_000.0))
    assert not machine.buffer.entries["x"].listed
    machine.handle(knowledge("x", wall + 10), SENDER, Now(wall + 20, 7_000.0))
