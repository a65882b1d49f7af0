"""A world of nodes on simulated time: the same machines that run on sockets. [EN-11]

Messages are handed over as objects. A run depends on its seed alone; what it costs is said at
`World.run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from rapport.core.errors import DuplicateName, InvalidInput, UnknownName
from rapport.ensemble.protocol import Message, OutgoingMessage, PublishedKnowledge
from rapport.ensemble.trace import IP, RADIO
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender
from rapport_lab.ensemble.simulation.ip_network import IpNetwork
from rapport_lab.ensemble.simulation.measurements import KINDS, KnowledgeAges, Sizes, Witness
from rapport_lab.ensemble.simulation.radio import Radio
from rapport_lab.scheduler import Scheduler, without_collector

_NEVER: Final = float("inf")
_NOTHING: Final[list[PublishedKnowledge]] = []


class SimulatedNode(Protocol):
    """What a world asks of a node: a GossipMachine, or a NodeMachine that runs its calls at once.

    `changed`, where it has one, lists the newer versions that it received; the world clears it.
    """

    outbox: list[OutgoingMessage]

    def handle(self, message: Message, sender: Sender, now: Now) -> object:
        """A message arrives."""

    def tick(self, now: Now) -> object:
        """Something is due."""

    def next_due_ms(self) -> float | None:
        """When, by steady time."""


class WorldCounters(msgspec.Struct):
    """What the nodes did; what became of it the media count."""

    sent: dict[str, int]
    """Messages by kind (KN, HD, PL, PT, PP): one broadcast is one."""
    ticks: int = 0

    @property
    def total(self) -> int:
        """Messages of all kinds."""
        return sum(self.sent.values())


class World:
    """Nodes and the media between them.

    A node has a number, counted from 0 in order of joining, which is also its number among the
    actors of the radio's neighbourhoods.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        radio: Radio | None = None,
        ip: IpNetwork | None = None,
        sizes: Sizes | None = None,
        ages: KnowledgeAges | None = None,
        witness: Witness | None = None,
    ) -> None:
        """`ages` measures the age of knowledge, `witness` writes the request log and the trace;
        without them nothing is kept, and the run is faster.
        """
        self.scheduler, self.radio, self.ip, self.ages = scheduler, radio, ip, ages
        self.counters = WorldCounters(dict.fromkeys(KINDS.values(), 0))
        self.names: list[str] = []
        self.nodes: list[SimulatedNode] = []
        self._sizes, self._witness = sizes or Sizes(), witness
        self._numbers: dict[str, int] = {}
        self._alive: list[bool] = []
        self._addresses: list[Address] = []
        self._senders: list[Sender] = []
        """Each node as those see it that hear it by radio."""
        self._ip_senders: list[Sender] = []
        self._handles: list[Any] = []
        self._outboxes: list[list[OutgoingMessage]] = []
        self._changes: list[list[PublishedKnowledge]] = []
        self._ticks: list[float] = []
        self._join_media()

    def _join_media(self) -> None:
        if self.radio is not None:
            self.radio.on_hear = self._heard if self._witness is None else self._heard_by_witness
        if self.ip is not None:
            self.ip.on_arrive = self._arrived
        if self._witness is not None:
            self._witness.watch(self)

    # --- nodes come and go ---

    def add(self, name: str, node: SimulatedNode, address: Address | None = None) -> int:
        """A node joins now; returns its number. Raises DuplicateName, or InvalidInput when there
        are more nodes than actors.
        """
        number = len(self.nodes)
        if name in self._numbers:
            raise DuplicateName(f"a node is called {name!r} already", hint="names are unique")
        if self.radio is not None and number >= len(self.radio.neighbourhoods):
            raise InvalidInput(
                f"node {name!r} is number {number}, and there are only {number} actors",
                code="ensemble.too_many_nodes",
                hint="make as many places or plans as there will be nodes",
            )
        self._numbers[name] = number
        self.names.append(name)
        self.nodes.append(node)
        self._alive.append(False)
        self._addresses.append(address or ("simulated", number))
        on_ip = Sender(self._addresses[number], name)
        self._senders.append(on_ip._replace(to_all=True))
        self._ip_senders.append(on_ip)
        self._ticks.append(_NEVER)
        self._handles.append(node.handle)
        self._outboxes.append(node.outbox)
        self._changes.append(_NOTHING)
        self._start(number, node)
        return number

    def _start(self, number: int, node: SimulatedNode) -> None:
        self.nodes[number] = node
        self._handles[number], self._outboxes[number] = node.handle, node.outbox
        self._changes[number] = getattr(node, "changed", _NOTHING)
        self._ticks[number] = _NEVER
        self._alive[number] = True
        if self.radio is not None:
            self.radio.switch_on(number)
        if self.ip is not None:
            self.ip.open(number, self._addresses[number])
        if self._witness is not None:
            self._witness.started(number)
        self._follow(number, self.scheduler.now)

    def kill(self, name: str) -> None:
        """A node ends without a word; what it knew is gone."""
        number = self.number_of(name)
        if not self._alive[number]:
            return
        self._alive[number] = False
        self._ticks[number] = _NEVER
        if self.radio is not None:
            self.radio.switch_off(number)
        if self.ip is not None:
            self.ip.close(self._addresses[number])
        if self.ages is not None:
            self.ages.forget(number)
        if self._witness is not None:
            self._witness.stopped(number)

    def revive(self, name: str, node: SimulatedNode) -> None:
        """A dead node starts anew under its old name, number and address; one that is alive is
        killed first.
        """
        self.kill(name)
        self._start(self.number_of(name), node)

    def part(self, *groups: Iterable[str]) -> None:
        """Parts the world: only nodes of the same group reach each other, by radio or IP, until the
        next `part`. Who is in no group is alone with the others in none; without any group the
        world is whole again. Raises UnknownName.
        """
        numbers = {
            self.number_of(name): number for number, group in enumerate(groups) for name in group
        }
        for medium in (self.radio, self.ip):
            if medium is not None:
                medium.part(numbers if groups else None)

    def number_of(self, name: str) -> int:
        """The number of a node; raises UnknownName."""
        number = self._numbers.get(name)
        if number is None:
            raise UnknownName("node", name, self.names)
        return number

    def is_alive(self, name: str) -> bool:
        """Whether it runs."""
        return self._alive[self.number_of(name)]

    def wake(self, name: str) -> None:
        """Somebody else did something to a node: sends what it wants sent, plans its next turn."""
        number = self.number_of(name)
        if self._alive[number]:
            self._follow(number, self.scheduler.now)

    def run(self, until_ms: float) -> int:
        """Lets time pass; returns how many things happened.

        A broadcast among 200 nodes costs about 10 us with all that it leads to, access to the air
        and 4 receptions; among 10,000, whose state fits no cache, about three times as much.
        """
        with without_collector():
            return self.scheduler.run(until_ms)

    # --- the shell of a machine ---

    def _follow(self, number: int, now: Now) -> None:
        """Takes up what a machine did: changes, messages, its next turn."""
        changed = self._changes[number]
        if changed:
            if self.ages is not None:
                self._note_ages(self.ages, number, changed, now)
            changed.clear()
        outbox = self._outboxes[number]
        if outbox:
            self._send_all(number, outbox)
        due_ms = self.nodes[number].next_due_ms()
        if due_ms is not None and due_ms < self._ticks[number]:
            self._ticks[number] = due_ms
            self.scheduler.at(due_ms, self._tick, number, due_ms)

    def _note_ages(
        self, ages: KnowledgeAges, number: int, changed: Sequence[PublishedKnowledge], now: Now
    ) -> None:
        name = self.names[number]
        for published in changed:
            if published.node != name:
                age_ms = ages.arrived(number, published, now)
                if self._witness is not None:
                    self._witness.aged(number, published, age_ms)

    def _tick(self, number: int, planned_ms: float) -> None:
        # A turn that was planned anew for an earlier time is not taken a second time.
        if self._ticks[number] != planned_ms:
            return
        self._ticks[number] = _NEVER
        self.counters.ticks += 1
        now = self.scheduler.now
        self.nodes[number].tick(now)
        self._follow(number, now)

    def _send_all(self, number: int, outbox: list[OutgoingMessage]) -> None:
        sent, size_of = self.counters.sent, self._sizes.size_of
        radio, ip, witness = self.radio, self.ip, self._witness
        for outgoing in outbox:
            message, to = outgoing.message, outgoing.to
            size_bytes = size_of(message)
            sent[KINDS[type(message)]] += 1
            if witness is not None:
                witness.sent(number, outgoing, size_bytes)
            if to is None and radio is not None:
                radio.send(number, message, size_bytes)
            elif to is not None and ip is not None:
                ip.send(number, message, to, size_bytes)
            else:
                raise _no_medium(self.names[number], RADIO if to is None else IP)
        outbox.clear()  # no medium hands anything over at once

    # --- what the media hand over ---

    def _heard(self, number: int, message: Message, receivers: Sequence[int]) -> None:
        """A broadcast arrives at all that received it."""
        now, sender = self.scheduler.now, self._senders[number]
        handles, outboxes, changes = self._handles, self._outboxes, self._changes
        if type(message) is PublishedKnowledge:
            # A version that is held already changes nothing, and is nearly all that arrives.
            for receiver in receivers:
                handles[receiver](message, sender, now)
                if outboxes[receiver] or changes[receiver]:
                    self._follow(receiver, now)
            return
        for receiver in receivers:
            handles[receiver](message, sender, now)
            self._follow(receiver, now)

    def _heard_by_witness(self, number: int, message: Message, receivers: Sequence[int]) -> None:
        now, sender = self.scheduler.now, self._senders[number]
        for receiver in receivers:
            self._hand_over(number, message, receiver, RADIO, sender, now)

    def _arrived(self, number: int, message: Message, receiver: int) -> None:
        now, sender = self.scheduler.now, self._ip_senders[number]
        self._hand_over(number, message, receiver, IP, sender, now)

    def _hand_over(
        self, number: int, message: Message, receiver: int, medium: str, sender: Sender, now: Now
    ) -> None:
        if self._witness is not None:
            size_bytes = self._sizes.size_of(message)
            self._witness.received(receiver, message, number, medium, size_bytes)
        self._handles[receiver](message, sender, now)
        self._follow(receiver, now)


def _no_medium(name: str, medium: str) -> InvalidInput:
    return InvalidInput(
        f"node {name!r} sends by {medium}, which this world does not have",
        code="ensemble.no_medium",
        hint="make the world with it, or switch it off in the gossip settings",
    )
