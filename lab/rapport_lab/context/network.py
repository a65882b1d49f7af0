"""Brokers of any number on simulated time: the same machines that run on sockets.
[CX-6, CX-7, CX-12]

Messages are passed as structs; optionally through the codec, with the same results. A run depends
on its seed alone. The number of replicas of each record is counted over time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rapport.context.broker.broker_machine import BrokerMachine
from rapport.context.broker.broker_settings import BrokerSettings
from rapport.context.protocol import HopAck, Message, Probe, Put, decode, encode
from rapport.core.context_record import ContextRecord
from rapport.kernel.clock import Chance
from rapport.transport.base import Address, Sender
from rapport_lab.context.formulas import slope
from rapport_lab.context.load import Load, popularities
from rapport_lab.scheduler import Scheduler
from rapport_lab.simulated_transport import SimulatedLink
from rapport_lab.topology import Topology

BROKER: Final = "broker"
_NEVER: Final = float("inf")
_PLAN_NOTHING: Final = frozenset((HopAck, Probe))
"""Most messages are these, and neither gives a broker anything to do later."""

Letter = tuple[Message, Address]
"""A message and whom it is for."""


def broker_address(number: int) -> Address:
    """The address of the broker with that number."""
    return BROKER, number


class SimulatedNetwork:
    """Brokers that have the neighbours of a topology from the start, and the medium between them.

    Clients are all other addresses: `tell` gives a broker a client's message, and what a broker
    sends to a client goes to `on_client`. The links of clients delay and lose nothing.
    """

    def __init__(
        self,
        topology: Topology[Any],
        settings: BrokerSettings,
        *,
        link: SimulatedLink | None = None,
        seed: int = 1,
        through_codec: bool = False,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.scheduler = scheduler or Scheduler()
        self.sent = self.lost = 0
        self.on_client: Callable[[Message, Address], None] = _nobody
        self.on_send: Callable[[Sequence[Letter]], None] = _uncounted
        """Sees what a broker sends to brokers at one moment, also what will be lost."""
        self.machines: list[BrokerMachine] = []
        self._outbox: list[Letter] = []
        """Shared by all machines: who just had its turn or a message has written here."""
        self._link = link or SimulatedLink(delay_ms=1.0)
        self._settings = settings
        self._chance = Chance(seed)
        self._through_codec = through_codec
        chances = (self._link.jitter_ms, self._link.loss, self._link.duplication)
        self._is_plain = not through_codec and not any(chances)
        self._puts = 0
        self._dead: set[int] = set()
        self._turns: list[list[float]] = []
        """For each broker when it has its turn, the next one last. Only a turn before all planned
        ones is planned, so each comes when it is the last.
        """
        self._senders: list[Sender] = []
        self._open(topology)

    def _open(self, topology: Topology[Any]) -> None:
        neighbours = topology.neighbours
        numbers = {node: number for number, node in enumerate(neighbours)}
        # One address for all who know it: the same object is found without being compared.
        self._senders = [Sender(broker_address(number)) for number in range(len(numbers))]
        for number, beside in enumerate(neighbours.values()):
            self._turns.append([_NEVER])
            self.machines.append(self._new_machine(number))
            addresses = [self._senders[numbers[node]].address for node in beside]
            self.machines[number].adopt(addresses, self.scheduler.now)
            self._carry_out(number)

    def _new_machine(self, number: int) -> BrokerMachine:
        chance = Chance(self._chance.getrandbits(64))
        address = self._senders[number].address
        return BrokerMachine(address, self._settings, chance, outbox=self._outbox)

    # --- what happens from outside ---

    def put(self, number: int, record: ContextRecord) -> None:
        """A provider gives a broker a record."""
        self._puts += 1
        sender = Sender((record.provider, self._puts), record.provider, "client")
        self.tell(number, Put(self._puts, record), sender)

    def tell(self, number: int, message: Message, sender: Sender) -> None:
        """A client's message arrives at a broker now; nothing when the broker is dead."""
        if number not in self._dead:
            self.machines[number].handle(message, sender, self.scheduler.now)
            self._carry_out(number)

    def kill(self, number: int) -> None:
        """A broker ends without a word; what it knew is gone."""
        self._dead.add(number)

    def revive(self, number: int, candidates: Sequence[int]) -> None:
        """A dead broker starts empty and joins from a list, as it would on sockets."""
        self._dead.discard(number)
        machine = self.machines[number] = self._new_machine(number)
        machine.join([self._senders[each].address for each in candidates], self.scheduler.now)
        self._carry_out(number)

    def monitor(self, number: int) -> None:
        """A broker begins to ping its neighbours."""
        self.machines[number].monitor(self.scheduler.now)
        self._carry_out(number)

    def run(self, until_ms: float | None = None) -> int:
        """Lets time pass; returns how many things happened."""
        return self.scheduler.run(until_ms)

    # --- the shell of a machine ---

    def _carry_out(self, number: int) -> None:
        """Sends what a machine wants sent, and plans its next turn."""
        self._empty(number)
        self._plan_turn(number)

    def _empty(self, number: int) -> None:
        self.machines[number].effects.clear()
        # Taken first: what is handed to a client at once may come back with a new request.
        letters = self._outbox.copy()
        self._outbox.clear()
        for _message, to in letters:
            if to[0] != BROKER:
                self._sort_out(letters, number)
                return
        self._send(letters, number)

    def _sort_out(self, letters: list[Letter], number: int) -> None:
        """Some are for clients; all in their order."""
        between: list[Letter] = []
        for letter in letters:
            if letter[1][0] == BROKER:
                between.append(letter)
            else:
                self._send(between, number)
                between = []
                self.on_client(*letter)
        self._send(between, number)

    def _plan_turn(self, number: int) -> None:
        turns, wake_ms = self._turns[number], self.machines[number].agenda.wake_ms
        if wake_ms < turns[-1]:
            turns.append(wake_ms)
            self.scheduler.at(wake_ms, self._turn, number)

    def _turn(self, number: int) -> None:
        self._turns[number].pop()
        if number in self._dead:
            return
        machine, scheduler = self.machines[number], self.scheduler
        # Many turns were for acknowledgements that came meanwhile.
        if machine.agenda.wake_ms <= scheduler.time_ms:
            machine.tick(scheduler.now)
            self._empty(number)
        self._plan_turn(number)

    # --- the medium ---

    def _send(self, letters: list[Letter], number: int) -> None:
        """All at one moment; where nothing is left to chance they are one event."""
        if not letters:
            return
        self.sent += len(letters)
        self.on_send(letters)
        link, sender, scheduler = self._link, self._senders[number], self.scheduler
        if self._is_plain:
            scheduler.at(scheduler.time_ms + link.delay_ms, self._arrive, letters, sender)
            return
        for message, to in letters:
            if self._chance.random() < link.loss:
                self.lost += 1
                continue
            if self._through_codec:
                message = decode(encode(message))
            copies = 2 if self._chance.random() < link.duplication else 1
            for _ in range(copies):
                delay_ms = link.delay_ms + self._chance.random() * link.jitter_ms
                scheduler.after(delay_ms, self._arrive, [(message, to)], sender)

    def _arrive(self, letters: list[Letter], sender: Sender) -> None:
        now = self.scheduler.now
        dead, machines = self._dead, self.machines
        for message, (_broker, number) in letters:
            if number in dead:
                continue
            machine = machines[number]
            machine.handle(message, sender, now)
            if self._outbox:
                self._empty(number)
            if type(message) not in _PLAN_NOTHING:
                self._plan_turn(number)


