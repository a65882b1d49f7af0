"""The city of the simulator, with its radio, keeps the rules as well."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.trace import Kind, Recorder, System, Trace
from rapport.ensemble.trace_files import facts_of
from rapport_lab.ensemble.rules.check import check_all
from rapport_lab.ensemble.rules.trace_index import Breach, report
from rapport_lab.ensemble.simulation.city import City, CitySettings
from rapport_lab.ensemble.simulation.measurements import Witness
from rapport_lab.ensemble.simulation.mobility import PlanSettings
from rapport_lab.ensemble.simulation.streets import GridSettings

PULL = GossipSettings(
    header_ms=5_000, pull_ms=5_000, local_ms=10_000, global_ms=20_000, probability=0.3
)


def breaches_of(
    settings: CitySettings, gossip: GossipSettings, boundary_metres: float | None
) -> tuple[list[Breach], Counter[Kind]]:
    city, recorder = City(settings), Recorder()
    world = city.gossip_world(
        gossip, boundary_metres=boundary_metres, witness=Witness(recorder=recorder)
    )
    city.run(world)
    facts = facts_of(gossip, boundary=boundary_metres is not None)
    # Frames wait 100 ms in the queue, then for a free channel, at most for some more.
    system = System(
        nodes=dict.fromkeys(world.names, facts),
        shortest_ms=100.0,
        longest_ms=1_000.0,
        end_ms=settings.duration_ms,
    )
    trace = Trace(system, recorder.events)
    return check_all(trace), Counter(event.kind for event in trace.events)


@pytest.mark.slow
@pytest.mark.parametrize("boundary_metres", [None, 300.0], ids=["everywhere", "bounded"])
def test_a_city_breaks_no_rule(boundary_metres: float | None) -> None:
    settings = CitySettings(nodes=40, duration_ms=30_000.0)
    breaches, told = breaches_of(settings, PULL, boundary_metres)
    assert not breaches, report(breaches)
    assert {Kind.LINKED, Kind.UNLINKED, Kind.LOST, Kind.PASSED_ON} <= set(told)


@pytest.mark.slow
def test_links_that_come_and_go_while_messages_wait_break_no_rule() -> None:
    """Whoever rushes about at 300 km/h is in range of another between two looks at the places."""
    settings = CitySettings(
        nodes=40,
        duration_ms=12_000.0,
        plans=PlanSettings(walk_speed=80.0, fastest_walk_speed=90.0, stay_ms=0, longest_stay_ms=1),
        grid=GridSettings(speed=83.0, side_speed=83.0),
    )
    gossip = msgspec.structs.replace(PULL, knowledge_ms=1_000, probability=1.0)
    breaches, told = breaches_of(settings, gossip, None)
    assert not breaches, report(breaches)
    assert told[Kind.UNLINKED] > 200
