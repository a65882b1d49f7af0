"""Figures 1, 2, 12 and 13 of the source as a file of under sixty lines."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.host import Host
from rapport.kernel.clock import Now

EXAMPLE = Path(__file__).parents[3] / "examples/ensembles/car_sharing.py"


@pytest.fixture(scope="module")
def cars() -> ModuleType:
    spec = importlib.util.spec_from_file_location("car_sharing_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["car_sharing_example"] = module  # where types of fields are looked up
    spec.loader.exec_module(module)
    return module


def actor(kind: Any, name: str, x: float, way: tuple[str, str] = ("Mitte", "Moabit")) -> Any:
    start, destination = way
    return kind(
        id=name,
        position=(0.0, 0.0),
        positions={},
        start=start,
        destination=destination,
        sensor=lambda: (x, 0.0),
    )


def spread(hosts: list[Host], now: Now) -> None:
    """Everybody hears what everybody publishes."""
    for sender in hosts:
        for name in sender.components:
            said = sender.snapshot(name)
            assert said is not None
            told = Knowledge(name, sender.node, said.roles, now.wall_ms, now.wall_ms, said.values)
            for hearer in hosts:
                if hearer is not sender:
                    hearer.replace(told, now)


def test_the_example_has_under_sixty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_drivers_and_pedestrians_learn_where_the_others_are(
    cars: ModuleType, make_host: Callable[..., Host], at: Callable[[float], Now]
) -> None:
    people = [
        actor(cars.Driver, "driver", 100),
        actor(cars.Pedestrian, "anna", 200),
        actor(cars.Pedestrian, "ben", 9_000),
    ]
    hosts = [make_host(cars.PositionDistributor) for _ in people]
    for host, one in zip(hosts, people, strict=True):
        host.add(one, at(0))
    for ms in (1_000, 2_000, 3_000):
        for host in hosts:
            host.run(at(ms))
        spread(hosts, at(ms))
    driver, anna, ben = people
    assert driver.positions == {"anna": (200.0, 0.0), "ben": (9_000.0, 0.0)}
    assert anna.positions == ben.positions == {"driver": (100.0, 0.0)}
    assert [len(host.faults) for host in hosts] == [0, 0, 0]


def test_knowledge_is_passed_on_within_two_kilometres_and_grouped_by_way(
    cars: ModuleType, make_host: Callable[..., Host], at: Callable[[float], Now]
) -> None:
    host = make_host(cars.PositionDistributor)
    host.add(actor(cars.Driver, "driver", 0), at(0))

    def heard(x: float) -> Knowledge:
        return Knowledge("anna", "n", ("Pedestrian", "PositionAware"), 1, 1, {"position": [x, 0]})

    assert host.may_pass_on(heard(1_999))
    assert not host.may_pass_on(heard(2_001))
    snapshot = host.snapshot("driver")
    assert snapshot is not None
    assert snapshot.groups == ("PositionDistributor:Mitte Moabit",)
    assert "sensor" not in snapshot.values


def mypy(file: Path) -> str:
    root = EXAMPLE.parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    return done.stdout


@pytest.mark.slow
def test_a_type_checker_accepts_the_example_and_finds_mistakes_in_others(tmp_path: Path) -> None:
    assert "Success" in mypy(EXAMPLE)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        EXAMPLE.read_text()
        + "\n\nDriver(id='d', seats='many')\n"
        + "\n\ndef late(driver: Driver) -> None:\n    driver.sets = 4\n"
    )
    found = mypy(wrong)
    assert 'Argument "seats" to "Driver" has incompatible type "str"' in found
    assert 'Missing named argument "position" for "Driver"' in found
    assert '"Driver" has no attribute "sets"' in found
