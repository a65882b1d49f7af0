"""A world of v0 brokers without sockets: datagrams are handed over in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rapport.context.protocol import PROCESSED, Question
from rapport.context.records import RecordTable
from rapport.context.v0.v0_machine import V0Broker
from rapport.context.v0.v0_state import V0Settings
from rapport.core.context_record import ContextRecord
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address

T = 1516060800000
PORT = 7410
EVERYBODY_HERE = ("10.0.0.0/8",)


class World:
    """Brokers at 10.0.0.1, 10.0.0.2, ... and whatever is sent to anybody else."""

    def __init__(self) -> None:
        self.now = Now(T, 0.0)
        self.brokers: dict[Address, V0Broker] = {}
        self.records: dict[Address, RecordTable] = {}
        self.kept: list[tuple[ContextRecord, bool]] = []
        self.told: list[tuple[bytes, Address]] = []
        """What reached nobody here: clients."""
        self.wire: list[tuple[Address, bytes, Address]] = []
        """Everything between brokers, in order: from, what, to."""
        self.lose: Callable[[Address, Address], bool] = lambda _sender, _to: False

    def broker(
        self,
        number: int,
        neighbours: Iterable[int] = (),
        *,
        search: Any = None,
        keep: Any = None,
        allows: Any = None,
        **settings: Any,
    ) -> V0Broker:
        address = (f"10.0.0.{number}", PORT)
        records = self.records[address] = RecordTable()

        def take(record: ContextRecord, advertises: bool, done: Callable[[int, Now], None]) -> None:
            records.put(record, self.now.wall_ms)
            self.kept.append((record, advertises))
            done(PROCESSED, self.now)

        known = {
            "clients": EVERYBODY_HERE,
            "brokers": EVERYBODY_HERE,
            "controllers": EVERYBODY_HERE,
        }
        beside = tuple((f"10.0.0.{one}", PORT) for one in neighbours)
        rights = {"allows": allows} if allows else {}
        self.brokers[address] = V0Broker(
            address,
            V0Settings(**(known | {"neighbours": beside} | settings)),
            Chance(number),
            records=records,
            keep=keep or take,
            search=search,
            **rights,
        )
        return self.brokers[address]

    def put(self, number: int, record: ContextRecord) -> None:
        self.records[f"10.0.0.{number}", PORT].put(record, self.now.wall_ms)

    def has(self, number: int, record: ContextRecord) -> bool:
        entity = record.entity
        held = self.records[f"10.0.0.{number}", PORT].answer(
            (entity.type, entity.id, record.scope), self.now.wall_ms
        )
        return held is not None and held.record == record

    def send(self, datagram: bytes, to: int, sender: Address = ("10.0.9.9", 51234)) -> list[bytes]:
        """What the sender is told, at once and by what follows without waiting."""
        self.told.clear()
        self.brokers[f"10.0.0.{to}", PORT].handle(datagram, sender, self.now)
        self.run()
        return [answer for answer, at in self.told if at == sender]

    def run(self) -> None:
        """Hands over until nothing moves."""
        moved = True
        while moved:
            moved = False
            for address, broker in self.brokers.items():
                taken, broker.outbox[:] = broker.outbox[:], []
                for datagram, to in taken:
                    moved = True
                    self._carry(address, datagram, to)

    def wait(self, duration_ms: float) -> list[bytes]:
        """Lets time pass in steps of 10 ms; what clients are told meanwhile."""
        self.told.clear()
        for _ in range(int(duration_ms // 10)):
            self.now = Now(self.now.wall_ms + 10, self.now.steady_ms + 10)
            for broker in list(self.brokers.values()):
                broker.tick(self.now)
            self.run()
        return [answer for answer, _at in self.told]

    def _carry(self, sender: Address, datagram: bytes, to: Address) -> None:
        if to not in self.brokers:
            self.told.append((datagram, to))
            return
        self.wire.append((sender, datagram, to))
        if not self.lose(sender, to):
            self.brokers[to].handle(datagram, sender, self.now)


@pytest.fixture
def world() -> World:
    return World()


Answer = tuple[Question, int, Callable[[ContextRecord | None, Now], None]]


class Network:
    """Stands for v1: notes what is searched for; the test answers."""

    def __init__(self) -> None:
        self.asked: list[Answer] = []

    def __call__(
        self, question: Question, within_ms: int, found: Callable[[ContextRecord | None, Now], None]
    ) -> None:
        self.asked.append((question, within_ms, found))


@pytest.fixture
def network() -> Network:
    return Network()
