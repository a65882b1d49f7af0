"""A whole node: components, ensembles, gossip and groups as one pure machine."""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.grouping.group_client import GroupClient
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.model.component import Component, process
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.role import Role
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.node_machine import NodeMachine
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender
from rapport_lab.scheduler import Scheduler

WALL = 1_700_000_000_000


class Placed(Role):
    place: float


class Watcher(Role):
    seen: dict[str, float]


class Car(Component, Placed, Watcher):
    place: float = 0.0
    seen: dict[str, float]
    steps: int = 0

    @process(every="1 s", reads="steps", writes="steps")
    def count(self) -> None:
        self.steps += 1


class Sight(Ensemble, every="1 s"):
    coordinator: Watcher
    member: Placed

    def membership(coordinator: Watcher, member: Placed) -> bool:
        return True

    def exchange(coordinator: Watcher, member: Placed) -> None:
        coordinator.seen[member.id] = member.place

    def boundary(sender: Placed, node: Any) -> bool:
        return any(abs(sender.place - one.place) < 15 for one in node.components)

    def group(coordinator: Watcher) -> str:
        return "all"


class Street:
    """Nodes with radio along a line, each hears its neighbours; or all on IP."""

    def __init__(self, *, ip: bool = False) -> None:
        self.scheduler, self.ip = Scheduler(), ip
        self.nodes: dict[str, NodeMachine] = {}
        self.sent: list[tuple[str, Any]] = []

    def add(self, name: str, place: float, **more: Any) -> NodeMachine:
        chance = Chance(name)
        host = Host(name, [Sight], chance, HostSettings(replica_ms=20_000))
        settings = GossipSettings(probability=1, radio=not self.ip, ip=self.ip)
        node = NodeMachine(
            host, settings, chance, address=(name, 1) if self.ip else None, at_once=True, **more
        )
        node.add(Car(id=f"car {name}", place=place, seen={}), self.scheduler.now)
        self.nodes[name] = node
        self.after(name)
        return node

    def car(self, name: str) -> Any:
        return self.nodes[name].host.components[f"car {name}"]

    def tick(self, name: str, due: float) -> None:
        node = self.nodes.get(name)
        if node is not None and node.next_due_ms() == due:
            assert node.tick(self.scheduler.now) == []
            self.after(name)

    def after(self, name: str) -> None:
        node = self.nodes[name]
        for outgoing in node.outbox:
            self.sent.append((name, outgoing))
            names = list(self.nodes)
            place = names.index(name)
            near = [outgoing.to[0]] if outgoing.to else names[max(place - 1, 0) : place + 2]
            for to in near:
                if to != name:
                    self.scheduler.after(10, self.arrive, to, outgoing.message, (name, 1))
        node.outbox.clear()
        due = node.next_due_ms()
        if due is not None:
            self.scheduler.at(due, self.tick, name, due)

    def arrive(self, name: str, message: Any, sender: Address) -> None:
        if name in self.nodes:
            self.nodes[name].handle(message, Sender(sender), self.scheduler.now)
            self.after(name)


def test_components_see_each_other_over_several_hops_within_the_boundary() -> None:
    street = Street()
    for number in range(6):
        street.add(f"n{number}", number * 10.0)
    street.scheduler.run(20_000)
    # Passed on by nodes within 15 m of the car: so heard by those within two hops.
    assert street.car("n0").seen == {"car n1": 10.0, "car n2": 20.0}
    assert set(street.car("n3").seen) == {"car n1", "car n2", "car n4", "car n5"}
    assert street.car("n0").steps >= 19


def test_a_node_that_ends_is_forgotten_by_time_or_at_once_when_it_is_known_to_be_dead() -> None:
    street = Street()
    for number in range(3):
        street.add(f"n{number}", number * 10.0)
    street.scheduler.run(10_000)
    del street.nodes["n2"]
    node = street.nodes["n0"]
    assert set(node.host.replicas) == {"car n1", "car n2"}
    assert node.node_gone("n1", ("n1", 1), street.scheduler.now) == ["car n1"]
    street.scheduler.run(40_000)
    assert set(node.host.replicas) == {"car n1"}


def test_in_groups_members_find_each_other_through_the_grouper() -> None:
    street = Street(ip=True)
    well_known = [("grouper", 1)]
    now = street.scheduler.now

    def grouper(groups_of: Any) -> GrouperMachine:
        return GrouperMachine("grouper", ("grouper", 1), Chance(1), now, groups_of=groups_of)

    street.add("grouper", 0.0, grouping=grouper)
    for number in range(4):
        name = f"n{number}"

        def client(groups_of: Any, name: str = name) -> GroupClient:
            return GroupClient(
                name, (name, 1), Chance(name), groupers=well_known, groups_of=groups_of
            )

        street.add(name, 5.0, grouping=client)
    street.scheduler.run(30_000)
    everybody = {f"car {name}" for name in street.nodes}
    for name in street.nodes:
        assert set(street.car(name).seen) == everybody - {f"car {name}"}


