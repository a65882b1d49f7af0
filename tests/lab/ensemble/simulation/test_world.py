from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rapport.core.errors import DuplicateName, InvalidInput, StoreUnavailable, UnknownName
from rapport.ensemble.protocol import Header, Headers, PublishedKnowledge
from rapport.ensemble.trace import Kind, Recorder
from rapport.kernel.clock import Chance, Now
from rapport_lab.ensemble.simulation.ip_network import IpNetwork, IpSettings
from rapport_lab.ensemble.simulation.measurements import (
    KnowledgeAges,
    RequestLog,
    Sizes,
    Witness,
    quartiles,
)
from rapport_lab.ensemble.simulation.radio import EXACT, FixedLinks, Radio, RadioSettings
from rapport_lab.ensemble.simulation.world import World
from rapport_lab.scheduler import Scheduler

MakeNode = Callable[..., Any]


def _radio_world(count: int, radio_settings: RadioSettings = EXACT, **options: Any) -> World:
    scheduler = Scheduler()
    links = [(number, number + 1) for number in range(count - 1)]
    radio = Radio(scheduler, FixedLinks(count, links), Chance(1), radio_settings)
    return World(scheduler, radio=radio, **options)


def test_messages_go_from_node_to_node_hop_by_hop(flooder: MakeNode) -> None:
    world = _radio_world(3)
    first, middle, last = (
        flooder(name, due) for name, due in [("a", 50.0), ("b", None), ("c", None)]
    )
    for node in (first, middle, last):
        world.add(node.name, node)
    world.run(900.0)
    assert middle.received == [(151.0, "a", "a"), (353.0, "a", "c")]
    assert last.received == [(252.0, "a", "b")]
    assert world.counters.sent["KN"] == 3
    assert world.counters.total == 3


@pytest.mark.parametrize("by_radio", [True, False], ids=["radio", "ip"])
def test_a_node_is_told_whether_all_in_range_were_meant(flooder: MakeNode, by_radio: bool) -> None:
    scheduler = Scheduler()
    radio = Radio(scheduler, FixedLinks(2, [(0, 1)]), Chance(1), EXACT)
    world = World(scheduler, radio=radio, ip=IpNetwork(scheduler, Chance(1)))
    talker = flooder("a", 0.0, None if by_radio else ("simulated", 1))
    listener = flooder("b", None, None if by_radio else ("simulated", 0))
    world.add("a", talker)
    world.add("b", listener)
    world.run(900.0)
    assert listener.media == {by_radio}


def test_a_node_is_woken_when_something_is_due_and_at_no_other_time(flooder: MakeNode) -> None:
    world = _radio_world(1)
    node = flooder("a", 250.0)
    world.add("a", node)
    world.run(3_500.0)
    assert node.ticks == [250.0, 1_250.0, 2_250.0, 3_250.0]
    assert world.counters.ticks == 4


def test_a_dead_node_is_silent_and_deaf_until_it_is_revived(flooder: MakeNode) -> None:
    world = _radio_world(2)
    talker, listener = flooder("a", 0.0), flooder("b", None)
    world.add("a", talker)
    world.add("b", listener)
    world.scheduler.at(1_500.0, world.kill, "b")
    world.scheduler.at(3_500.0, world.kill, "a")
    reborn = flooder("b", None)
    world.scheduler.at(2_500.0, world.revive, "b", reborn)
    world.run(9_000.0)
    assert [time_ms for time_ms, *_ in listener.received] == [101.0, 1_101.0]
    assert [time_ms for time_ms, *_ in reborn.received] == [3_101.0]
    assert talker.ticks == [0.0, 1_000.0, 2_000.0, 3_000.0]
    assert (world.is_alive("a"), world.is_alive("b")) == (False, True)


def test_a_node_that_joins_later_takes_part_from_then_on(flooder: MakeNode) -> None:
    world = _radio_world(2)
    world.add("a", flooder("a", 0.0))
    late = flooder("b", None)
    world.scheduler.at(2_050.0, world.add, "b", late)
    world.run(3_500.0)
    assert [time_ms for time_ms, *_ in late.received] == [2_101.0, 3_101.0]


def test_nodes_talk_over_ip_by_address(flooder: MakeNode) -> None:
    scheduler = Scheduler()
    ip = IpNetwork(scheduler, Chance(1), IpSettings(delay_ms=20, jitter_ms=0))
    world = World(scheduler, ip=ip)
    one, other = flooder("a", 5.0, ("x", 2)), flooder("b", None, ("x", 1))
    world.add("a", one, ("x", 1))
    world.add("b", other, ("x", 2))
    world.run(500.0)
    assert other.received == [(25.0, "a", "a")]
    assert one.received == [(45.0, "a", "b")]
    world.kill("b")
    world.run(1_500.0)
    assert ip.counters.nobody == 1


def test_a_parted_world_is_silent_between_its_parts_until_it_is_whole_again(
    flooder: MakeNode,
) -> None:
    scheduler = Scheduler()
    radio = Radio(scheduler, FixedLinks(3, [(0, 1), (0, 2), (1, 2)]), Chance(1), EXACT)
    ip = IpNetwork(scheduler, Chance(1))
    world = World(scheduler, radio=radio, ip=ip)
    for number, name in enumerate("abc"):
        world.add(name, flooder(name, 0.0 if name == "a" else None), (name, number))
    world.scheduler.at(500.0, world.part, ["a", "b"])
    world.scheduler.at(1_500.0, world.part)
    world.scheduler.at(600.0, ip.send, 0, _message("a"), ("c", 2), 100)
    world.run(2_050.0)
    world.part(["a"])
    world.run(2_900.0)
    heard = {name: world.nodes[number].received for number, name in enumerate("abc")}  # type: ignore[attr-defined]
    by_a = {
        name: [time_ms for time_ms, _, sender in rows if sender == "a"]
        for name, rows in heard.items()
    }
    assert by_a == {"a": [], "b": [101.0, 1_101.0], "c": [101.0]}
    assert ip.counters.cut_off == 1
    with pytest.raises(UnknownName):
        world.part(["nobody"])


