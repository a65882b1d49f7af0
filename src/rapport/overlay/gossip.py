"""Rumours: what is told in rounds to a few drawn at random, until it is old. [EN-5]

Push gossip as in epidemic protocols: who knows a rumour tells it in each of some rounds to
`fan_out` others. All of n know it after about log(n)/log(fan_out+1) + log(n)/fan_out rounds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import msgspec

from rapport.kernel.chance import Chance
from rapport.overlay.seen import Seen
from rapport.transport.base import Address, Now


class RumourSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How eagerly rumours are told."""

    fan_out: int = 3
    """Others told per round; each costs a message, and rounds fall with its logarithm."""
    rounds: int = 12
    """Rounds in which a node tells a rumour; 1 is tell-once gossip, which misses about
    exp(-fan_out) of all nodes. A node sends at most fan_out*rounds messages per rumour.
    """
    ttl: int = 32
    """Hands through which a rumour may go."""
    probability: float = 1.0
    """With which a node passes on at all what it hears, decided once per rumour."""
    active: int = 256
    """Rumours told at a time; of more the oldest are told no more."""
    remembered: int = 8_192
    """Rumours remembered so that they are not told again."""
    keep_ms: float = 60_000.0
    """How long."""


class Telling(NamedTuple):
    """What one other is to be told now."""

    to: Address
    rumours: list[Rumour]


class Rumour(msgspec.Struct, frozen=True, gc=False):
    """A rumour on its way; `ttl` is how many more hands it may go through."""

    key: Hashable
    body: Any
    ttl: int


class Rumours:
    """The rumours one node knows and tells. It never tells one again after its rounds are over."""

    __slots__ = ("_active", "_chance", "_left", "_seen", "_settings")

    def __init__(self, chance: Chance, settings: RumourSettings | None = None) -> None:
        self._settings = settings = settings or RumourSettings()
        self._chance = chance
        self._seen = Seen(settings.remembered, settings.keep_ms)
        self._active: dict[Hashable, Rumour] = {}
        self._left: dict[Hashable, int] = {}

    def spread(self, key: Hashable, body: Any, now: Now) -> None:
        """Begins a rumour here: told from the next round on, surely."""
        if self._seen.first_time(key, now):
            self._take(Rumour(key, body, self._settings.ttl))

    def heard(self, rumour: Rumour, now: Now) -> bool:
        """Whether it is news; then it is also passed on, with the set probability, while its ttl
        lasts.
        """
        if not self._seen.first_time(rumour.key, now):
            return False
        passes = self._settings.probability >= 1 or (
            self._chance.random() < self._settings.probability
        )
        if rumour.ttl > 0 and passes:
            self._take(rumour)
        return True

    def round(self, others: Sequence[Address]) -> list[Telling]:
        """One round: to whom what is told, each of `fan_out` drawn others all active rumours."""
        if not self._active or not others:
            return []
        told = [Rumour(rumour.key, rumour.body, rumour.ttl - 1) for rumour in self._active.values()]
        self._age()
        few = min(self._settings.fan_out, len(others))
        return [Telling(to, told) for to in self._chance.sample(others, few)]

    def forget(self, key: Hashable) -> None:
        """Tells it no more, because a newer one replaces it; it stays known."""
        self._active.pop(key, None)
        self._left.pop(key, None)

    @property
    def active(self) -> int:
        """Rumours that are still told."""
        return len(self._active)

    def _take(self, rumour: Rumour) -> None:
        if len(self._active) >= self._settings.active:
            self.forget(next(iter(self._active)))
        self._active[rumour.key] = rumour
        self._left[rumour.key] = self._settings.rounds

    def _age(self) -> None:
        for key in list(self._left):
            self._left[key] -= 1
            if not self._left[key]:
                self.forget(key)
