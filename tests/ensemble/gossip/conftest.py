"""Machines on simulated time: a little radio and IP network that takes messages as objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import PullCounts, RandomRecipients
from rapport.ensemble.protocol import Message, OutgoingMessage
from rapport.ensemble.trace import IP, RADIO, Recorder
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender
from rapport_lab.scheduler import Scheduler


class Components:
    """A source whose components are set by the test."""

    def __init__(self, *names: str, body: Any = b"\x80") -> None:
        self.bodies: dict[str, Any] = dict.fromkeys(names, body)

    def published(self, now: Now) -> Iterable[Publication]:
        return [Publication(name, ("Role",), body) for name, body in self.bodies.items()]


Loses = Callable[[Message, str, str], bool]


class Net:
    """Nodes with names; radio along links, IP between all, each hop `hop_ms`."""

    def __init__(self, *, hop_ms: float = 101.0, wall_ms: int = 1_700_000_000_000) -> None:
        self.scheduler = Scheduler(wall_ms=wall_ms)
        self.hop_ms = hop_ms
        self.nodes: dict[str, GossipMachine] = {}
        self.sources: dict[str, Components] = {}
        self.links: dict[str, set[str]] = {}
        self.recorder = Recorder()
        self.sent: list[tuple[float, str, OutgoingMessage]] = []
        self.heard: dict[str, dict[str, Any]] = {}
        """Node, component: the version it holds."""
        self.loses: Loses = lambda message, sender, receiver: False

    def add(self, name: str, settings: GossipSettings, **more: Any) -> GossipMachine:
        chance = Chance(f"node {name}")
        address = self.address(name) if settings.ip else None
        source = self.sources[name] = more.pop("source", None) or Components(name)
        askers = PullCounts()
        if settings.ip:
            more.setdefault(
                "recipients",
                RandomRecipients(settings.fan_out, chance, own=address, askers=askers),
            )
        machine = GossipMachine(
            name, settings, chance, source=source, address=address, askers=askers, **more
        )
        self.nodes[name] = machine
        self.links.setdefault(name, set())
        self.heard[name] = {}
        self._plan(name)
        return machine

    def address(self, name: str) -> Address:
        return (name, 1)

    def link(self, *pairs: tuple[str, str]) -> None:
        for one, other in pairs:
            self.links.setdefault(one, set()).add(other)
            self.links.setdefault(other, set()).add(one)

    def kill(self, name: str) -> None:
        del self.nodes[name]

    def run(self, until_ms: float) -> None:
        self.scheduler.run(until_ms)

    def tell(self, name: str, message: Message, sender: Sender) -> None:
        """Hands a message over now, whoever sent it."""
        self.nodes[name].handle(message, sender, self.scheduler.now)
        self._after(name)

    def _plan(self, name: str) -> None:
        machine = self.nodes.get(name)
        due = machine.next_due_ms() if machine else None
        if due is not None:
            self.scheduler.at(due, self._tick, name, due)

    def _tick(self, name: str, due: float) -> None:
        machine = self.nodes.get(name)
        if machine is not None and machine.next_due_ms() == due:
            machine.tick(self.scheduler.now)
            self._after(name)

    def _after(self, name: str) -> None:
        machine, now = self.nodes[name], self.scheduler.now
        for changed in machine.changed:
            self.heard[name][changed.component] = changed
        machine.changed.clear()
        for outgoing in machine.outbox:
            self.sent.append((now.steady_ms, name, outgoing))
            self.recorder.sent(name, outgoing, now)
            self._carry(name, outgoing)
        machine.outbox.clear()
        self._plan(name)

    def _carry(self, name: str, outgoing: OutgoingMessage) -> None:
        to = [outgoing.to[0]] if outgoing.to else sorted(self.links[name])
        medium = IP if outgoing.to else RADIO
        for receiver in to:
            if not self.loses(outgoing.message, name, receiver):
                self.scheduler.after(
                    self.hop_ms, self._arrive, receiver, outgoing.message, name, medium
                )

    def _arrive(self, name: str, message: Message, sender: str, medium: str) -> None:
        if name in self.nodes:
            now, who = self.scheduler.now, Sender(self.address(sender), to_all=medium == RADIO)
            self.recorder.received(name, message, sender, medium, now)
            self.nodes[name].handle(message, who, now)
            self._after(name)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def make_net() -> type[Net]:
    return Net


@pytest.fixture
def make_components() -> type[Components]:
    return Components