def test_the_runtime_gets_the_calls_to_run() -> None:
    host = Host("n", [], Chance(1))
    node = NodeMachine(host, GossipSettings(), Chance(1))
    node.add(Car(id="car", seen={}), Now(WALL, 0.0))
    due = node.next_due_ms()
    calls = []
    while due is not None and due < 3_000 and not calls:
        calls = node.tick(Now(WALL + int(due), due))
        due = node.next_due_ms()
    assert [call.name for call in calls] == ["count"]


def test_a_second_node_with_the_same_component_is_a_fault_of_the_host() -> None:
    host = Host("n", [], Chance(1))
    node = NodeMachine(host, GossipSettings(), Chance(1))
    node.add(Car(id="car", seen={}), Now(WALL, 0.0))
    body = msgspec.msgpack.encode({"place": 1.0})
    forged = PublishedKnowledge("car", WALL, WALL, "other", ("Car", "Placed"), body)
    node.handle(forged, Sender(("other", 1)), Now(WALL, 0.0))
    assert not node.changed
    assert not host.replicas
    assert [fault.code for fault in host.faults] == ["ensemble.equal_ids"]


def test_knowledge_that_cannot_be_read_harms_nothing() -> None:
    host = Host("n", [Sight], Chance(1))
    node = NodeMachine(host, GossipSettings(probability=1), Chance(1), at_once=True)
    node.add(Car(id="car", seen={}), Now(WALL, 0.0))
    for version, body in enumerate((b"", b"\xc1", b"\x81", b"\x91" * 9_000, b"\x80"), 1):
        odd = PublishedKnowledge("x", version, version, "other", ("Placed", "Watcher"), body)
        node.handle(odd, Sender(("other", 1)), Now(WALL, 0.0))
    node.tick(Now(WALL, 6_000.0))
    assert host.components["car"].seen == {}


def test_a_removed_component_may_live_elsewhere() -> None:
    host = Host("n", [], Chance(1))
    node = NodeMachine(host, GossipSettings(), Chance(1))
    node.add(Car(id="car", seen={}), Now(WALL, 0.0))
    node.remove("car")
    moved = PublishedKnowledge("car", WALL, WALL, "other", ("Car",), b"\x80")
    node.handle(moved, Sender(("other", 1)), Now(WALL, 0.0))
    assert set(host.replicas) == {"car"}
    assert node.changed == [moved]


def test_a_node_that_was_stopped_is_never_due() -> None:
    street = Street()
    node = street.add("n", 0.0)
    node.stop(street.scheduler.now)
    assert node.next_due_ms() is None


class Post(Component, Placed):
    """Is seen by cars, and sees nobody."""

    place: float = 0.0


def test_a_member_that_groups_leave_out_is_a_fault_where_knowledge_goes_by_groups() -> None:
    street = Street(ip=True)

    def client(groups_of: Any) -> GroupClient:
        return GroupClient("a", ("a", 1), Chance(1), groupers=[("g", 1)], groups_of=groups_of)

    alone, grouped = street.add("b", 1), street.add("a", 1, grouping=client)
    for node in (alone, grouped):
        node.add(Post(id=f"post of {node.node}"), street.scheduler.now)
    assert len(alone.host.faults) == 0
    (fault,) = grouped.host.faults
    assert (fault.code, fault.component, fault.name) == (
        "ensemble.outside_groups",
        "post of a",
        "Sight",
    )
    assert "Watcher" in fault.message
    grouped.remove("post of a")
    assert len(grouped.host.faults) == 0


def test_members_that_a_grouper_does_not_register_are_a_fault() -> None:
    street = Street(ip=True)
    settings = GroupingSettings(group_members=1)

    def grouper(groups_of: Any) -> GrouperMachine:
        return GrouperMachine(
            "g", ("g", 1), Chance(1), street.scheduler.now, settings, groups_of=groups_of
        )

    node = street.add("g", 1, grouping=grouper)
    for number in range(3):
        said = PublishedKnowledge(
            f"car {number}", WALL, WALL, f"n{number}", ("Car",), b"\x80", ("n", number), ("S:all",)
        )
        node.handle(said, Sender(("n", number)), street.scheduler.now)
    node.tick(street.scheduler.now)
    node.tick(street.scheduler.now)
    (fault,) = node.host.faults
    assert (fault.code, fault.count) == ("ensemble.not_registered", 1)
    assert fault.message.startswith("2 members")


def test_groups_beyond_those_that_are_heeded_are_a_fault() -> None:
    street = Street(ip=True)

    class Second(Sight, every="1 s"):
        pass

    def client(groups_of: Any) -> GroupClient:
        settings = GroupingSettings(groups_per_component=1)
        return GroupClient("a", ("a", 1), Chance(1), settings, groupers=[], groups_of=groups_of)

    host = Host("a", [Sight, Second], Chance(1))
    node = NodeMachine(
        host,
        GossipSettings(radio=False, ip=True),
        Chance(1),
        address=("a", 1),
        grouping=client,
        at_once=True,
    )
    node.add(Car(id="car", seen={}), street.scheduler.now)
    assert node.publish_now("car", street.scheduler.now)
    (fault,) = node.host.faults
    assert (fault.code, fault.component) == ("ensemble.too_many_groups", "car")
    assert "'Second:all'" in fault.message