def test_ages_are_measured_when_a_newer_version_arrives(flooder: MakeNode) -> None:
    ages = KnowledgeAges()
    world = _radio_world(2, ages=ages)
    world.add("a", flooder("a", 500.0))
    world.add("b", flooder("b", None))
    world.run(3_000.0)
    # The first time nothing was held: the simulated time. Then the age of what was held.
    assert list(ages.ages) == [601, 1_101, 1_101]
    assert [ages.distinct_components(number) for number in (0, 1)] == [0, 1]
    assert ages.quartiles() == (601, 1_101, 1_101, 3)


def test_an_age_never_leaves_its_bounds() -> None:
    ages = KnowledgeAges()
    now, early = Now(1_000, 50.0), Now(10, 60.0)
    assert ages.arrived(1, PublishedKnowledge("a", 1, 990, "x", (), {}), now) == 50
    ages.arrived(1, PublishedKnowledge("a", 2, 0, "x", (), {}), early)
    ages.arrived(1, PublishedKnowledge("a", 3, 0, "x", (), {}), Now(2**60, 70.0))
    assert list(ages.ages) == [50, 0, 0xFFFF_FFFF]
    ages.forget(1)
    assert ages.distinct_components(1) == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (0, 0, 0, 0)),
        ([7], (7, 7, 7, 1)),
        ([4, 1, 3, 2], (2, 3, 4, 4)),
        (range(8), (2, 4, 6, 8)),
    ],
    ids=["none", "one", "four", "eight"],
)
def test_quartiles_are_taken_by_index(values: Any, expected: tuple[float, ...]) -> None:
    assert quartiles(list(values)) == expected


def test_the_request_log_holds_what_was_sent_received_missed_and_how_old_it_was(
    flooder: MakeNode, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / "requests.parquet"
    with RequestLog(path) as log:
        colliding = RadioSettings(carrier_sense=False)
        world = _radio_world(3, colliding, witness=Witness(log=log), ages=KnowledgeAges())
        for name, due in [("a", 0.0), ("b", None), ("c", 900.0)]:
            world.add(name, flooder(name, due))
        world.scheduler.at(1_101.0, world.radio.send, 2, _message("c"), 200)  # type: ignore[union-attr]
        world.run(2_000.0)
    rows = pq.read_table(path).to_pylist()
    assert len(rows) == log.rows
    counters = world.radio.counters  # type: ignore[union-attr]
    assert sum(row["what"] == "received" for row in rows) == counters.delivered
    assert sum(row["what"] == "sent" for row in rows) == world.counters.total
    assert sum(row["what"] == "collided" for row in rows) == counters.collided
    assert [row["time_ms"] for row in rows] == sorted(row["time_ms"] for row in rows)
    first, aged = rows[0], next(row for row in rows if row["what"] == "aged")
    assert (first["what"], first["node"], first["kind"], first["component"]) == (
        "sent",
        "a",
        "KN",
        "a",
    )
    assert (aged["node"], aged["other"], aged["age_ms"]) == ("b", "a", 108)


def _message(name: str) -> PublishedKnowledge:
    return PublishedKnowledge(name, 1, 1, name, (), {})


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        RequestLog(tmp_path / "file" / "log.parquet")


def test_the_trace_holds_starts_links_messages_and_losses(flooder: MakeNode) -> None:
    recorder = Recorder()
    lossy = RadioSettings(loss=1.0)
    world = _radio_world(2, lossy, witness=Witness(recorder=recorder))
    world.add("a", flooder("a", 0.0))
    world.add("b", flooder("b", None))
    world.run(500.0)
    world.kill("b")
    told = [(event.kind, event.node, event.other) for event in recorder.events]
    assert told == [
        (Kind.STARTED, "a", ""),
        (Kind.STARTED, "b", ""),
        (Kind.LINKED, "a", "b"),
        (Kind.LINKED, "b", "a"),
        (Kind.KNOWLEDGE_SENT, "a", ""),
        (Kind.LOST, "b", "a"),
        (Kind.UNLINKED, "a", "b"),
        (Kind.UNLINKED, "b", "a"),
        (Kind.STOPPED, "b", ""),
    ]


def test_a_world_refuses_what_it_cannot_do(flooder: MakeNode) -> None:
    world = _radio_world(1)
    world.add("a", flooder("a", None))
    with pytest.raises(DuplicateName):
        world.add("a", flooder("a", None))
    with pytest.raises(InvalidInput) as refused:
        world.add("b", flooder("b", None))
    assert refused.value.code == "ensemble.too_many_nodes"
    with pytest.raises(UnknownName):
        world.kill("nobody")
    without_ip = _radio_world(1)
    without_ip.add("a", flooder("a", 0.0, ("x", 1)))
    with pytest.raises(InvalidInput) as refused:
        without_ip.run(10.0)
    assert refused.value.code == "ensemble.no_medium"


def test_knowledge_counts_as_set_and_all_else_as_written() -> None:
    sizes = Sizes(knowledge_bytes=100, frame_bytes=10)
    assert sizes.size_of(_message("a")) == 110
    assert sizes.size_of(PublishedKnowledge("a", 1, 1, "a", (), b"12345")) == 15
    few, many = (Headers((Header("a", 1),) * count) for count in (1, 50))
    assert sizes.size_of(few) < sizes.size_of(many)
    with pytest.raises(InvalidInput):
        Sizes(knowledge_bytes=-1)
