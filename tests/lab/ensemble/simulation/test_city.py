from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.gossip_machine import GossipMachine
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.trace import Recorder, System, Trace
from rapport.ensemble.trace_files import facts_of
from rapport_lab.ensemble.rules.check import check_all
from rapport_lab.ensemble.rules.trace_index import report
from rapport_lab.ensemble.simulation.city import PERIODS, City, CitySettings
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges, RequestLog, Witness
from rapport_lab.ensemble.simulation.mobility import PlanSettings
from rapport_lab.ensemble.simulation.radio import EXACT, RadioSettings
from rapport_lab.ensemble.simulation.world import World

_SMALL = CitySettings(nodes=40, duration_ms=30_000.0)


def _sent(city: City, probability: float, boundary_metres: float | None = None) -> int:
    gossip = GossipSettings(probability=probability)
    world = city.gossip_world(gossip, boundary_metres=boundary_metres)
    city.run(world)
    return world.counters.total


@pytest.mark.slow
def test_without_passing_on_the_published_set_up_sends_exactly_nodes_times_periods() -> None:
    city = City()
    assert (city.settings.nodes, PERIODS) == (200, 181)
    assert _sent(city, 0.0) == 36_200


def test_without_passing_on_each_node_sends_once_per_period() -> None:
    assert _sent(City(_SMALL), 0.0) == 40 * 6


def test_more_is_sent_the_likelier_it_is_passed_on_and_never_more_with_a_boundary() -> None:
    city = City(_SMALL, keep=True)
    plain = [_sent(city, probability) for probability in (0.0, 0.3, 0.6, 1.0)]
    bounded = [_sent(city, probability, 300.0) for probability in (0.0, 0.3, 0.6, 1.0)]
    assert plain == sorted(plain)
    assert plain[0] < plain[1]
    assert all(less <= more for less, more in zip(bounded, plain, strict=True))
    assert bounded[-1] < plain[-1]


def test_a_larger_city_is_not_denser() -> None:
    small, large = CitySettings(nodes=200), CitySettings(nodes=20_000)
    assert small.side_metres == pytest.approx(2_828, abs=1)
    assert large.side_metres == pytest.approx(28_284, abs=10)


def test_an_impossible_city_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        City(CitySettings(nodes=0))
    assert refused.value.code == "ensemble.bad_city"


def test_a_city_of_one_node_works() -> None:
    assert _sent(City(CitySettings(nodes=1, duration_ms=10_000.0)), 1.0) == 2


def _digest(path: Path, seed: int, city_seed: int = 1) -> str:
    """Of everything that was sent, received, missed and aged."""
    city = City(CitySettings(nodes=20, duration_ms=11_000.0, seed=city_seed))
    gossip = GossipSettings(probability=0.7, header_ms=5_000, pull_ms=5_000, local_ms=6_000)
    with RequestLog(path) as log:
        world = city.gossip_world(gossip, seed=seed, ages=KnowledgeAges(), witness=Witness(log=log))
        city.run(world)
    assert log.rows > 200
    rows = pq.read_table(path).to_pylist()
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@pytest.mark.slow
def test_the_seed_decides_everything_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    first = _digest(path, 1)
    assert _digest(path, 1) == first
    assert _digest(path, 2) != first
    assert _digest(path, 1, city_seed=2) != first


@pytest.mark.slow
def test_the_seed_decides_in_every_process(tmp_path: Path) -> None:
    code = (
        "import importlib.util, pathlib, sys\n"
        "spec = importlib.util.spec_from_file_location('test_city', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(module._digest(pathlib.Path(sys.argv[2]), 5))\n"
    )
    found = {_digest(tmp_path / "own.parquet", 5)}
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", code, __file__, str(tmp_path / f"{hash_seed}.parquet")]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(ran.stdout.strip())
    assert len(found) == 1


@pytest.mark.slow
@pytest.mark.parametrize("radio", [RadioSettings(), EXACT], ids=["real radio", "exact radio"])
@pytest.mark.parametrize("boundary_metres", [None, 300.0], ids=["everywhere", "bounded"])
def test_what_happens_in_a_city_breaks_no_rule(
    radio: RadioSettings, boundary_metres: float | None
) -> None:
    # Rules look at who was in range when a message was queued; so nobody moves out of it meanwhile.
    still = PlanSettings(stay_ms=1e9, longest_stay_ms=1e9, stop_ms=1e9, longest_stop_ms=1e9)
    city = City(CitySettings(nodes=25, duration_ms=30_000.0, radio=radio, plans=still))
    gossip = GossipSettings(probability=0.4, header_ms=5_000, pull_ms=5_000, local_ms=6_000)
    recorder = Recorder()
    world = city.gossip_world(
        gossip, boundary_metres=boundary_metres, witness=Witness(recorder=recorder)
    )
    city.run(world)
    facts = facts_of(gossip, boundary=boundary_metres is not None)
    system = System(
        nodes=dict.fromkeys(world.names, facts), longest_ms=2_000.0, end_ms=world.scheduler.time_ms
    )
    assert len(recorder.events) > 1_000
    assert report(check_all(Trace(system, recorder.events))) == report([])


@pytest.mark.slow
def test_after_an_hour_in_two_parts_all_hold_the_newest_within_ten_periods() -> None:
    hour_ms = 3_600_000.0
    still = PlanSettings(stay_ms=1e9, longest_stay_ms=1e9, stop_ms=1e9, longest_stop_ms=1e9)
    city = City(
        CitySettings(nodes=12, nodes_per_km2=200, duration_ms=hour_ms, radio=EXACT, plans=still)
    )
    world = city.gossip_world(GossipSettings(probability=0.9))
    halves = world.names[::2], world.names[1::2]
    world.run(20_000.0)
    world.part(*halves)
    world.run(hour_ms)
    assert _oldest_ms(world, halves[0], of=halves[0]) < 10_000
    assert _oldest_ms(world, halves[0], of=halves[1]) > 600_000
    world.part()
    world.run(hour_ms + 50_000)
    assert _oldest_ms(world, world.names, of=world.names) < 10_000


def _oldest_ms(world: World, names: Sequence[str], *, of: Sequence[str]) -> float:
    """How long ago the oldest version was published that some node holds of some component; very
    long where it holds none.
    """
    now_ms = world.scheduler.now.wall_ms
    created = []
    for name in names:
        node = world.nodes[world.number_of(name)]
        assert isinstance(node, GossipMachine)
        for component in of:
            entry = node.buffer.entries.get(component)
            message = entry.message if entry is not None else None
            created.append(message.created_ms if message is not None else 0)
    return now_ms - min(created)
