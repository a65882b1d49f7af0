"""Pings that a member sends for others, until they are answered or their time is over. [EN-10]"""

from __future__ import annotations

from typing import NamedTuple

from rapport.transport.base import Address

_NEVER = float("inf")
_MOST = 1_024


class Relay(NamedTuple):
    """Who asked, by which number, and until when it is waited for."""

    origin: Address
    number: int
    until_ms: float


class Relays:
    """What was asked for, oldest first; of more than 1,024 the oldest are dropped."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, Relay] = {}

    @property
    def due_ms(self) -> float:
        """When the oldest is over; infinite for none."""
        for relay in self._waiting.values():
            return relay.until_ms
        return _NEVER

    def add(self, own_number: int, origin: Address, number: int, until_ms: float) -> None:
        """A ping with our own number is under way for somebody."""
        if len(self._waiting) >= _MOST:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[own_number] = Relay(origin, number, until_ms)

    def done(self, own_number: int) -> Relay | None:
        """It was answered; whom to tell."""
        return self._waiting.pop(own_number, None)

    def overdue(self, time_ms: float) -> list[Relay]:
        """Those that were not answered in time; they are not waited for any more."""
        over = [number for number, relay in self._waiting.items() if relay.until_ms <= time_ms]
        return [self._waiting.pop(number) for number in over]
