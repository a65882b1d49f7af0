"""Section 8.2 of the source: tables 8 and 9, event by event to the millisecond."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.protocol import Headers, PublishedKnowledge, Pull
from rapport.ensemble.trace import RADIO, Kind, System, Trace, TraceEvent
from rapport.ensemble.trace_files import facts_of
from rapport_lab.ensemble.rules.check import check_all
from rapport_lab.ensemble.rules.trace_index import report

LINKS = "1-2 1-4 2-3 2-5 3-6 4-5 4-7 5-8 5-6 6-9 7-8 8-9"
KNOWLEDGE = {"1": 4782}
HEADERS = {"2": 2795, "3": 3837}
PULLS = {"2": 3657, "3": 1585, "4": 4726, "6": 1585, "8": 4850, "9": 1408}

TABLE_8 = [
    (4782, "1 sends KN 1"),
    (4883, "2 receives KN 1 from 1"),
    (7795, "2 sends HD 1"),
    (7896, "3 receives HD 1 from 2"),
    (8837, "3 sends HD 1"),
    (8938, "6 receives HD 1 from 3"),
    (11585, "6 sends PL 1"),
    (11686, "5 receives PL 1 from 6"),
    (14984, "5 sends KN 1"),
    (15186, "9 receives KN 1 from 6"),
    (25186, "9 receives KN 1 from 6"),
    (35186, "9 receives KN 1 from 6"),
]
TABLE_9 = [
    (21408, "9 sends PL 1"),
    (21585, "3 sends PL 1"),
    (21585, "6 sends PL 1"),
    (24850, "8 sends PL 1"),
    (28657, "2 sends PL 1"),
    (29726, "4 sends PL 1"),
    (29850, "8 stops pulling 1"),
    (31408, "9 stops pulling 1"),
    (33657, "2 stops pulling 1"),
]

_VERBS = {
    Kind.KNOWLEDGE_SENT: "sends KN",
    Kind.KNOWLEDGE_RECEIVED: "receives KN",
    Kind.HEADERS_SENT: "sends HD",
    Kind.HEADERS_RECEIVED: "receives HD",
    Kind.PULL_SENT: "sends PL",
    Kind.PULL_RECEIVED: "receives PL",
}


def nine_nodes(net: Any, **more: Any) -> Any:
    for name in "123456789":
        settings = GossipSettings(
            knowledge_ms=5_000,
            header_ms=5_000,
            pull_ms=5_000,
            local_ms=6_000,
            global_ms=10_000,
            probability=0,
            knowledge_offset_ms=KNOWLEDGE.get(name, 0),
            header_offset_ms=HEADERS.get(name, 0),
            pull_offset_ms=PULLS.get(name, 0),
        )
        net.add(name, settings, **more)
    net.link(*(tuple(pair.split("-")) for pair in LINKS.split()))
    return net


def speaks_of_1(event: TraceEvent) -> bool:
    return event.component == "1" or any(name == "1" for name, _ in event.entries)


def rows(net: Any) -> list[tuple[float, str]]:
    found = []
    for event in net.recorder.events:
        if speaks_of_1(event):
            origin = f" from {event.other}" if event.other else ""
            found.append((event.time_ms, f"{event.node} {_VERBS[event.kind]} 1{origin}"))
    return found


def ends_of_pulling(net: Any, until_ms: int) -> list[tuple[int, str]]:
    """The first turn to pull that a node let pass after it had pulled 1."""
    pulled: dict[str, set[float]] = {}
    for time_ms, name, outgoing in net.sent:
        if isinstance(outgoing.message, Pull) and "1" in dict(outgoing.message.wanted):
            pulled.setdefault(name, set()).add(time_ms)
    return [
        (turn, f"{name} stops pulling 1")
        for name, times in pulled.items()
        for turn in range(PULLS.get(name, 0), until_ms, 5_000)
        if turn not in times and turn - 5_000 in times
    ]


def test_table_8_comes_out_to_the_millisecond(net: Any) -> None:
    nine_nodes(net).run(40_000)
    found = rows(net)
    assert [row for row in TABLE_8 if row not in found] == []
    arrived = {time for time, what in found if what.startswith("9 receives KN 1")}
    assert arrived == {15186, 25186, 35186}


def test_table_9_comes_out_to_the_millisecond(net: Any) -> None:
    nine_nodes(net).run(20_000)
    net.kill("1")
    net.run(60_000)
    found = rows(net) + ends_of_pulling(net, 60_000)
    assert [row for row in TABLE_9 if row not in found] == []
    assert max(time for time, what in found if "sends PL 1" in what) < 40_000


def test_the_published_scenario_breaks_no_rule(net: Any) -> None:
    tell, now = net.recorder.happened, net.scheduler.now
    nine_nodes(net, trace=net.recorder)
    for name in net.nodes:
        tell(Kind.STARTED, name, now)
        tell(Kind.DEPLOYED, name, now, component=name)
        for other in sorted(net.links[name]):
            tell(Kind.LINKED, name, now, other=other, medium=RADIO)
    facts = {name: facts_of(machine.settings) for name, machine in net.nodes.items()}
    net.run(20_000)
    net.kill("1")
    tell(Kind.STOPPED, "1", net.scheduler.now)
    net.run(60_000)
    system = System(nodes=facts, shortest_ms=101, longest_ms=101, end_ms=60_000)
    breaches = check_all(Trace(system, net.recorder.events))
    assert not breaches, report(breaches)
    told = {event.kind for event in net.recorder.events}
    assert {Kind.PASSED_ON, Kind.FLAG_SET, Kind.FLAG_CLEARED, Kind.HEADER_EXPIRED} <= told


def test_after_the_source_died_nobody_speaks_of_it_for_ever(net: Any) -> None:
    nine_nodes(net).run(20_000)
    net.kill("1")
    net.run(45_000)
    net.sent.clear()
    net.run(100_000)
    spoken = [out.message for _, _, out in net.sent]
    headers = [one for said in spoken if isinstance(said, Headers) for one in said.headers]
    assert not [one for one in headers if one.component == "1"]
    assert not [said for said in spoken if isinstance(said, Pull) and "1" in dict(said.wanted)]
    assert not [
        said for said in spoken if isinstance(said, PublishedKnowledge) and said.component == "1"
    ]


@pytest.mark.parametrize("answers", ["next", "immediate"])
def test_pull_brings_knowledge_to_whom_push_does_not_reach(make_net: Any, answers: Any) -> None:
    net = make_net()
    settings = GossipSettings(
        header_ms=5_000,
        pull_ms=5_000,
        local_ms=6_000,
        global_ms=10_000,
        probability=0,
        answers=answers,
    )
    for name in "abcd":
        net.add(name, settings)
    net.link(("a", "b"), ("b", "c"), ("c", "d"))
    net.run(60_000)
    assert set(net.heard["d"]) == {"a", "b", "c"}


def test_an_immediate_answer_comes_sooner_than_the_next_version(make_net: Any) -> None:
    ages = {}
    for answers in ("next", "immediate"):
        net = make_net()
        settings = GossipSettings(
            header_ms=5_000,
            pull_ms=5_000,
            local_ms=6_000,
            global_ms=30_000,
            probability=0,
            knowledge_ms=20_000,
            answers=answers,
            knowledge_offset_ms=0,
            header_offset_ms=1_000,
            pull_offset_ms=2_000,
        )
        for name in "abc":
            net.add(name, settings)
        net.link(("a", "b"), ("b", "c"))
        net.run(60_000)
        arrivals = [
            event.time_ms
            for event in net.recorder.events
            if event.kind == Kind.KNOWLEDGE_RECEIVED and (event.node, event.component) == ("c", "a")
        ]
        ages[answers] = min(arrivals)
    assert ages["immediate"] < 10_000 < ages["next"]
