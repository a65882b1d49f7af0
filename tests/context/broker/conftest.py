"""A small network of broker machines on simulated time, with clients that repeat themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from rapport.context.broker.broker_machine import BrokerMachine
from rapport.context.broker.broker_settings import BrokerSettings
from rapport.context.protocol import Answer, Message, Put, Question, Request, Status
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender
from rapport_lab.scheduler import Scheduler
from rapport_lab.topology import Topology

CONSUMER: Address = ("consumer", 1)
PROVIDER: Address = ("provider", 1)


def broker_names(count: int) -> list[Address]:
    return [("broker", number) for number in range(count)]


class Outcome:
    """What became of one request."""

    def __init__(self, asked_ms: float, within_ms: int) -> None:
        self.asked_ms, self.within_ms = asked_ms, within_ms
        self.reply: Answer | Status | None = None
        self.took_ms = 0.0
        self.answers = 0

    @property
    def found(self) -> bool:
        return isinstance(self.reply, Answer)


class Network:
    """Brokers, links that delay, lose, double and reorder, and an oracle that sees everything."""

    def __init__(
        self,
        topology: Topology[Address],
        settings: BrokerSettings | None = None,
        *,
        seed: int = 1,
        delay_ms: float = 1.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        duplication: float = 0.0,
        adopt: bool = True,
        **machine: Any,
    ) -> None:
        self.scheduler = Scheduler()
        self.chance = Chance(seed)
        self.delay_ms, self.jitter_ms = delay_ms, jitter_ms
        self.loss, self.duplication = loss, duplication
        self.settings = settings or BrokerSettings()
        self.machines: dict[Address, BrokerMachine] = {}
        self.dead: set[Address] = set()
        self.cut: tuple[set[Address], ...] = ()
        self.sent: dict[str, int] = {}
        self.log: list[tuple[Message, Address, Address]] = []
        self.logs = False
        self.inbox: dict[Address, list[tuple[Message, Address]]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self._ids = 0
        self._planned: dict[Address, tuple[float, Any]] = {}
        self.effects: list[tuple[Address, Any]] = []
        for address in topology.nodes:
            self.add(address, **machine)
        if adopt:
            for address, near in topology.neighbours.items():
                self.machines[address].adopt(near, self.now)
                self._flush(address)

    @property
    def now(self) -> Now:
        return self.scheduler.now

    def add(self, address: Address, **machine: Any) -> BrokerMachine:
        made = BrokerMachine(address, self.settings, Chance(self.chance.getrandbits(64)), **machine)
        self.machines[address] = made
        return made

    def deliver(self, message: Message, sender: Sender, to: Address) -> None:
        """Hands a message to a broker at once."""
        if to in self.machines and to not in self.dead:
            self.machines[to].handle(message, sender, self.now)
            self._flush(to)

    def act(self, address: Address, call: Callable[[BrokerMachine], Any]) -> None:
        """Does something with a machine and sends what it says."""
        call(self.machines[address])
        self._flush(address)

    def send(self, message: Message, source: Address, to: Address, kind: str = "network") -> None:
        """Over the links."""
        name = type(message).__name__
        self.sent[name] = self.sent.get(name, 0) + 1
        if self.logs:
            self.log.append((message, source, to))
        copies = 2 if self.chance.random() < self.duplication else 1
        for _ in range(copies):
            if self.chance.random() >= self.loss:
                delay = self.delay_ms + self.jitter_ms * self.chance.random()
                self.scheduler.after(delay, self._arrive, message, source, to, kind)

    def _arrive(self, message: Message, source: Address, to: Address, kind: str) -> None:
        if source in self.dead and source in self.machines:
            return
        between_brokers = source in self.machines and to in self.machines
        if between_brokers and any((source in group) != (to in group) for group in self.cut):
            return
        if to in self.machines:
            self.deliver(message, Sender(source, "", kind), to)
        else:
            self.inbox.setdefault(to, []).append((message, source))
            if isinstance(message, Answer | Status) and message.id in self.outcomes:
                self._replied(message)

    def _replied(self, reply: Answer | Status) -> None:
        outcome = self.outcomes[reply.id]
        if isinstance(reply, Answer):
            outcome.answers += 1
        if outcome.reply is None:
            outcome.reply, outcome.took_ms = reply, self.scheduler.time_ms - outcome.asked_ms

    def _flush(self, address: Address) -> None:
        machine = self.machines[address]
        out, machine.outbox[:] = list(machine.outbox), []
        for message, to in out:
            if isinstance(message, Answer):
                assert message.record.is_valid_at(self.now.wall_ms)
            self.send(message, address, to)
        self.effects += [(address, effect) for effect in machine.effects]
        machine.effects.clear()
        due = machine.next_due_ms()
        planned = self._planned.get(address)
        if due is None or (planned is not None and planned[0] <= due):
            return
        if planned is not None:
            self.scheduler.cancel(planned[1])
        self._planned[address] = (due, self.scheduler.at(due, self._tick, address))

    def _tick(self, address: Address) -> None:
        self._planned.pop(address, None)
        if address not in self.dead:
            self.machines[address].tick(self.now)
            self._flush(address)

    def kill(self, address: Address) -> None:
        self.dead.add(address)

    def put(
        self, broker: Address, name: str, *, valid_ms: int = 600_000, provider: str = "p", **v: Any
    ) -> ContextRecord:
        """A provider beside a broker says what is true; without loss."""
        record = self.record(name, valid_ms=valid_ms, provider=provider, **v)
        self._ids += 1
        self.deliver(Put(self._ids, record), Sender(PROVIDER, "", "client"), broker)
        return record

    def record(
        self, name: str, *, valid_ms: int = 600_000, provider: str = "p", **values: Any
    ) -> ContextRecord:
        wall = self.now.wall_ms
        entity = EntityRef("room", name)
        return ContextRecord(provider, entity, "status", wall, wall + valid_ms, values)

    def question(self, name: str) -> Question:
        return Question(EntityRef("room", name), "status")

    def request(
        self,
        broker: Address,
        name: str,
        *,
        within_ms: int = 2_000,
        again: int = 0,
        fresh: bool = False,
    ) -> Outcome:
        """A consumer asks, `again` times more while it has no reply; its links lose as others do
        when it repeats itself, else nothing.
        """
        self._ids += 1
        id = self._ids
        outcome = self.outcomes[id] = Outcome(self.scheduler.time_ms, within_ms)
        message = Request(id, self.question(name), within_ms, fresh)
        if not again:
            self.deliver(message, Sender(CONSUMER, "", "client"), broker)
            return outcome
        for turn in range(again + 1):
            delay = turn * within_ms / (again + 1)
            self.scheduler.after(delay, self._repeat, message, outcome, broker)
        return outcome

    def _repeat(self, message: Request, outcome: Outcome, broker: Address) -> None:
        if outcome.reply is None:
            self.send(message, CONSUMER, broker, "client")

    def run(self, duration_ms: float) -> None:
        self.scheduler.run(self.scheduler.time_ms + duration_ms)

    def ask(
        self, broker: Address, name: str, *, within_ms: int = 2_000, fresh: bool = False
    ) -> Outcome:
        """Asks and waits for the end, and a little longer for what may still be under way."""
        outcome = self.request(broker, name, within_ms=within_ms, fresh=fresh)
        until_ms = self.scheduler.time_ms + within_ms + 50
        while outcome.reply is None and self.scheduler.time_ms < until_ms:
            self.run(10)
        self.run(50)
        return outcome

    def holders(self, name: str) -> set[Address]:
        """The oracle: brokers that hold a valid record now."""
        key = ("room", name, "status")
        return {
            address
            for address, machine in self.machines.items()
            if address not in self.dead and machine.table.answer(key, self.now.wall_ms)
        }

    def search_messages(self) -> int:
        """Messages between brokers that searches cost, without acknowledgements."""
        names = ("Ask", "FoundRecord", "SearchRefusal", "Probe", "Have")
        return sum(self.sent.get(name, 0) for name in names)


@pytest.fixture
def network() -> type[Network]:
    return Network


@pytest.fixture
def brokers() -> Callable[[int], list[Address]]:
    return broker_names


def share(outcomes: Iterable[Outcome]) -> float:
    listed: Sequence[Outcome] = list(outcomes)
    return sum(one.found for one in listed) / len(listed)


@pytest.fixture
def found_share() -> Callable[[Iterable[Outcome]], float]:
    return share
