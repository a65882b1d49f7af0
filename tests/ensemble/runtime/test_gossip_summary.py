"""What a node counts of its gossip: messages by kind, and ages by the source's measure. [EN-12,
PI-6]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.times import DurationHistogram
from rapport.ensemble.protocol import Headers, PublishedKnowledge, Pull
from rapport.ensemble.runtime.gossip_summary import GossipCounters, GossipSummary
from rapport.kernel.clock import Now
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges

ARRIVALS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5_000), st.integers(0, 5_000)), max_size=40
)


def version(component: str, created_ms: int) -> PublishedKnowledge:
    return PublishedKnowledge(component, created_ms, created_ms, "elsewhere", ("Car",), b"")


@given(ARRIVALS)
def test_ages_are_those_of_the_simulator_but_for_first_versions(
    arrivals: list[tuple[str, int, int]],
) -> None:
    figures, judge = GossipCounters("here", 0), KnowledgeAges()
    figures.received(version("a", 0))
    known: set[str] = set()
    expected, now_ms = DurationHistogram(), 0
    for component, wait_ms, ago_ms in arrivals:
        now_ms += wait_ms
        said = version(component, now_ms - ago_ms)
        age = judge.arrived(1, said, Now(now_ms, float(now_ms)))
        if component in known:
            expected.add(age)
        known.add(component)
        figures.replaced([said], now_ms)
    told = figures.take(known, len(known), now_ms)
    assert told is not None
    assert (told.ages, told.first, told.replicas) == (expected.take(), len(known), len(known))


def test_messages_are_counted_by_kind_and_only_once() -> None:
    figures = GossipCounters("here", 1_000)
    for _ in range(3):
        figures.sent(version("a", 1))
    figures.sent(Pull((("a", 0),)))
    figures.received(Headers(()))
    told = figures.take(set(), 0, 61_000)
    assert told is not None
    assert (told.sent, told.received) == ({"knowledge": 3, "pull": 1}, {"headers": 1})
    assert (told.node, told.since, told.until) == ("here", 1_000, 61_000)
    assert figures.take(set(), 0, 121_000) is None


def test_what_was_forgotten_is_heard_for_the_first_time_again() -> None:
    figures = GossipCounters("here", 0)
    figures.received(version("a", 0))
    figures.replaced([version("a", 0), version("b", 0)], 10)
    figures.take({"b"}, 1, 20)
    figures.received(version("a", 0))
    figures.replaced([version("a", 100), version("b", 100)], 130)
    told = figures.take({"a", "b"}, 2, 200)
    assert told is not None
    assert (told.first, told.ages.count, told.ages.longest) == (1, 1, 128 + 2)


def test_components_that_come_and_go_are_forgotten_though_nobody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rapport.ensemble.runtime.gossip_summary._MOST", 10)
    figures = GossipCounters("here", 0)
    for number in range(100):
        figures.replaced([version("stays", number), version(f"goes {number}", number)], number + 1)
    assert len(figures._created) == 10
    figures.received(version("stays", 0))
    told = figures.take({"stays"}, 1, 200)
    assert told is not None
    assert (told.first, told.ages.count) == (101, 99)


def test_the_event_reads_back_and_is_the_same_twice() -> None:
    figures = GossipCounters("here", 0)
    figures.sent(version("a", 1))
    told = figures.take(set(), 0, 9)
    assert told is not None
    event = told.to_event(source="site")
    assert msgspec.json.decode(event.data, type=GossipSummary) == told
    assert event == told.to_event(source="site")
    assert (event.type, event.subject, event.time) == ("rapport.ensemble.summary", "here", 9)


@pytest.mark.slow
def test_nodes_that_run_count_what_they_say_and_hear(opened: Callable[[], Any]) -> None:
    async def scenario() -> None:
        async with opened() as world:
            first = await world.person("a")
            second = await world.person("b", join=[first.address])

            def heard() -> int:
                return int(first.status().counters.get("versions_received", 0))

            await world.until(lambda: heard() >= 5)
            told, replaced = first.take_summary(), heard()
            assert told is not None
            assert (told.node, told.first, told.replicas) == ("node-a", 1, 1)
            assert told.ages.count == replaced - 1
            assert told.sent["knowledge"] >= 1
            assert told.received["knowledge"] >= replaced
            assert 0 < told.ages.longest < 10_000
            assert second.take_summary() is not None

    asyncio.run(scenario())
