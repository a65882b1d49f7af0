"""Lives of a node: it begins anew with its clock set back, and is heard at once. [EN-5]"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.protocol import PublishedKnowledge, PullParts
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Sender

WALL = 1_700_000_000_000
DAY_MS = 86_400_000
MINUTES_MS = 8 * 60_000
SENDER = Sender(("b", 1))
RADIO = GossipSettings(knowledge_offset_ms=0, probability=0)
IP = GossipSettings(knowledge_offset_ms=0, probability=0, radio=False, ip=True)


def knowledge(version: int, *, node: str = "a", address: Any = None) -> PublishedKnowledge:
    return PublishedKnowledge("a", version, version, node, ("Role",), b"\x80", address)


def other(version: int) -> PublishedKnowledge:
    """Of another component than that of the node `a`."""
    return PublishedKnowledge("c", version, version, "c", ("Role",), b"\x80", None)


class OneComponent:
    def published(self, now: Now) -> list[Publication]:
        return [Publication("a", ("Role",), b"\x80")]


def alone(given_before: int) -> GossipMachine:
    return GossipMachine(
        "a", GossipSettings(), Chance(1), source=OneComponent(), given_before=given_before
    )


def published(machine: Any, wall_ms: int) -> int:
    machine.publish_now("a", Now(wall_ms, 0.0))
    version: int = machine.outbox[-1].message.version
    return version


def told(net: Any) -> list[Any]:
    return [one for _at, _who, one in net.sent if isinstance(one.message, PullParts)]


def restarted(make_net: Any, settings: GossipSettings, **more: Any) -> Any:
    """A node that is in its second life, with a clock minutes back, and one that heard the
    first.
    """
    net = make_net(wall_ms=WALL - MINUTES_MS)
    net.add("a", settings, **more)
    net.add("b", settings)
    net.link(("a", "b"))
    if settings.ip:
        net.nodes["a"]._state.recipients.know([net.address("b")])
        net.nodes["b"]._state.recipients.know([net.address("a")])
    address = net.address("a") if settings.ip else None
    net.tell("b", knowledge(WALL, address=address), SENDER)
    assert net.heard["b"]["a"].version == WALL
    return net


@given(
    before=st.integers(0, WALL + DAY_MS // 4),
    walls=st.lists(st.integers(WALL - DAY_MS // 4, WALL + DAY_MS // 4), min_size=1, max_size=6),
)
def test_versions_begin_above_those_of_former_lives_and_grow(before: int, walls: list[int]) -> None:
    machine = alone(before)
    versions = [published(machine, wall) for wall in walls]
    assert versions[0] > before
    assert versions == sorted(set(versions))
    assert machine.given == versions[-1]


@given(
    lives=st.lists(
        st.tuples(st.integers(-DAY_MS // 4, DAY_MS // 4), st.integers(1, 5)),
        min_size=1,
        max_size=6,
    )
)
def test_versions_grow_over_any_number_of_lives(lives: Any) -> None:
    given_before, versions = 0, []
    for offset_ms, publications in lives:
        machine = alone(given_before)
        versions += [published(machine, WALL + offset_ms) for _ in range(publications)]
        given_before = machine.given
    assert versions == sorted(set(versions))


def test_a_former_life_with_a_clock_ahead_by_days_is_not_followed() -> None:
    machine = alone(WALL + 10 * DAY_MS)
    assert published(machine, WALL) == WALL
    assert published(machine, WALL) == WALL + 1


@pytest.mark.parametrize("settings", [RADIO, IP], ids=["radio", "ip"])
def test_who_knows_what_it_gave_before_is_heard_with_the_first_publication(
    make_net: Any, settings: GossipSettings
) -> None:
    net = restarted(make_net, settings, given_before=WALL)
    net.run(4_000)
    assert net.heard["b"]["a"].version > WALL
    assert not told(net)


@pytest.mark.parametrize(("settings", "publications"), [(RADIO, 3), (IP, 2)], ids=["radio", "ip"])
def test_who_does_not_know_is_told_and_heard_with_the_next_publication(
    make_net: Any, settings: GossipSettings, publications: int
) -> None:
    net = restarted(make_net, settings)
    net.run(5_000 * (publications - 1) + 1_000)
    assert net.heard["b"]["a"].version > WALL
    assert len(told(net)) == 1
    assert not net.nodes["a"].duplicates


def test_it_is_told_by_a_node_far_away_too(make_net: Any) -> None:
    net = restarted(make_net, IP)
    net.nodes["a"]._state.recipients.know([])
    for publication in range(3):
        now_ms = 5_000 * publication
        net.run(now_ms)
        passed_on = knowledge(WALL - MINUTES_MS + now_ms, address=net.address("a"))
        net.tell("b", passed_on, Sender(net.address("c")))
    assert {one.to for one in told(net)} == {net.address("a")}


@pytest.mark.parametrize(
    ("late_ms", "node", "address"),
    [
        (4_000, "a", ("a", 1)),
        (MINUTES_MS, "another", ("a", 1)),
        (MINUTES_MS, "a", ("elsewhere", 7)),
    ],
    ids=["only late", "another node", "an address that only the message names"],
)
def test_nobody_is_told_when_it_is(make_net: Any, late_ms: int, node: str, address: Any) -> None:
    net = restarted(make_net, IP)
    net.kill("a")
    for publication in range(3):
        now_ms = 500 * publication
        net.run(now_ms)
        net.tell("b", knowledge(WALL - late_ms + now_ms, node=node, address=address), SENDER)
    assert not told(net)


@given(
    copies=st.lists(
        st.tuples(st.integers(0, 20_000), st.integers(1, MINUTES_MS // 5_000)), max_size=20
    )
)
def test_copies_that_somebody_kept_are_not_taken_for_a_new_life(
    copies: list[tuple[int, int]],
) -> None:
    machine, now_ms = alone(0), 0
    machine.handle(other(WALL), SENDER, Now(WALL, 0.0))
    for wait_ms, ago in copies:
        now_ms += wait_ms
        before = machine.counts["overtaken"]
        machine.handle(other(WALL - 5_000 * ago), SENDER, Now(WALL + now_ms, float(now_ms)))
        is_like_time = abs(wait_ms % 5_000) <= 1_000 or wait_ms % 5_000 >= 4_000
        assert machine.counts["overtaken"] == before or is_like_time


def test_however_often_it_speaks_it_is_told_once_in_a_while(make_net: Any) -> None:
    net = restarted(make_net, IP)
    net.kill("a")
    for number in range(100):
        version = WALL - MINUTES_MS + number
        net.tell("b", knowledge(version, address=net.address("a")), Sender(net.address("a")))
    assert len(told(net)) == 1


def test_a_version_of_the_far_future_that_somebody_names_is_not_followed(net: Any) -> None:
    machine = net.add("a", GossipSettings())
    assert published(machine, WALL) == WALL
    machine.handle(PullParts("a", 2**52, ()), SENDER, Now(WALL, 0.0))
    assert published(machine, WALL) == WALL + 1
    assert machine.counts["far_ahead"] == 1
