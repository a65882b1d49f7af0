"""Whole systems of real machines on simulated time, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import PullCounts, RandomRecipients
from rapport.ensemble.gossip.strategies import CounterBased, Probabilistic
from rapport.ensemble.grouping.group_client import GroupClient, GroupsOf
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.role import Role
from rapport.ensemble.node_machine import NodeMachine
from rapport.ensemble.protocol import Message, OutgoingMessage, PublishedKnowledge
from rapport.ensemble.trace import IP, RADIO, Kind, NodeFacts, Recorder, System, Trace
from rapport.ensemble.trace_files import facts_of
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender
from rapport_lab.scheduler import Scheduler

PORT = 7


@dataclass(frozen=True)
class Plan:
    """A system to run: all of it follows from these and the seed."""

    seed: int = 1
    nodes: int = 4
    links: tuple[tuple[int, int], ...] = ((0, 1), (1, 2), (2, 3))
    settings: GossipSettings = field(default_factory=GossipSettings)
    duration_ms: float = 60_000
    shortest_ms: float = 1
    longest_ms: float = 120
    loss: float = 0.1
    outside: frozenset[tuple[int, int]] = frozenset()
    """Node and component (by number) that the boundary keeps apart."""
    body_bytes: int = 20
    counting: bool = False
    """The strategy waits and counts instead of throwing a die."""
    stops: tuple[tuple[int, float], ...] = ()
    cuts: tuple[tuple[int, int, float], ...] = ()
    """Links that break at a time."""
    leaves: tuple[tuple[int, float], ...] = ()
    """Nodes whose component leaves at a time."""
    media: tuple[tuple[bool, bool], ...] = ()
    """Radio and IP of each node, where they differ from the settings."""
    wanderers: int = 0
    """Of the travellers, so many go nowhere, and are in no group."""

    def settings_of(self, number: int) -> GossipSettings:
        if number >= len(self.media):
            return self.settings
        radio, ip = self.media[number]
        return msgspec.structs.replace(self.settings, radio=radio, ip=ip)

    @property
    def has_boundary(self) -> bool:
        return bool(self.outside)


class Components:
    """The one component of a node."""

    def __init__(self, name: str, body_bytes: int) -> None:
        self.name, self._body = name, bytes(body_bytes)
        self.is_here = True

    def published(self, now: Now) -> Iterable[Publication]:
        return [Publication(self.name, ("Thing",), self._body)] if self.is_here else []


class Run:
    """Machines, a lossy medium with random delays, and the recorder."""

    def __init__(self, plan: Plan, machine: type[GossipMachine] = GossipMachine) -> None:
        self.plan = plan
        self.scheduler = Scheduler()
        self.chance = Chance(plan.seed)
        self.names = [f"n{number}" for number in range(plan.nodes)]
        self.recorder = Recorder({self.address(name): name for name in self.names})
        self.stopped: set[str] = set()
        self.components = [Components(f"C{one}", plan.body_bytes) for one in range(plan.nodes)]
        self.on_ip = [name for one, name in enumerate(self.names) if plan.settings_of(one).ip]
        self.links = {
            (f"n{one}", f"n{other}")
            for pair in plan.links
            for one, other in (pair, pair[::-1])
            if plan.settings_of(one).radio and plan.settings_of(other).radio
        }
        self._tell_the_world()
        self.machines: dict[str, Any] = {
            name: self._machine(machine, number, name) for number, name in enumerate(self.names)
        }
        self._awake: dict[str, float] = {}
        for name in self.names:
            self._after(name)
        for number, time_ms in plan.stops:
            self.scheduler.at(time_ms, self._stop, f"n{number}")
        for number, time_ms in plan.leaves:
            self.scheduler.at(time_ms, self._leave, number)
        for one, other, time_ms in plan.cuts:
            self.scheduler.at(time_ms, self._cut, f"n{one}", f"n{other}")

    @staticmethod
    def address(name: str) -> Address:
        return (name, PORT)

    def _machine(self, machine: type[GossipMachine], number: int, name: str) -> Any:
        plan, chance = self.plan, Chance(f"{self.plan.seed}/{number}")
        others = [self.address(other) for other in self.on_ip if other != name]
        askers = PullCounts()
        strategy = (
            CounterBased(chance)
            if plan.counting
            else Probabilistic(plan.settings.probability, chance)
        )
        gossip = plan.settings_of(number)
        return machine(
            name,
            gossip,
            chance,
            source=self.components[number],
            strategy=strategy,
            boundary=self._boundary(number) if plan.has_boundary else None,
            recipients=RandomRecipients(
                plan.settings.fan_out, chance, known=others, own=self.address(name), askers=askers
            ),
            address=self.address(name) if gossip.ip else None,
            askers=askers,
            trace=self.recorder,
        )

    def _boundary(self, number: int) -> Callable[[PublishedKnowledge], bool]:
        outside = {f"C{component}" for node, component in self.plan.outside if node == number}
        return lambda message: message.component not in outside

    def _tell_the_world(self) -> None:
        happened, now = self.recorder.happened, self.scheduler.now
        for number, name in enumerate(self.names):
            happened(Kind.STARTED, name, now)
            happened(Kind.DEPLOYED, name, now, component=f"C{number}")
            if name in self.on_ip:
                for other in self.on_ip:
                    if other != name:
                        happened(Kind.LINKED, name, now, other=other, medium=IP)
                        happened(Kind.KNOWN, name, now, other=other)
        for one, other in sorted(self.links):
            happened(Kind.LINKED, one, now, other=other, medium=RADIO)

    def _stop(self, name: str) -> None:
        self.stopped.add(name)
        self.recorder.happened(Kind.STOPPED, name, self.scheduler.now)

    def _leave(self, number: int) -> None:
        component, name = self.components[number], self.names[number]
        if component.is_here and name not in self.stopped:
            component.is_here = False
            self.machines[name].disown(component.name)
            now = self.scheduler.now
            self.recorder.happened(Kind.REMOVED, name, now, component=component.name)

    def _cut(self, one: str, other: str) -> None:
        for pair in ((one, other), (other, one)):
            if pair in self.links:
                self.links.remove(pair)
                self.recorder.happened(
                    Kind.UNLINKED, pair[0], self.scheduler.now, other=pair[1], medium=RADIO
                )

    def _tick(self, name: str, due_ms: float) -> None:
        if name in self.stopped or self._awake.get(name) != due_ms:
            return
        self.machines[name].tick(self.scheduler.now)
        self._after(name)

    def _after(self, name: str) -> None:
        """Sends what a machine has to say, and wakes it when it wants to be."""
        machine, now = self.machines[name], self.scheduler.now
        for outgoing in machine.outbox:
            self.recorder.sent(name, outgoing, now)
            self._send(name, outgoing)
        machine.outbox.clear()
        machine.changed.clear()
        due_ms = machine.next_due_ms()
        if due_ms is not None and self._awake.get(name) != due_ms:
            self._awake[name] = due_ms
            self.scheduler.at(due_ms, self._tick, name, due_ms)

    def _send(self, name: str, outgoing: OutgoingMessage) -> None:
        if outgoing.to is not None:
            if outgoing.to[0] in self.on_ip:  # what a radio node is sent by IP goes nowhere
                self._carry(name, outgoing.to[0], outgoing.message, IP)
            return
        for receiver in self.names:
            if (name, receiver) in self.links and receiver not in self.stopped:
                self._carry(name, receiver, outgoing.message, RADIO)

    def _carry(self, name: str, receiver: str, message: Message, medium: str) -> None:
        plan, chance = self.plan, self.chance
        if chance.random() < plan.loss:
            self.recorder.happened(
                Kind.LOST,
                receiver,
                self.scheduler.now,
                other=name,
                component=getattr(message, "component", ""),
                version=getattr(message, "version", 0),
                medium=medium,
            )
            return
        delay_ms = plan.shortest_ms + chance.random() * (plan.longest_ms - plan.shortest_ms)
        self.scheduler.after(delay_ms, self._receive, name, receiver, message, medium)

    def _receive(self, name: str, receiver: str, message: Message, medium: str) -> None:
        if receiver in self.stopped:
            return
        now = self.scheduler.now
        self.recorder.received(receiver, message, name, medium, now)
        sender = Sender(self.address(name), to_all=medium == RADIO)
        self.machines[receiver].handle(message, sender, now)
        self._after(receiver)

    def trace(self) -> Trace:
        """Runs the whole plan."""
        plan = self.plan
        self.scheduler.run(plan.duration_ms)
        system = System(
            nodes={name: self._facts(name) for name in self.names},
            shortest_ms=plan.shortest_ms,
            longest_ms=plan.longest_ms,
            end_ms=plan.duration_ms,
        )
        return Trace(system, self.recorder.events)

    def _facts(self, name: str) -> NodeFacts:
        settings = self.plan.settings_of(self.names.index(name))
        return facts_of(
            settings,
            address=self.address(name) if settings.ip else None,
            boundary=self.plan.has_boundary,
        )


class Travelling(Role):
    destination: str


class Traveller(Component, Travelling):
    companions: list[str]
    luggage: str = ""


class Company(Ensemble, every="1 s"):
    """Who goes to the same place travels together."""

    coordinator: Traveller
    member: Traveller

    @staticmethod
    def membership(coordinator: Traveller, member: Traveller) -> bool:
        return coordinator.destination == member.destination

    @staticmethod
    def exchange(coordinator: Traveller, member: Traveller) -> None:
        if member.id not in coordinator.companions:
            coordinator.companions.append(member.id)

    @staticmethod
    def group(coordinator: Travelling) -> str | None:
        return coordinator.destination or None


class GroupRun(Run):
    """Whole nodes on IP: two groupers, and travellers to four places."""

    GROUPERS = 2

    def __init__(
        self,
        plan: Plan,
        client: type[GroupClient] = GroupClient,
        grouper: type[GrouperMachine] = GrouperMachine,
    ) -> None:
        self._client, self._grouper = client, grouper
        super().__init__(plan)

    def _machine(self, machine: type[GossipMachine], number: int, name: str) -> NodeMachine:
        chance, now = Chance(f"{self.plan.seed}/{number}"), self.scheduler.now
        host = Host(name, [Company], chance, trace=self.recorder)

        def side(groups_of: GroupsOf) -> GroupClient | GrouperMachine:
            settings = GroupingSettings(period_ms=self.plan.settings.knowledge_ms)
            well_known = [self.address("n0")]
            common: dict[str, Any] = {"groupers": well_known, "groups_of": groups_of}
            common["trace"] = self.recorder
            if number < self.GROUPERS:
                return self._grouper(name, self.address(name), chance, now, settings, **common)
            return self._client(name, self.address(name), chance, settings, **common)

        node = NodeMachine(
            host,
            self.plan.settings,
            chance,
            address=self.address(name),
            grouping=side,
            at_once=True,
            trace=self.recorder,
        )
        if number >= self.GROUPERS:
            is_wanderer = number >= self.plan.nodes - self.plan.wanderers
            place = "" if is_wanderer else ("north", "south", "east", "west")[number % 4]
            luggage = "x" * self.plan.body_bytes
            traveller = Traveller(
                id=f"C{number}", destination=place, companions=[], luggage=luggage
            )
            node.add(traveller, now)
        return node

    def _tell_the_world(self) -> None:
        happened, now = self.recorder.happened, self.scheduler.now
        for number, name in enumerate(self.names):
            happened(Kind.STARTED, name, now)
            if number >= self.GROUPERS:
                happened(Kind.DEPLOYED, name, now, component=f"C{number}")
            for other in self.names:
                if other != name:
                    happened(Kind.LINKED, name, now, other=other, medium=IP)
        for one, other in sorted(self.links):
            happened(Kind.LINKED, one, now, other=other, medium=RADIO)

    def _facts(self, name: str) -> NodeFacts:
        return facts_of(
            self.plan.settings,
            address=self.address(name),
            groups=True,
            grouper=name in self.names[: self.GROUPERS],
        )


class Laboratory:
    """What tests are given, as they cannot import this file."""

    Plan = Plan
    Run = Run
    GroupRun = GroupRun

    @staticmethod
    def trace(plan: Plan, machine: type[GossipMachine] = GossipMachine) -> Trace:
        return Run(plan, machine).trace()


@pytest.fixture(scope="session")
def laboratory() -> type[Laboratory]:
    return Laboratory
