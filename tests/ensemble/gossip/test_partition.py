"""A partition of an hour heals: every replica is the newest version soon after."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import RandomRecipients
from rapport.ensemble.protocol import PublishedKnowledge, decode, encode
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender
from rapport_lab.scheduler import Scheduler
from rapport_lab.simulated_transport import SimulatedLink, SimulatedMedium

HOUR_MS = 3_600_000
NODES = [(f"n{number:02}", 7) for number in range(20)]


class Node:
    """A machine on an endpoint of the simulated medium: all messages are bytes."""

    def __init__(
        self,
        scheduler: Scheduler,
        medium: SimulatedMedium,
        address: Address,
        ip: bool,
        newest: dict[str, int],
        period_ms: int,
    ) -> None:
        self.scheduler, self.address, self.name = scheduler, address, address[0]
        self.held: dict[str, int] = {}
        self.newest = newest
        self.had_newest: set[str] = set()
        chance = Chance(self.name)
        settings = GossipSettings(
            knowledge_ms=period_ms,
            header_ms=period_ms,
            pull_ms=period_ms,
            local_ms=2 * period_ms,
            global_ms=4 * period_ms,
            probability=0.5,
            radio=not ip,
            ip=ip,
            fan_out=3,
        )
        self.machine = GossipMachine(
            self.name,
            settings,
            chance,
            source=self,
            recipients=RandomRecipients(3, chance, known=NODES, own=address),
            address=address if ip else None,
        )
        self.endpoint = medium.open(address)
        self.endpoint.receive(self.take)
        self.plan()

    def published(self, now: Now) -> Iterable[Publication]:
        return [Publication(self.name, ("Role",), b"\x80")]

    def take(self, datagram: bytes, address: Address) -> None:
        self.machine.handle(decode(datagram), Sender(address), self.scheduler.now)
        self.after()

    def plan(self) -> None:
        due = self.machine.next_due_ms()
        if due is not None:
            self.scheduler.at(due, self.tick, due)

    def tick(self, due: float) -> None:
        if self.machine.next_due_ms() == due:
            self.machine.tick(self.scheduler.now)
            self.after()
            self.plan()

    def after(self) -> None:
        for changed in self.machine.changed:
            self.held[changed.component] = changed.version
            if changed.version == self.newest[changed.component]:
                self.had_newest.add(changed.component)
        self.machine.changed.clear()
        for outgoing in self.machine.outbox:
            if (
                isinstance(outgoing.message, PublishedKnowledge)
                and outgoing.message.node == self.name
            ):
                self.newest[self.name] = outgoing.message.version
            data = encode(outgoing.message)
            if outgoing.to is None:
                self.endpoint.broadcast(data)
            else:
                self.endpoint.send(data, outgoing.to)
        self.machine.outbox.clear()


@pytest.mark.parametrize("ip", [False, True], ids=["radio", "ip"])
@pytest.mark.parametrize(
    "period_ms",
    [
        pytest.param(30_000, marks=pytest.mark.slow, id="every 30 s"),
        pytest.param(5_000, marks=pytest.mark.long, id="every 5 s"),
    ],
)
def test_within_ten_periods_after_an_hour_of_partition_all_replicas_are_the_newest(
    ip: bool, period_ms: int
) -> None:
    scheduler = Scheduler()
    medium = SimulatedMedium(
        scheduler, Chance(4), SimulatedLink(delay_ms=20, jitter_ms=30, loss=0.1)
    )
    newest: dict[str, int] = {}
    nodes = [Node(scheduler, medium, address, ip, newest, period_ms) for address in NODES]
    scheduler.run(12 * period_ms)
    medium.cut([NODES[:10], NODES[10:]])
    scheduler.run(12 * period_ms + HOUR_MS)
    cut_ms = scheduler.now.wall_ms - HOUR_MS
    assert all(nodes[0].held[other.name] <= cut_ms for other in nodes[10:])
    medium.heal()
    for node in nodes:
        node.had_newest.clear()
    scheduler.run(22 * period_ms + HOUR_MS)
    for node in nodes:
        assert node.had_newest == {other.name for other in nodes if other is not node}
