"""A small world for machines of membership: messages as events on simulated time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rapport.kernel.clock import Chance
from rapport.overlay.membership import Membership
from rapport.overlay.membership_steps import (
    IsolationNotice,
    JoinedNetwork,
    MembershipSettings,
    NeighbourLost,
    SendDeparted,
    SendJoin,
    SendPing,
)
from rapport.transport.base import Address, Now
from rapport_lab.topology import Topology, from_edges


class World:
    """Members at places; a message takes as long as the way is far, or is lost."""

    def __init__(self, seed: int = 1, *, loss: float = 0.0, **settings: Any) -> None:
        self.chance = Chance(seed)
        self.settings = MembershipSettings(**settings)
        self.loss = loss
        self.time = 0.0
        self.members: dict[Address, Membership] = {}
        self.places: dict[Address, tuple[float, float]] = {}
        self.told: list[tuple[float, Address, Any]] = []
        """What happened to whom: Lost, JoinedNetwork, Alone."""
        self.sent: dict[str, int] = {}
        self.cut: Callable[[Address, Address], bool] = lambda one, other: False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._wakes: dict[Address, float] = {}

    @property
    def now(self) -> Now:
        return Now(round(self.time), self.time)

    def add(
        self, address: Address, place: tuple[float, float], former: Iterable[Address] = ()
    ) -> Membership:
        member = Membership(
            address, self.settings, Chance(self.chance.random()), former=tuple(former)
        )
        self.members[address], self.places[address] = member, place
        return member

    def start(self, address: Address, candidates: Iterable[Address]) -> None:
        self._carry_out(address, self.members[address].start(tuple(candidates), self.now))

    def call(self, address: Address, steps: Iterable[Any]) -> None:
        """Carries out what a call of the test gave."""
        self._carry_out(address, steps)

    def kill(self, address: Address) -> None:
        del self.members[address]

    def run(self, duration_ms: float) -> None:
        end = self.time + duration_ms
        while self._events and self._events[0][0] <= end:
            self.time, _, happen = heapq.heappop(self._events)
            happen()
        self.time = end

    def graph(self) -> Topology[Address]:
        """Who walks to whom."""
        return from_edges(
            (
                (address, neighbour)
                for address, member in self.members.items()
                for neighbour in member.neighbours
                if neighbour in self.members
            ),
            self.members,
        )

    def _later(self, delay_ms: float, happen: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.time + delay_ms, self._serial, happen))

    def _carry_out(self, own: Address, steps: Iterable[Any]) -> None:
        for step in steps:
            if isinstance(step, NeighbourLost | JoinedNetwork | IsolationNotice):
                self.told.append((self.time, own, step))
            else:
                self._send(own, step.to, step)
        self._wake(own)

    def _send(self, sender: Address, to: Address, message: Any) -> None:
        name = type(message).__name__
        self.sent[name] = self.sent.get(name, 0) + 1
        if self.cut(sender, to) or self.chance.random() < self.loss:
            return
        # At 10 ms per unit of distance, and never at once.
        delay_ms = 0.1 + 10 * math.dist(self.places[sender], self.places.get(to, (0.0, 0.0)))
        self._later(delay_ms, lambda: self._deliver(sender, to, message))

    def _deliver(self, sender: Address, to: Address, message: Any) -> None:
        member = self.members.get(to)
        if member is None:
            return
        member.mark_alive(sender, self.now)
        match message:
            case SendPing():
                self._send(to, sender, ("pong", message.number))
            case ("pong", number):
                self._carry_out(to, member.answered(sender, number, self.now))
            case SendJoin():
                admission = member.join_requested(sender, self.now, by_hand=message.by_hand)
                self._send(to, sender, ("welcome", admission.accepted, admission.others))
                self._carry_out(to, admission.steps)
            case ("welcome", accepted, others):
                self._carry_out(to, member.welcomed(sender, accepted, others, self.now))
            case SendDeparted():
                steps = member.departed(
                    message.broker, message.number, message.ttl, message.abrupt, sender, self.now
                )
                self._carry_out(to, steps)

    def _wake(self, address: Address) -> None:
        member = self.members.get(address)
        due_ms = None if member is None else member.next_due_ms()
        if due_ms is None or self._wakes.get(address, math.inf) <= max(due_ms, self.time):
            return
        self._wakes[address] = due_ms
        self._later(max(due_ms - self.time, 0), lambda: self._tick(address, member))

    def _tick(self, address: Address, member: Membership | None) -> None:
        self._wakes.pop(address, None)
        if member is not None and self.members.get(address) is member:
            self._carry_out(address, member.tick(self.now))


@pytest.fixture
def world() -> type[World]:
    return World


@pytest.fixture
def at() -> Callable[[float], Now]:
    """A moment of the steady time, as machines are told it."""
    return lambda steady_ms: Now(1_772_442_000_000 + round(steady_ms), steady_ms)
