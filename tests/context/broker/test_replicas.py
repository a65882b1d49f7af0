"""Where copies are left, and where not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.context.broker.broker_settings import (
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.broker.walks import answer_path, choose_marks
from rapport.kernel.clock import Chance
from rapport_lab.topology import from_edges, ring

OFF = SearchSettings(look_ahead="off")


def settings(search: SearchSettings = OFF, **replication: object) -> BrokerSettings:
    return BrokerSettings(search=search, replication=ReplicationSettings(**replication))


def line(names: list):
    return from_edges(list(itertools.pairwise(names)))


@pytest.mark.parametrize(
    ("replication", "copies"),
    [
        ({"kind": "none"}, 0),
        ({"kind": "passive"}, 1),
        ({"kind": "path"}, 6),
        ({"kind": "cache"}, 6),
        ({"kind": "random", "copies": 1}, 1),
        ({"kind": "random", "copies": 3}, 3),
        ({"kind": "random", "at_most": 4}, 4),
        ({"kind": "random"}, 6),
    ],
)
def test_each_kind_leaves_its_number_of_copies_on_the_path(
    network, brokers, replication: dict, copies: int
) -> None:
    names = brokers(7)
    net = network(line(names), settings(**replication))
    net.put(names[6], "r1")
    assert net.ask(names[0], "r1").found
    assert len(net.holders("r1")) == copies + 1
    if replication["kind"] == "passive":
        assert net.holders("r1") == {names[0], names[6]}


def test_a_copy_at_the_first_broker_answers_without_a_search(network, brokers) -> None:
    names = brokers(7)
    for kind, searches in (("passive", 1), ("none", 2)):
        net = network(line(names), settings(kind=kind))
        net.put(names[6], "r1")
        first, second = net.ask(names[0], "r1"), net.ask(names[0], "r1")
        assert first.reply.record == second.reply.record
        assert net.machines[names[0]].counts["searches"] == searches


@pytest.mark.parametrize("look_ahead", ["off", "probe", "bloom"])
def test_a_fresh_request_is_answered_by_the_broker_of_the_provider_and_no_copy(
    network, brokers, look_ahead: str
) -> None:
    names = brokers(7)
    net = network(line(names), settings(SearchSettings(look_ahead=look_ahead), kind="path"))
    net.put(names[6], "r1", n=1)
    assert net.ask(names[0], "r1").found
    assert names[0] in net.holders("r1")
    net.run(10)
    net.put(names[6], "r1", n=2, valid_ms=500_000)
    stale = net.machines[names[0]].table.answer(("room", "r1", "status"), net.now.wall_ms)
    fresh = net.ask(names[0], "r1", fresh=True)
    assert fresh.reply.record.values == {"n": 2}
    assert fresh.reply.hops > 0
    assert stale is not None
    net.dead.add(names[6])
    assert net.ask(names[0], "r1").found, "a copy is left"
    assert not net.ask(names[0], "r1", fresh=True).found


def test_a_fresh_request_is_answered_at_once_by_the_broker_of_the_provider(
    network, brokers
) -> None:
    names = brokers(3)
    net = network(line(names), settings(kind="path"))
    net.put(names[0], "r1", n=1)
    assert net.ask(names[0], "r1", fresh=True).reply.hops == 0
    assert net.machines[names[0]].counts["searches"] == 0


def test_marks_are_places_on_the_path_and_each_broker_finds_its_own(network, brokers) -> None:
    names = brokers(7)
    net = network(line(names), settings(kind="random", copies=2), seed=4)
    net.logs = True
    net.put(names[6], "r1")
    net.ask(names[0], "r1")
    marks = next(m.marks for m, _, _ in net.log if type(m).__name__ == "FoundRecord")
    # Place 0 is the consumer, place 1 the broker that it asked.
    assert net.holders("r1") == {names[6], *(names[place - 1] for place in marks)}


def test_a_record_with_little_validity_left_is_not_copied(network, brokers) -> None:
    names = brokers(4)
    for valid_ms, copied in ((4_000, False), (6_000, True)):
        net = network(line(names), settings(kind="path"))
        net.put(names[3], "r1", valid_ms=valid_ms)
        net.ask(names[0], "r1", within_ms=500)
        assert (len(net.holders("r1")) > 1) is copied


def test_without_the_threshold_short_lived_records_are_copied(network, brokers) -> None:
    names = brokers(4)
    net = network(line(names), settings(kind="path", least_validity_ms=0))
    net.put(names[3], "r1", valid_ms=1_000)
    net.ask(names[0], "r1", within_ms=500)
    assert len(net.holders("r1")) == 4


def test_copies_end_with_their_validity(network, brokers) -> None:
    names = brokers(4)
    net = network(line(names), settings(kind="path"))
    net.put(names[3], "r1", valid_ms=6_000)
    net.ask(names[0], "r1")
    net.run(6_000)
    assert net.holders("r1") == set()
    assert not net.ask(names[0], "r1").found
    assert all(len(machine.table) == 0 for machine in net.machines.values())


def test_what_was_found_by_looking_ahead_is_copied_too(network, brokers) -> None:
    names = brokers(4)
    net = network(line(names), settings(SearchSettings(), kind="path"))
    net.put(names[3], "r1")
    net.ask(names[0], "r1")
    assert net.holders("r1") == set(names), "the broker that looked ahead is on the path"


@pytest.mark.parametrize("invalidate", [True, False])
def test_an_update_voids_old_copies_where_the_site_wants_it(
    network, brokers, invalidate: bool
) -> None:
    names = brokers(4)
    net = network(ring(names), settings(kind="path", invalidate=invalidate, recall=False))
    net.put(names[2], "r1", version=1)
    net.ask(names[0], "r1")
    assert len(net.holders("r1")) > 1
    net.put(names[2], "r1", version=2)
    net.run(100)
    answer = net.ask(names[0], "r1").reply
    assert answer.record.values["version"] == (2 if invalidate else 1)


def test_copies_stay_within_their_memory(network, brokers) -> None:
    from rapport.context.records import TableLimits

    names = brokers(3)
    chosen = BrokerSettings(
        search=OFF, replication=ReplicationSettings(kind="path"), table=TableLimits(replicas=5)
    )
    net = network(line(names), chosen)
    for number in range(20):
        net.put(names[2], f"r{number}")
        assert net.ask(names[0], f"r{number}", within_ms=100).found
    assert net.machines[names[0]].table.replicas == 5


@given(st.integers(0, 30), st.integers(0, 9), st.integers(1, 9), st.integers(0, 99))
def test_marks_are_distinct_and_never_more_than_wished(
    brokers_passed: int, copies: int, at_most: int, seed: int
) -> None:
    chosen = ReplicationSettings(copies=copies, at_most=at_most)
    marks = choose_marks(range(1, 1 + brokers_passed), chosen, Chance(seed))
    assert len(set(marks)) == len(marks) == min(copies or at_most, brokers_passed)
    assert all(1 <= mark <= brokers_passed for mark in marks)


def test_an_answer_leaves_out_dead_ends_except_where_every_broker_keeps_a_copy() -> None:
    c, a, b, x = (("c", 0), ("a", 1), ("b", 1), ("x", 1))
    trail = (c, a, b, x, b)
    assert answer_path(trail, ("d", 1), ReplicationSettings()) == (c, a, b)
    assert answer_path(trail, ("d", 1), ReplicationSettings(kind="cache")) == trail
    assert answer_path(trail, a, ReplicationSettings()) == (c,)
