"""The example of section 5.2.5: whole nodes, grouped by where they are going, over bytes."""

from __future__ import annotations

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.grouping.group_client import GroupClient, GroupsOf
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.role import Role
from rapport.ensemble.node_machine import NodeMachine
from rapport.ensemble.protocol import OutgoingMessage, decode, encode
from rapport.kernel.clock import Chance
from rapport.transport.base import Address, Sender
from rapport_lab.scheduler import Scheduler

PERIOD_MS = 5_000.0


class Travelling(Role):
    start: str
    destination: str


class Driver(Component, Travelling):
    passengers: list[str]


class Pedestrian(Component, Travelling):
    pass


class Sharing(Ensemble, every="1 s"):
    coordinator: Driver
    member: Pedestrian

    def membership(coordinator: Driver, member: Pedestrian) -> bool:  # type: ignore[misc]
        return True

    def exchange(coordinator: Driver, member: Pedestrian) -> None:  # type: ignore[misc]
        if member.id not in coordinator.passengers:
            coordinator.passengers.append(member.id)

    def group(coordinator: Travelling) -> str:  # type: ignore[misc]
        return f"{coordinator.start} - {coordinator.destination}"


class Streets:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.nodes: dict[Address, NodeMachine] = {}

    def add(self, component: Component | None, grouper: bool = False) -> NodeMachine:
        number, now = len(self.nodes), self.scheduler.now
        address, chance, first = (f"10.0.0.{number}", 7411), Chance(number), ("10.0.0.0", 7411)
        host = Host(f"node {number}", [Sharing], chance)

        def side(groups_of: GroupsOf) -> GroupClient | GrouperMachine:
            if grouper:
                return GrouperMachine(
                    host.node, address, chance, now, groupers=[first], groups_of=groups_of
                )
            return GroupClient(host.node, address, chance, groupers=[first], groups_of=groups_of)

        settings = GossipSettings(radio=False, ip=True, probability=0.0)
        node = NodeMachine(host, settings, chance, address=address, grouping=side, at_once=True)
        if component is not None:
            node.add(component, now)
        self.nodes[address] = node
        self.scheduler.after(0, self.tick, node)
        return node

    def tick(self, node: NodeMachine) -> None:
        node.tick(self.scheduler.now)
        self.flush(node)
        due_ms = node.next_due_ms()
        assert due_ms is not None
        self.scheduler.at(due_ms, self.tick, node)

    def flush(self, node: NodeMachine) -> None:
        for outgoing in node.outbox:
            self.scheduler.after(20, self.arrive, node, outgoing, encode(outgoing.message))
        node.outbox.clear()

    def arrive(self, sender: NodeMachine, outgoing: OutgoingMessage, data: bytes) -> None:
        assert outgoing.to is not None
        assert sender.address is not None
        node = self.nodes[outgoing.to]
        node.handle(decode(data), Sender(sender.address), self.scheduler.now)
        self.flush(node)


def test_drivers_meet_the_pedestrians_of_their_own_way_and_no_others() -> None:
    streets = Streets()
    for _number in range(3):
        streets.add(None, grouper=True)
    drivers = []
    for way, (start, end) in enumerate([("Mitte", "Wedding"), ("Mitte", "Pankow")]):
        driver = Driver(id=f"driver {way}", start=start, destination=end, passengers=[])
        drivers.append(streets.add(driver))
        for number in range(3):
            streets.add(Pedestrian(id=f"walker {way}{number}", start=start, destination=end))
    streets.scheduler.run(4 * PERIOD_MS)
    for way, node in enumerate(drivers):
        [driver] = node.host.components.values()
        assert isinstance(driver, Driver)
        walkers = [f"walker {way}{number}" for number in range(3)]
        assert sorted(driver.passengers) == sorted(node.host.replicas) == walkers
