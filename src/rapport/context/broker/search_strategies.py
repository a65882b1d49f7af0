"""Search strategies: how many walkers or floods a broker sends in each round of a search. [CX-5]

A question travels as a walker (from broker to broker, and back with or without the record) or as a
flood (to all brokers within some hops; it brings no refusals). A strategy sets how many of which
start in a round, and how long the broker waits before the next round.
"""

from __future__ import annotations

from typing import NamedTuple

from rapport.context.broker.broker_settings import SearchSettings

WALK, FLOOD, NORMALIZED = "walk", "flood", "normalized"
"""How an Ask travels."""


class Launch(NamedTuple):
    """One walker or flood that sets out."""

    travels: str
    hops: int


class Strategy:
    """A way of searching; pure, one for all searches of a broker."""

    def __init__(self, rounds: list[tuple[Launch, ...]], parts: int) -> None:
        """`rounds`: what sets out in each. Each is waited for as long as one of so many equal
        `parts` of the deadline.
        """
        self._rounds, self._parts = rounds, parts
        self._walks = rounds[0][0].travels == WALK

    def launches(self, round_number: int) -> tuple[Launch, ...]:
        """The walkers or floods of a round, counted from 0; nothing if the search has failed.
        Walkers come home, so further rounds replace only those lost, as often as there is time.
        """
        if self._walks:
            return self._rounds[0]
        return self._rounds[round_number] if round_number < len(self._rounds) else ()

    def patience_ms(self, round_number: int, within_ms: int, hop_ms: float) -> float:
        """How long a round is waited for, when a hop takes about so long there and back: nothing
        comes of a flood after it has been everywhere.
        """
        part_ms = within_ms / self._parts
        if self._walks:
            return part_ms
        [flood] = self._rounds[min(round_number, len(self._rounds) - 1)]
        return min(2 * flood.hops * hop_ms, part_ms)


def make_strategy(settings: SearchSettings) -> Strategy:
    """The strategy that the settings name. A flood sets out again in each round, in case messages
    were lost; rings go 1, 2, 4 hops and so on up to `flood_ttl`, and that far once more.
    """
    name, ttl, rounds = settings.strategy, settings.flood_ttl, settings.rounds
    if name == "walk" or name == "walkers":
        number = settings.walkers if name == "walkers" else 1
        return Strategy([(Launch(WALK, settings.hop_limit),) * number], rounds)
    if name != "ring":
        return Strategy([(Launch(name, ttl),)] * rounds, rounds)
    reach = [1]
    while reach[-1] < ttl:
        reach.append(min(2 * reach[-1], ttl))
    reach.append(reach[-1])
    return Strategy([(Launch(FLOOD, hops),) for hops in reach], len(reach))
