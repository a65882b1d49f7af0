"""Brokers of any number on simulated time: the same machines that run on sockets. [CX-7, CX-12]

Messages are handed over as structs; through the codec, with the same results, where wished. A run
depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rapport.context.broker.machine import BrokerMachine
from rapport.context.broker.settings import BrokerSettings
from rapport.context.codec import decode, encode
from rapport.context.messages import Have, Heard, Message, Probe, Put
from rapport.core.context_record import ContextRecord
from rapport.kernel.chance import Chance
from rapport.kernel.simulation import Scheduler
from rapport.overlay.topology import Topology
from rapport.transport.base import Address, Sender
from rapport.transport.simulated import Link

BROKER: Final = "broker"
_NEVER: Final = float("inf")
_PLAN_NOTHING: Final = frozenset((Heard, Probe, Have))
"""Most messages are these, and none gives a broker anything to do later that it had not before: its
next turn need not be asked for.
"""


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
        link: Link | None = None,
        seed: int = 1,
        through_codec: bool = False,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.scheduler = scheduler or Scheduler()
        self.sent = self.lost = 0
        self.on_client: Callable[[Message, Address], None] = _nobody
        self.on_send: Callable[[Message], None] = _uncounted
        """Sees each message from broker to broker, also one that will be lost."""
        self.machines: list[BrokerMachine] = []
        self._link = link or Link(delay_ms=1.0)
        self._settings = settings
        self._chance = Chance(seed)
        self._through_codec = through_codec
        chances = (self._link.jitter_ms, self._link.loss, self._link.duplication)
        self._is_plain = not through_codec and not any(chances)
        self._puts = 0
        self._dead: set[int] = set()
        self._ticks: list[float] = []
        self._senders: list[Sender] = []
        self._open(topology)

    def _open(self, topology: Topology[Any]) -> None:
        neighbours = topology.neighbours
        numbers = {node: number for number, node in enumerate(neighbours)}
        for number, beside in enumerate(neighbours.values()):
            self._senders.append(Sender(broker_address(number)))
            self._ticks.append(_NEVER)
            self.machines.append(self._new_machine(number))
            addresses = [broker_address(numbers[node]) for node in beside]
            self.machines[number].adopt(addresses, self.scheduler.now)
            self._carry_out(number)

    def _new_machine(self, number: int) -> BrokerMachine:
        chance = Chance(self._chance.getrandbits(64))
        return BrokerMachine(broker_address(number), self._settings, chance)

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
        self._ticks[number] = _NEVER
        machine = self.machines[number] = self._new_machine(number)
        machine.join([broker_address(each) for each in candidates], self.scheduler.now)
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
        self._plan_tick(number)

    def _empty(self, number: int) -> None:
        machine = self.machines[number]
        machine.effects.clear()
        outbox = machine.outbox
        if not outbox:
            return
        # Taken first: what is handed to a client at once may come back with a new request.
        waiting = outbox.copy()
        outbox.clear()
        sender = self._senders[number]
        for message, to in waiting:
            if to[0] == BROKER:
                self._send(message, to[1], sender)
            else:
                self.on_client(message, to)

    def _plan_tick(self, number: int) -> None:
        due_ms = self.machines[number].next_due_ms()
        if due_ms is not None and due_ms < self._ticks[number]:
            self._ticks[number] = due_ms
            self.scheduler.at(due_ms, self._tick, number, due_ms)

    def _tick(self, number: int, planned_ms: float) -> None:
        # A turn that was planned anew for an earlier time is not taken a second time.
        if self._ticks[number] != planned_ms or number in self._dead:
            return
        self._ticks[number] = _NEVER
        machine, scheduler = self.machines[number], self.scheduler
        due_ms = machine.next_due_ms()
        # Most turns were for acknowledgements that came meanwhile.
        if due_ms is not None and due_ms <= scheduler.time_ms:
            machine.tick(scheduler.now)
            self._empty(number)
            due_ms = machine.next_due_ms()
        if due_ms is not None and due_ms < self._ticks[number]:
            self._ticks[number] = due_ms
            scheduler.at(due_ms, self._tick, number, due_ms)

    # --- the medium ---

    def _send(self, message: Message, to: int, sender: Sender) -> None:
        self.sent += 1
        self.on_send(message)
        link, scheduler = self._link, self.scheduler
        if self._is_plain:
            scheduler.at(scheduler.time_ms + link.delay_ms, self._arrive, to, message, sender)
            return
        if self._chance.random() < link.loss:
            self.lost += 1
            return
        if self._through_codec:
            message = decode(encode(message))
        copies = 2 if self._chance.random() < link.duplication else 1
        for _ in range(copies):
            delay_ms = link.delay_ms + self._chance.random() * link.jitter_ms
            scheduler.after(delay_ms, self._arrive, to, message, sender)

    def _arrive(self, to: int, message: Message, sender: Sender) -> None:
        if to in self._dead:
            return
        machine = self.machines[to]
        machine.handle(message, sender, self.scheduler.now)
        if machine.outbox or machine.effects:
            self._empty(to)
        if type(message) not in _PLAN_NOTHING:
            self._plan_tick(to)


def _nobody(message: Message, to: Address) -> None:
    """Nobody listens to what clients are told."""


def _uncounted(message: Message) -> None:
    """Nobody counts."""
