"""One probe after the other: whom to ask next, whether it answered, and how well this node itself
keeps up. [EN-10]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rapport.kernel.chance import Chance
from rapport.overlay.swim_settings import SwimSettings
from rapport.transport.base import Address

Step = Literal["ping", "ask others", "end"]


class Turns:
    """A fair order: everybody once, then again in a new order; newcomers at a random place."""

    __slots__ = ("_chance", "_order", "_waiting")

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._order: list[Address] = []
        self._waiting: set[Address] = set()

    def add(self, address: Address) -> None:
        """Takes part from this round on."""
        if address not in self._waiting:
            self._order.insert(int(self._chance.random() * (len(self._order) + 1)), address)
            self._waiting.add(address)

    def prefer(self, address: Address) -> None:
        """Has its turn next, and again when it would have had it."""
        self._order.append(address)

    def next(self, present: tuple[Address, ...], is_there: Callable[[Address], bool]) -> Address:
        """Whose turn it is; `present` must not be empty."""
        while True:
            if not self._order:
                self._order = list(present)
                self._chance.shuffle(self._order)
                self._waiting = set(self._order)
            chosen = self._order.pop()
            self._waiting.discard(chosen)
            if is_there(chosen):
                return chosen


class Health:
    """How far this node can trust its own accusations: 0 is well. A node that is slow, or cut off,
    probes more slowly and waits longer (Lifeguard).
    """

    __slots__ = ("_most", "score")

    def __init__(self, most: int) -> None:
        self.score, self._most = 0, most

    @property
    def slowness(self) -> int:
        """By how much periods and time-outs are stretched."""
        return self.score + 1

    def change(self, by: int) -> None:
        """Better below 0, worse above."""
        self.score = min(max(self.score + by, 0), self._most)


class Probe:
    """The question to one member: pinged, pinged again, asked for through others."""

    __slots__ = (
        "_repeats",
        "ack_ms",
        "due_ms",
        "ends_ms",
        "is_answered",
        "nacks",
        "nacks_expected",
        "number",
        "target",
    )

    def __init__(
        self, target: Address, number: int, settings: SwimSettings, slowness: int, time_ms: float
    ) -> None:
        self.target, self.number = target, number
        self.ack_ms = settings.ack_ms * slowness
        self.ends_ms = time_ms + settings.period_ms * slowness
        self.due_ms = time_ms + self.ack_ms
        self.is_answered = False
        self.nacks = self.nacks_expected = 0
        self._repeats = settings.repeats

    def next_step(self, time_ms: float) -> Step | None:
        """What is due now."""
        if time_ms >= self.ends_ms:
            return "end"
        if time_ms < self.due_ms:
            return None
        self.due_ms += self.ack_ms
        if self.is_answered:
            self.due_ms = self.ends_ms
            return None
        if self._repeats > 0:
            self._repeats -= 1
            return "ping"
        self.due_ms = self.ends_ms
        return "ask others"

    def verdict(self) -> int:
        """How the end of it changes our own health: helpers that are silent too are a sign that
        the fault is here.
        """
        if self.is_answered:
            return -1
        return self.nacks_expected - self.nacks if self.nacks_expected else 1
