"""The city of the simulator, with its radio, keeps the rules as well."""

from __future__ import annotations

import pytest

from rapport.ensemble.gossip.settings import GossipSettings
from rapport.ensemble.rules.breach import report
from rapport.ensemble.rules.check import check_all
from rapport.ensemble.rules.facts import facts_of
from rapport.ensemble.simulation.city import City, CitySettings
from rapport.ensemble.simulation.witness import Witness
from rapport.ensemble.trace import Kind, Recorder, System, Trace

PULL = GossipSettings(
    header_ms=5_000, pull_ms=5_000, local_ms=10_000, global_ms=20_000, probability=0.3
)


@pytest.mark.slow
@pytest.mark.parametrize("boundary_metres", [None, 300.0], ids=["everywhere", "bounded"])
def test_a_city_breaks_no_rule(boundary_metres: float | None) -> None:
    city = City(CitySettings(nodes=40, duration_ms=30_000.0))
    recorder = Recorder()
    world = city.gossip_world(
        PULL, boundary_metres=boundary_metres, witness=Witness(recorder=recorder)
    )
    city.run(world)
    facts = facts_of(PULL, boundary=boundary_metres is not None)
    # Frames wait 100 ms in the queue, then for a free channel, at most for some more.
    system = System(
        nodes=dict.fromkeys(world.names, facts),
        shortest_ms=100.0,
        longest_ms=1_000.0,
        end_ms=30_000.0,
    )
    breaches = check_all(Trace(system, recorder.events))
    assert not breaches, report(breaches)
    assert {Kind.LINKED, Kind.UNLINKED, Kind.LOST, Kind.PASSED_ON} <= {
        event.kind for event in recorder.events
    }
