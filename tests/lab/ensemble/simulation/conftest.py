"""Nodes as simple as can be, for worlds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rapport.ensemble.protocol import Message, OutgoingMessage, PublishedKnowledge
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender


class Flooder:
    """Publishes each second from a time on, and passes on every version once."""

    def __init__(self, name: str, first_ms: float | None, to: Address | None = None) -> None:
        self.name, self.to = name, to
        self.outbox: list[OutgoingMessage] = []
        self.changed: list[PublishedKnowledge] = []
        self.held: dict[str, int] = {}
        self.received: list[tuple[float, str, str]] = []
        self.media: set[bool] = set()
        """Whether what came was said to all."""
        self.ticks: list[float] = []
        self._due_ms = first_ms

    def handle(self, message: Message, sender: Sender, now: Now) -> None:
        assert isinstance(message, PublishedKnowledge)
        self.media.add(sender.to_all)
        self.received.append((now.steady_ms, message.component, sender.identity))
        if message.version > self.held.get(message.component, 0) and message.node != self.name:
            self.held[message.component] = message.version
            self.changed.append(message)
            self.outbox.append(OutgoingMessage(message, self.to))

    def tick(self, now: Now) -> None:
        assert self._due_ms is not None
        self.ticks.append(now.steady_ms)
        self._due_ms += 1_000.0
        self.held[self.name] = now.wall_ms
        published = PublishedKnowledge(self.name, now.wall_ms, now.wall_ms, self.name, (), {})
        self.outbox.append(OutgoingMessage(published, self.to))

    def next_due_ms(self) -> float | None:
        return self._due_ms


@pytest.fixture
def flooder() -> Callable[..., Flooder]:
    return Flooder
