"""A town: groupers and clients on simulated time, with nothing between them but a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from rapport.ensemble.grouping.group_client import GroupClient, is_of_groupers
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.protocol import OutgoingMessage, PublishedKnowledge
from rapport.ensemble.trace import Recorder
from rapport.kernel.clock import Chance
from rapport.transport.base import Address, Sender
from rapport_lab.scheduler import Scheduler

PERIOD_MS = 5_000.0


class Client:
    """A node with one component that publishes every period."""

    def __init__(self, town: Town, number: int, groups: Sequence[str], known: Sequence[Address]):
        self.town, self.groups = town, tuple(groups)
        self.address = (f"10.1.{number // 250}.{number % 250}", 7411)
        self.name = f"car {number}"
        self.machine = GroupClient(
            self.name,
            self.address,
            Chance(number + 1),
            town.settings,
            groupers=known,
            groups_of=lambda component: self.groups if component == self.name else (),
            trace=town.trace,
        )
        self.version = 0
        self.heard: dict[str, int] = {}
        self.alive = True

    def publish(self) -> None:
        if not self.alive:
            return
        now = self.town.scheduler.now
        self.version = max(now.wall_ms, self.version + 1)
        said = PublishedKnowledge(
            self.name,
            self.version,
            now.wall_ms,
            self.name,
            ("Car",),
            b"\x80",
            self.address,
            self.groups,
        )
        for to in self.machine.to_publish(self.name, now):
            self.town.send(self.address, OutgoingMessage(said, to))
        self.town.scheduler.after(PERIOD_MS, self.publish)

    def take(self, message: PublishedKnowledge, sender: Sender) -> None:
        self.machine.received(message, sender, self.town.scheduler.now)
        if not is_of_groupers(message):
            self.heard[message.component] = message.version

    def peers(self, group: str) -> set[Address]:
        return set(self.machine.peers.members(group, self.town.scheduler.now))


class GrouperNode:
    """A node that is a grouper."""

    def __init__(self, town: Town, number: int, known: Sequence[Address]):
        self.town, self.address, self.alive = town, (f"10.0.0.{number}", 7411), True
        self.name = f"bus {number}"
        self.machine = GrouperMachine(
            self.name,
            self.address,
            Chance(1_000 + number),
            town.scheduler.now,
            town.settings,
            groupers=known,
            trace=town.trace,
        )

    def tick(self) -> None:
        if not self.alive:
            return
        self.machine.tick(self.town.scheduler.now)
        self.flush()
        self.town.scheduler.at(self.machine.next_due_ms(), self.tick)

    def take(self, message: PublishedKnowledge, sender: Sender) -> None:
        self.machine.received(message, sender, self.town.scheduler.now)
        self.flush()

    def flush(self) -> None:
        sent, self.machine.outbox[:] = list(self.machine.outbox), []
        for outgoing in sent:
            self.town.send(self.address, outgoing)


class Town:
    """All nodes and the network between them; `sent` counts messages by what they are."""

    def __init__(
        self, seed: int = 1, *, loss: float = 0.0, trace: Recorder | None = None, **settings: object
    ) -> None:
        self.scheduler = Scheduler()
        self.settings = GroupingSettings(period_ms=PERIOD_MS, **settings)  # type: ignore[arg-type]
        self.chance, self.loss, self.trace = Chance(seed), loss, trace
        self.nodes: dict[Address, Client | GrouperNode] = {}
        self.sent: Counter[str] = Counter()
        self.log: list[tuple[float, Address, Address, PublishedKnowledge]] | None = None
        self.separated: Callable[[Address, Address], bool] = lambda one, other: False

    def send(self, sender: Address, outgoing: OutgoingMessage) -> None:
        message, to = outgoing.message, outgoing.to
        assert isinstance(message, PublishedKnowledge)
        assert to is not None
        assert to != sender
        grouper = isinstance(self.nodes.get(sender), GrouperNode)
        what = message.roles[0] if message.roles[0] != "Car" else "passed on" * grouper or "Car"
        self.sent[what] += 1
        if self.log is not None:
            self.log.append((self.scheduler.time_ms, sender, to, message))
        if self.chance.random() >= self.loss and not self.separated(sender, to):
            delay_ms = 20 + 40 * self.chance.random()
            self.scheduler.after(delay_ms, self._arrive, message, sender, to)

    def _arrive(self, message: PublishedKnowledge, sender: Address, to: Address) -> None:
        node = self.nodes.get(to)
        if node is not None and node.alive:
            node.take(message, Sender(sender))

    def grouper(self, number: int, known: Sequence[Address] = ()) -> GrouperNode:
        node = GrouperNode(self, number, known)
        self.nodes[node.address] = node
        self.scheduler.after(0, node.tick)
        return node

    def client(self, number: int, groups: Sequence[str], known: Sequence[Address]) -> Client:
        node = Client(self, number, groups, known)
        self.nodes[node.address] = node
        self.scheduler.after(self.chance.random() * PERIOD_MS, node.publish)
        return node

    def populate(self, groupers: int, clients: int, groups: int) -> None:
        """Groupers that know the first one, and clients in groups that know the same one."""
        first = self.grouper(0).address
        for number in range(1, groupers):
            self.grouper(number, [first])
        for number in range(clients):
            self.client(number, [f"sector {number % groups}"], [first])

    def run(self, periods: float) -> None:
        self.scheduler.run(self.scheduler.time_ms + periods * PERIOD_MS)

    def clients(self) -> list[Client]:
        return [one for one in self.nodes.values() if isinstance(one, Client) and one.alive]

    def groupers(self) -> list[GrouperNode]:
        return [one for one in self.nodes.values() if isinstance(one, GrouperNode) and one.alive]

    def naive(self) -> dict[str, set[Address]]:
        """Who is in which group, seen from outside."""
        found: dict[str, set[Address]] = {}
        for client in self.clients():
            for group in client.groups:
                found.setdefault(group, set()).add(client.address)
        return found

    def wrong(self) -> list[str]:
        """Clients whose table of a group is not what it should be."""
        true = self.naive()
        return [
            f"{client.name} of {group}: {client.peers(group) ^ true[group]}"
            for client in self.clients()
            for group in client.groups
            if client.peers(group) != true[group]
        ]


@pytest.fixture
def town() -> type[Town]:
    return Town
