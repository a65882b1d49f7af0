"""The nine nodes of section 8.2 in a world: what table 8 says, to the millisecond."""

from __future__ import annotations

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.trace import Kind, Recorder
from rapport.kernel.clock import Chance, Now
from rapport_lab.ensemble.simulation.measurements import Witness
from rapport_lab.ensemble.simulation.radio import EXACT, FixedLinks, Radio
from rapport_lab.ensemble.simulation.world import World
from rapport_lab.scheduler import Scheduler

_LINKS = "1-2 1-4 2-3 2-5 3-6 4-5 4-7 5-8 5-6 6-9 7-8 8-9"
_KNOWLEDGE = {"1": 4_782.0}
_HEADERS = {"2": 2_795.0, "3": 3_837.0}
_PULLS = {"2": 3_657.0, "3": 1_585.0, "4": 4_726.0, "6": 1_585.0, "8": 4_850.0, "9": 1_408.0}


class _Component:
    def __init__(self, name: str) -> None:
        self._name = name

    def published(self, now: Now) -> list[Publication]:
        return [Publication(self._name, (), {})]


def _world(recorder: Recorder) -> World:
    scheduler = Scheduler()
    links = [(int(link[0]) - 1, int(link[2]) - 1) for link in _LINKS.split()]
    radio = Radio(scheduler, FixedLinks(9, links), Chance(1), EXACT)
    world = World(scheduler, radio=radio, witness=Witness(recorder=recorder))
    for name in "123456789":
        gossip = GossipSettings(
            header_ms=5_000,
            pull_ms=5_000,
            local_ms=6_000,
            global_ms=10_000,
            probability=0.0,
            knowledge_offset_ms=_KNOWLEDGE.get(name, 0.0),
            header_offset_ms=_HEADERS.get(name, 0.0),
            pull_offset_ms=_PULLS.get(name, 0.0),
        )
        world.add(name, GossipMachine(name, gossip, Chance(1), source=_Component(name)))
    return world


def test_knowledge_of_the_first_reaches_the_last_when_the_source_says() -> None:
    recorder = Recorder()
    _world(recorder).run(36_000.0)
    told = [event for event in recorder.events if event.component == "1"]
    arrived = [
        event.time_ms
        for event in told
        if event.kind is Kind.KNOWLEDGE_RECEIVED and (event.node, event.other) == ("9", "6")
    ]
    assert arrived == [15_186.0, 25_186.0, 35_186.0]
    passed = next(e for e in told if e.kind is Kind.KNOWLEDGE_SENT and e.node == "5")
    assert passed.time_ms == 14_984.0


def test_the_last_pulls_when_the_first_is_dead() -> None:
    recorder = Recorder()
    world = _world(recorder)
    world.scheduler.at(20_000.0, world.kill, "1")
    world.run(36_000.0)
    pulls = [
        (event.time_ms, event.node)
        for event in recorder.events
        if event.kind is Kind.PULL_SENT and any(wanted == "1" for wanted, _ in event.entries)
    ]
    for row in [(21_408.0, "9"), (21_585.0, "3"), (21_585.0, "6"), (24_850.0, "8")]:
        assert row in pulls
    assert [time_ms for time_ms, node in pulls if node == "2"] == [28_657.0]
