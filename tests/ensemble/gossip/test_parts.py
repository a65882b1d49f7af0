"""Knowledge in parts: under loss, disorder and repetition, pulled where parts are missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.ensemble.gossip.gossip_machine import GossipMachine
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.parts import Splitter, join
from rapport.ensemble.protocol import (
    MAX_MESSAGE,
    MAX_PARTS,
    Part,
    PublishedKnowledge,
    PullParts,
    encode,
)
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Sender
from support.examples import examples
from support.work import lines

WALL = 1_700_000_000_000
SENDER = Sender(("somebody", 1))


def large(size: int = 5_000, component: str = "x", version: int = WALL) -> PublishedKnowledge:
    body = bytes(number % 251 for number in range(size))
    return PublishedKnowledge(component, version, version, "far", ("Role",), body)


def quiet_machine(**more: Any) -> GossipMachine:
    class Nothing:
        def published(self, now: Now) -> list[Any]:
            return []

    return GossipMachine("a", GossipSettings(**more), Chance(1), source=Nothing())


def test_what_is_missing_of_very_many_parts_is_not_all_looked_through() -> None:
    """Whoever sends one part of a count that it chooses makes nobody else work that much."""

    def work(count: int) -> int:
        machine = quiet_machine()
        for number in range(20):
            machine.handle(Part(f"c{number}", WALL, 0, count, 1, b"x"), SENDER, Now(WALL, 0.0))
        return lines(lambda: machine.tick(Now(WALL + 400, 400.0)))

    assert work(MAX_PARTS) < 1.5 * work(1_000)


@given(st.integers(0, 20_000), st.integers(64, 2_000), st.text("é漢x", min_size=1, max_size=20))
@settings(max_examples=examples(40))
def test_parts_fit_and_together_they_are_the_message(size: int, limit: int, name: str) -> None:
    message = large(size, name)
    parts = Splitter(limit).parts_of(message)
    assert join([part.data for part in parts], parts[0].checksum) == message
    if limit >= 64 + len(name.encode()):
        assert all(len(encode(part)) <= limit for part in parts)


@given(st.data())
@settings(max_examples=examples(40))
def test_disorder_and_repetition_do_no_harm_and_each_version_is_taken_once(data: Any) -> None:
    message = large(data.draw(st.integers(1_100, 9_000)))
    parts = list(Splitter(1_024).parts_of(message))
    repeated = data.draw(st.lists(st.sampled_from(parts), max_size=10))
    machine = quiet_machine(probability=0)
    for part in data.draw(st.permutations(parts + repeated)):
        machine.handle(part, SENDER, Now(WALL, 0.0))
    assert machine.changed == [message]
    assert machine.incomplete == 0


def test_nothing_is_taken_while_a_part_is_missing() -> None:
    machine = quiet_machine()
    for part in Splitter(1_024).parts_of(large())[1:]:
        machine.handle(part, SENDER, Now(WALL, 0.0))
    assert not machine.changed
    assert machine.incomplete == 1


@pytest.mark.parametrize("on_ip", [False, True], ids=["radio", "ip"])
@pytest.mark.parametrize("loss", [0.1, 0.4])
def test_missing_parts_are_pulled_until_the_version_is_whole(
    net: Any, on_ip: bool, loss: float
) -> None:
    chance = Chance(8)
    net.loses = lambda message, sender, receiver: (
        isinstance(message, Part | PullParts) and chance.random() < loss
    )
    media = {"radio": not on_ip, "ip": on_ip}
    for name in "ab":
        net.add(name, GossipSettings(knowledge_ms=60_000, knowledge_offset_ms=0, **media))
    net.link(("a", "b"))
    if on_ip:
        net.nodes["a"]._state.recipients.know([net.address("b")])
    net.sources["a"].bodies["a"] = bytes(20_000)
    net.sources["b"].bodies.clear()
    net.run(50_000)
    assert net.heard["b"]["a"].body == bytes(20_000)
    assert net.nodes["b"].counts["parts_pulled"] > 0


def test_a_part_can_be_pulled_from_a_neighbour_that_lacks_others(net: Any) -> None:
    parts = Splitter(1_024).parts_of(large())
    for name in "ab":
        net.add(name, GossipSettings(probability=0))
        net.sources[name].bodies.clear()
    net.link(("a", "b"))
    for name, some in (("a", parts[:3]), ("b", parts[2:])):
        for part in some:
            net.tell(name, part, SENDER)
    net.run(3_000)
    assert net.heard["a"]["x"] == net.heard["b"]["x"] == large()


@pytest.mark.parametrize("by_radio", [True, False], ids=["radio", "ip"])
def test_a_node_with_both_media_pulls_parts_over_the_one_they_came_by(
    net: Any, by_radio: bool
) -> None:
    net.add("a", GossipSettings(ip=True))
    sender = Sender(("somebody", 1), to_all=by_radio)
    net.tell("a", Splitter(1_024).parts_of(large())[0], sender)
    net.run(2_000)
    pulls = [out for _, _, out in net.sent if isinstance(out.message, PullParts)]
    assert {out.to for out in pulls} == {None if by_radio else ("somebody", 1)}
    assert {out.message.reply_to for out in pulls} == {None if by_radio else net.address("a")}


def test_of_many_neighbours_that_hold_a_missing_part_few_send_it(make_net: Any) -> None:
    net, parts = make_net(hop_ms=5), Splitter(1_024).parts_of(large())
    holders = [f"h{number}" for number in range(10)]
    for name in ("asker", *holders):
        net.add(name, GossipSettings(probability=0))
        net.sources[name].bodies.clear()
        net.link(*((name, other) for other in net.nodes if other != name))
    for name in holders:
        net.tell(name, large(), SENDER)
    for part in parts[:-2]:
        net.tell("asker", part, SENDER)
    net.run(2_000)
    assert net.heard["asker"]["x"] == large()
    sent = [out.message for _, _, out in net.sent if isinstance(out.message, Part)]
    assert {part.index for part in sent} == {len(parts) - 2, len(parts) - 1}
    assert len(sent) <= 6  # of 20
    left = sum(net.nodes[name].counts["parts_left_to_others"] for name in holders)
    assert left == 20 - len(sent)


def test_large_knowledge_is_passed_on_in_parts_over_several_hops(net: Any) -> None:
    for name in "abc":
        net.add(name, GossipSettings(probability=1))
    net.link(("a", "b"), ("b", "c"))
    net.sources["a"].bodies["a"] = bytes(5_000)
    net.run(10_000)
    assert net.heard["c"]["a"].body == bytes(5_000)


def test_a_version_is_given_up_when_nobody_has_the_rest(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    net.tell("a", Splitter(1_024).parts_of(large())[0], SENDER)
    net.run(60_000)
    assert machine.incomplete == 0
    assert machine.counts["parts_given_up"] == 1
    assert sum(isinstance(out.message, PullParts) for _, _, out in net.sent) == 8


def test_parts_of_a_version_that_was_outdone_are_dropped(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    net.tell("a", Splitter(1_024).parts_of(large())[0], SENDER)
    net.tell("a", large(10, version=WALL + 1), SENDER)
    net.run(3_000)
    assert machine.incomplete == 0
    assert machine.counts["parts_given_up"] == 0


def test_parts_that_do_not_belong_together_make_nothing() -> None:
    machine = quiet_machine()
    good = Splitter(1_024).parts_of(large())
    for part in good[:-1]:
        machine.handle(part, SENDER, Now(WALL, 0.0))
    last = good[-1]
    forged = Part(last.component, last.version, last.index, last.count, last.checksum, b"forged")
    machine.handle(forged, SENDER, Now(WALL, 0.0))
    assert not machine.changed
    assert machine.counts["parts_bad"] == 1
    for part in good:
        machine.handle(part, SENDER, Now(WALL, 1.0))
    assert machine.changed == [large()]


def test_parts_that_carry_another_component_make_nothing() -> None:
    machine = quiet_machine()
    for part in Splitter(1_024).parts_of(large(component="y")):
        forged = Part("x", part.version, part.index, part.count, part.checksum, part.data)
        machine.handle(forged, SENDER, Now(WALL, 0.0))
    assert not machine.changed


def test_incomplete_versions_stay_within_their_limits() -> None:
    machine = quiet_machine(parts_messages=10, parts_bytes=100_000)
    for number in range(2_000):
        part = Part(f"c{number}", 9, 0, 2, number, bytes(50_000 if number % 7 == 0 else 10))
        machine.handle(part, SENDER, Now(WALL, 0.0))
    assert machine.incomplete <= 10
    assert machine._parts.bytes <= 100_000


def test_a_message_without_end_is_given_up() -> None:
    machine = quiet_machine(parts_bytes=10**9)
    for index in range(30):
        machine.handle(Part("x", 9, index, 60_000, 7, bytes(2**19)), SENDER, Now(WALL, 0.0))
    assert machine._parts.bytes < 30 * 2**19
    assert machine.counts["parts_too_large"] >= 1
    assert MAX_MESSAGE == 2**20


def test_knowledge_that_is_too_large_for_any_medium_is_counted_and_ends_nothing(net: Any) -> None:
    machine = net.add("a", GossipSettings(knowledge_offset_ms=0))
    net.sources["a"].bodies |= {"a": bytes(MAX_MESSAGE + 1), "b": b"\x80"}
    net.run(1_000)
    assert [out.message.component for _, _, out in net.sent] == ["b"]
    assert machine.counts["not_sendable"] == 1
