"""Search strategies: how many walkers or floods a broker sends in each round of a search. [CX-5]

A question travels as a walker (from broker to broker, and back with or without the record) or as a
flood (to all brokers within some hops; it brings no refusals). A strategy sets how many of which
start in a round, and how long the broker waits before the next round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rapport.context.broker.broker_settings import SearchSettings, StrategyName

WALK, FLOOD, NORMALIZED = "walk", "flood", "normalized"
"""How an Ask travels."""


class Launch(NamedTuple):
    """One walker or flood that sets out."""

    travels: str
    hops: int


class Strategy(Protocol):
    """A way of searching; pure, one for all searches of a broker."""

    def launches(self, round_number: int) -> tuple[Launch, ...]:
        """The walkers or floods of a round, counted from 0; nothing if the search has failed."""

    def patience_ms(self, round_number: int, within_ms: int, hop_ms: float) -> float:
        """How long a round is waited for, when a hop takes about so long there and back."""


class Walks:
    """`number` walkers at once. Each comes home; a new round sets out only for those lost."""

    def __init__(self, number: int, settings: SearchSettings) -> None:
        self._launches = (Launch(WALK, settings.hop_limit),) * number
        self._rounds = settings.rounds

    def launches(self, round_number: int) -> tuple[Launch, ...]:
        return self._launches

    def patience_ms(self, round_number: int, within_ms: int, hop_ms: float) -> float:
        return within_ms / self._rounds


class Floods:
    """A flood as far as `flood_ttl`, again in each round in case messages were lost."""

    def __init__(self, travels: str, settings: SearchSettings) -> None:
        self._launches = (Launch(travels, settings.flood_ttl),)
        self._rounds, self._ttl = settings.rounds, settings.flood_ttl

    def launches(self, round_number: int) -> tuple[Launch, ...]:
        return self._launches if round_number < self._rounds else ()

    def patience_ms(self, round_number: int, within_ms: int, hop_ms: float) -> float:
        return min(2 * self._ttl * hop_ms, within_ms / self._rounds)


class Rings:
    """Floods that go further each round: 1, 2, 4 hops and so on up to `flood_ttl`, and that one
    once more.
    """

    def __init__(self, settings: SearchSettings) -> None:
        reach = [1]
        while reach[-1] < settings.flood_ttl:
            reach.append(min(2 * reach[-1], settings.flood_ttl))
        self._reach = (*reach, reach[-1])

    def launches(self, round_number: int) -> tuple[Launch, ...]:
        if round_number >= len(self._reach):
            return ()
        return (Launch(FLOOD, self._reach[round_number]),)

    def patience_ms(self, round_number: int, within_ms: int, hop_ms: float) -> float:
        hops = self._reach[min(round_number, len(self._reach) - 1)]
        return min(2 * hops * hop_ms, within_ms / len(self._reach))


_MAKERS: dict[StrategyName, Callable[[SearchSettings], Strategy]] = {
    "walk": lambda settings: Walks(1, settings),
    "walkers": lambda settings: Walks(settings.walkers, settings),
    "flood": lambda settings: Floods(FLOOD, settings),
    "normalized": lambda settings: Floods(NORMALIZED, settings),
    "ring": Rings,
}


def make_strategy(settings: SearchSettings) -> Strategy:
    """The strategy that the settings name."""
    return _MAKERS[settings.strategy](settings)
