"""Whole nodes, with components and ensembles, in a city."""

from __future__ import annotations

from math import hypot

import pytest

from rapport.ensemble import Component, Ensemble, Local, Role, process
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.host import Host
from rapport.ensemble.node_machine import NodeMachine
from rapport.kernel.clock import Chance, Now
from rapport_lab.ensemble.simulation.city import DRIVER, Actor, City, CitySettings
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges
from rapport_lab.scheduler import Scheduler

Position = tuple[float, float]


class PositionAware(Role):
    position: Position
    role: str


class PositionAggregator(Role):
    positions: dict[str, Position]
    role: str


class Person(Component, PositionAware, PositionAggregator):
    sensor: Local[object] = None

    @process(every="1 s", writes="position")
    def update_position(self) -> None:
        assert isinstance(self.sensor, Actor)
        east, north = self.sensor.position
        self.position = (east, north)


class PositionDistributor(Ensemble, every="1 s"):
    coordinator: PositionAggregator
    member: PositionAware

    @staticmethod
    def membership(coordinator: PositionAggregator, member: PositionAware) -> bool:
        return coordinator.role != member.role

    @staticmethod
    def exchange(coordinator: PositionAggregator, member: Person) -> None:
        coordinator.positions[member.id] = member.position


def _make_node(actor: Actor, chance: Chance) -> NodeMachine:
    host = Host(actor.name, [PositionDistributor], chance)
    east, north = actor.position
    person = Person(
        id=actor.name, role=actor.role, position=(east, north), positions={}, sensor=actor
    )
    host.add(person, _NOW)
    return NodeMachine(host, GossipSettings(probability=0.5), chance, at_once=True)


_NOW: Now = Scheduler().now


@pytest.mark.slow
def test_drivers_and_walkers_of_a_city_find_each_other_without_a_server() -> None:
    city = City(CitySettings(nodes=24, duration_ms=20_000.0))
    ages = KnowledgeAges()
    world = city.world(_make_node, ages=ages)
    city.run(world)
    met = 0
    for number, node in enumerate(world.nodes):
        assert isinstance(node, NodeMachine)
        assert not list(node.host.faults)
        (person,) = node.host.components.values()
        assert isinstance(person, Person)
        assert (number < city.drivers) == (person.role == DRIVER)
        there = city.mobility.position_at(number, 20_000.0)
        assert hypot(person.position[0] - there[0], person.position[1] - there[1]) < 60
        for name in person.positions:
            assert (world.number_of(name) < city.drivers) != (number < city.drivers)
            met += 1
    assert met > 20
    assert ages.quartiles().values > 100
