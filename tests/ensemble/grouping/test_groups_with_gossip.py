"""Groupers and clients on the gossip machine: what is sent, and that the rules hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import RandomRecipients, Recipients
from rapport.ensemble.grouping.group_client import (
    GroupClient,
    is_of_groupers,
)
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.node_machine import Grouping
from rapport.ensemble.protocol import Message, PublishedKnowledge
from rapport.ensemble.trace import IP, NodeFacts, Recorder, System, Trace, address_text
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender
from rapport_lab.ensemble.rules.check import check_all
from rapport_lab.ensemble.rules.trace_index import report
from rapport_lab.scheduler import Scheduler

PERIOD_MS = 5_000.0


class Node:
    """A gossip machine, and a grouping beside it."""

    def __init__(self, world: World, number: int, groups: tuple[str, ...], probability: float):
        self.world, self.groups, self.name = world, groups, f"node {number}"
        self.address: Address = (f"10.0.{number // 200}.{number % 200}", 7411)
        self.grouping: Grouping | None = None
        self.settings = GossipSettings(radio=False, ip=True, probability=probability)
        self.heard: dict[str, int] = {}

    def start(self, recipients: Recipients) -> None:
        if isinstance(recipients, GroupClient | GrouperMachine):
            self.grouping = recipients
        self.gossip = GossipMachine(
            self.name,
            self.settings,
            self.world.chance,
            source=self,
            only_ungrouped=self.grouping is not None,
            recipients=recipients,
            address=self.address,
            trace=self.world.recorder,
        )
        self.world.scheduler.after(0, self.tick)

    def published(self, now: Now) -> Iterable[Publication]:
        return [Publication(self.name, ("Car",), bytes(self.world.body_bytes), self.groups)]

    def groups_of(self, component: str) -> Sequence[str]:
        return self.groups if component == self.name else ()

    def handle(self, message: Message, sender: Sender) -> None:
        now = self.world.scheduler.now
        if isinstance(message, PublishedKnowledge) and is_of_groupers(message):
            if self.grouping is not None:
                self.grouping.received(message, sender, now)
        else:
            self.gossip.handle(message, sender, now)
            for changed in self.gossip.changed:
                self.heard[changed.component] = changed.version
                if self.grouping is not None:
                    self.grouping.received(changed, sender, now)
            self.gossip.changed.clear()
        self.flush()

    def tick(self) -> None:
        self.gossip.tick(self.world.scheduler.now)
        due_ms = [self.gossip.next_due_ms()]
        if self.grouping is not None:
            self.grouping.tick(self.world.scheduler.now)
            due_ms.append(self.grouping.next_due_ms())
        self.flush()
        self.world.scheduler.at(min(one for one in due_ms if one is not None), self.tick)

    def flush(self) -> None:
        boxes = [self.gossip.outbox]
        if self.grouping is not None:
            boxes.append(self.grouping.outbox)
        for box in boxes:
            for outgoing in box:
                self.world.send(self, outgoing)
            box.clear()


class World:
    def __init__(self, *, groupers: int, clients: int, groups: int, **options: Any) -> None:
        self.scheduler, self.chance = Scheduler(), Chance(3)
        self.body_bytes = options.get("body_bytes", 50)
        grouped, probability = groupers > 0, options.get("probability", 0.0)
        self.nodes: dict[Address, Node] = {}
        alone = options.get("alone", 0)
        for number in range(groupers + clients):
            is_alone = number < groupers + alone
            own = () if is_alone else (f"sector {number % groups}",)
            node = Node(self, number, own, probability)
            self.nodes[node.address] = node
        names = {address: node.name for address, node in self.nodes.items()}
        self.recorder = Recorder(names) if options.get("trace") else None
        self.sent: Counter[str] = Counter()
        all_nodes = list(self.nodes)
        for number, node in enumerate(self.nodes.values()):
            chance = Chance(number)
            if not grouped:
                fan_out = options["fan_out"]
                node.start(RandomRecipients(fan_out, chance, known=all_nodes, own=node.address))
                continue
            given: Any = {"groupers": all_nodes[:1], "groups_of": node.groups_of}
            given["trace"] = self.recorder
            if number < groupers:
                now = self.scheduler.now
                node.start(GrouperMachine(node.name, node.address, chance, now, **given))
            else:
                node.start(GroupClient(node.name, node.address, chance, **given))

    def send(self, node: Node, outgoing: Any) -> None:
        self.sent[type(outgoing.message).__name__] += 1
        if self.recorder is not None:
            self.recorder.sent(node.name, outgoing, self.scheduler.now)
        self.scheduler.after(30, self.arrive, node, outgoing)

    def arrive(self, sender: Node, outgoing: Any) -> None:
        to = self.nodes[outgoing.to]
        if self.recorder is not None:
            message, now = outgoing.message, self.scheduler.now
            self.recorder.received(to.name, message, sender.name, IP, now)
        to.handle(outgoing.message, Sender(sender.address))

    def trace(self, groupers: int) -> Trace:
        assert self.recorder is not None
        facts = {
            node.name: NodeFacts(
                radio=False,
                ip=True,
                address=address_text(address),
                groups=True,
                grouper=number < groupers,
            )
            for number, (address, node) in enumerate(self.nodes.items())
        }
        return Trace(System(nodes=facts, shortest_ms=30, longest_ms=30), self.recorder.events)


def test_members_hear_each_other_and_only_each_other_through_the_gossip_machine() -> None:
    world = World(groupers=3, clients=20, groups=5, body_bytes=3_000)
    world.scheduler.run(5 * PERIOD_MS)
    clients = [node for node in world.nodes.values() if node.groups]
    for node in clients:
        others = {one.name for one in clients if one.groups == node.groups} - {node.name}
        assert set(node.heard) - {"node 0", "node 1", "node 2"} == others


def test_the_rules_of_the_source_hold_of_groupers_and_clients() -> None:
    world = World(groupers=3, clients=12, groups=3, trace=True)
    world.scheduler.run(6 * PERIOD_MS)
    breaches = check_all(world.trace(3))
    assert not breaches, report(breaches)


def test_knowledge_without_a_group_reaches_all_through_groupers_without_breaking_a_rule() -> None:
    world = World(groupers=2, clients=9, groups=2, alone=1, probability=0.5, trace=True)
    world.scheduler.run(20 * PERIOD_MS)
    alone = world.nodes["10.0.0.2", 7411]
    assert not alone.groups
    others = [node for node in world.nodes.values() if node is not alone]
    assert all(alone.name in node.heard for node in others)
    breaches = check_all(world.trace(2))
    assert not breaches, report(breaches)


def test_knowledge_without_a_group_goes_to_groupers_and_to_members_of_any_group(
    town: Any,
) -> None:
    here = town()
    here.populate(3, 12, 3)
    here.run(5)
    client = here.clients()[0]
    sent = client.machine.to_publish("a second component", here.scheduler.now)
    groupers = {node.address for node in here.groupers()}
    assert len(groupers.intersection(sent)) == 2
    assert set(sent) - groupers == client.peers(client.groups[0]) - {client.address}
    assert client.groups[0] in client.machine.peers.groups()


def fresh_pairs(world: World) -> float:
    """Of the pairs in the same group, how many heard each other's last but one or later version."""
    now_ms = world.scheduler.now.wall_ms
    members = [node for node in world.nodes.values() if node.groups]
    pairs = [
        now_ms - one.heard.get(other.name, 0) < 2 * PERIOD_MS
        for one in members
        for other in members
        if one is not other and one.groups == other.groups
    ]
    return sum(pairs) / len(pairs)


@pytest.mark.slow
def test_groups_tell_all_members_with_fewer_messages_than_gossip_tells_most() -> None:
    grouped = World(groupers=8, clients=92, groups=20)
    plain = World(groupers=0, clients=100, groups=20, fan_out=2, probability=0.5)
    for world in (grouped, plain):
        world.scheduler.run(6 * PERIOD_MS)
    assert fresh_pairs(grouped) == 1.0
    assert fresh_pairs(plain) < 0.5
    assert sum(grouped.sent.values()) < sum(plain.sent.values())
