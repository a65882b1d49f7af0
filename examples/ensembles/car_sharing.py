"""Cars and pedestrians who go the same way find each other, without a server."""

import math
from collections.abc import Callable

from rapport.ensemble import Component, Ensemble, Local, NodeKnowledge, Role, process

Position = tuple[float, float]  # metres east and north of the market


class PositionAware(Role):
    position: Position


class PositionAggregator(Role):
    positions: dict[str, Position]


class Actor(Component, PositionAware, PositionAggregator):
    start: str
    destination: str
    sensor: Local[Callable[[], Position]]

    @process(every="1 s", writes="position")
    def update_position(self) -> None:
        self.position = self.sensor()


class Driver(Actor):
    seats: int = 3


class Pedestrian(Actor): ...


class PositionDistributor(Ensemble, every="1 s"):
    coordinator: PositionAggregator
    member: PositionAware

    @staticmethod
    def membership(coordinator: PositionAggregator, member: PositionAware) -> bool:
        return (isinstance(coordinator, Driver) and isinstance(member, Pedestrian)) or (
            isinstance(coordinator, Pedestrian) and isinstance(member, Driver)
        )

    @staticmethod
    def exchange(coordinator: PositionAggregator, member: PositionAware) -> None:
        coordinator.positions[member.id] = member.position

    @staticmethod
    def boundary(sender: PositionAware, node: NodeKnowledge) -> bool:
        return any(
            isinstance(one, PositionAware) and math.dist(sender.position, one.position) < 2_000
            for one in node.components
        )

    @staticmethod
    def group(coordinator: Actor) -> str:
        return f"{coordinator.start} {coordinator.destination}"