def _nobody(message: Message, to: Address) -> None:
    """Nobody listens to what clients are told."""


def _uncounted(letters: Sequence[Letter]) -> None:
    """Nobody counts."""


_LOOKS = 20


class CopiesCount:
    """Looks at all brokers some times in the second half of a load, when it has settled."""

    def __init__(self, network: SimulatedNetwork, load: Load, settle_ms: float = 0.0) -> None:
        self._network, self._load = network, load
        self._looks: list[dict[str, int]] = []
        begin_ms = network.scheduler.time_ms + settle_ms
        for look in range(_LOOKS):
            part = 0.5 + 0.5 * look / _LOOKS
            network.scheduler.at(begin_ms + part * load.duration_ms, self._look)

    def _look(self) -> None:
        wall_ms = self._network.scheduler.now.wall_ms
        counts: dict[str, int] = {}
        for machine in self._network.machines:
            for held in machine.table.held():
                if held.record.is_valid_at(wall_ms):
                    name = held.record.entity.id
                    counts[name] = counts.get(name, 0) + 1
        self._looks.append(counts)

    def by_key(self) -> list[float]:
        """For each key the mean number of valid copies, the provider's own among them."""
        looks = max(len(self._looks), 1)
        return [
            sum(look.get(str(key), 0) for look in self._looks) / looks
            for key in range(self._load.keys)
        ]

    def mean(self) -> float:
        """Over all keys."""
        return float(np.mean(self.by_key()))

    def slope(self) -> float:
        """The exponent with which copies follow the rate of requests; not a number when all keys
        are asked for alike.
        """
        if self._load.popularity == "uniform" or self._load.keys < 2:
            return float("nan")
        return slope(popularities(self._load).tolist(), np.maximum(self.by_key(), 1e-9).tolist())
