"""Which broker a client talks to: the nearest that is not loaded, changed with hysteresis. Pure.
[CX-11]

Three pings each at the start; later one each now and then. A broker that is doubted is pinged at
once; it is gone after so many unanswered pings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from rapport.context.messages import Ping
from rapport.context.settings import ClientSettings
from rapport.kernel.chance import Chance
from rapport.transport.base import Address

_SMOOTHING = 0.25
_LEAST_PATIENCE_MS, _MOST_PATIENCE_MS = 50.0, 500.0
_CHANGE_AT_ONCE = 0.5
"""Of those clients that would gain by a change, this part changes each round: all at once would
only move the load."""


class Candidate(msgspec.Struct):
    """What is known of a broker."""

    address: Address
    answers: int = 0
    round_trip_ms: float = 0.0
    load: float = 0.0
    misses: int = 0
    """Unanswered in a row."""
    ping: int = 0
    """The ping under way; 0 for none."""
    pinged_ms: float = 0.0
    late: int = 0
    """The last ping that was given up, which may be answered all the same by one far away."""
    late_ms: float = 0.0
    better_rounds: int = 0
    heard_ms: float = -math.inf
    """When it last sent anything."""

    def patience_ms(self) -> float:
        """How long an answer is waited for."""
        if not self.answers:
            return _MOST_PATIENCE_MS / 2
        return min(max(4 * self.round_trip_ms, _LEAST_PATIENCE_MS), _MOST_PATIENCE_MS)

    def score(self, settings: ClientSettings) -> float:
        """The lower the better."""
        if not self.answers or self.misses >= settings.dead_after:
            return math.inf
        return (self.round_trip_ms + settings.near_ms) * (1 + settings.load_weight * self.load)


class BrokerChoice:
    """The choice and its reasons. `due` says whom to ping, `answered` takes the answers.

    `current` is none until one is chosen; who is gone stays it while nobody else answers.
    """

    def __init__(
        self, brokers: Sequence[Address], settings: ClientSettings, chance: Chance, now_ms: float
    ) -> None:
        self.candidates = {address: Candidate(address) for address in brokers}
        self.current: Address | None = None
        self.changes = 0
        self._settings, self._chance = settings, chance
        self._began_ms, self._round_ms = now_ms, now_ms
        self._numbers = chance.getrandbits(48) << 8
        if len(brokers) == 1:
            self._change_to(brokers[0])  # there is nothing to choose

    def due(self, now_ms: float) -> list[tuple[Ping, Address]]:
        """The pings to send now; unanswered ones are counted, and the choice is made anew."""
        for one in self.candidates.values():
            if one.ping and now_ms - one.pinged_ms >= one.patience_ms():
                one.late, one.late_ms, one.ping = one.ping, one.pinged_ms, 0
                one.misses += 1
        self._decide(now_ms)
        is_round = now_ms >= self._round_ms
        if is_round:
            self._round_ms = now_ms + self._settings.look_every_ms
        return [
            (self._pinged(one, now_ms), one.address)
            for one in self.candidates.values()
            if not one.ping and (is_round or self._is_wanted(one))
        ]

    def next_due_ms(self) -> float:
        """When `due` has something to do."""
        waits = [one.pinged_ms + one.patience_ms() for one in self.candidates.values() if one.ping]
        if self.current is None and waits:
            waits.append(self._began_ms + self._settings.choose_within_ms)
        return min([*waits, self._round_ms])

    def answered(self, address: Address, number: int, load: float, now_ms: float) -> None:
        """A broker answered a ping."""
        one = self.candidates.get(address)
        if one is None or number not in (one.ping, one.late) or not number:
            return
        if number == one.ping:
            since_ms, one.ping = one.pinged_ms, 0
        else:
            since_ms, one.late = one.late_ms, 0
        took_ms = max(now_ms - since_ms, 0.0)
        one.misses, one.load = 0, min(max(load, 0.0), 1.0)
        share = 1 / (one.answers + 1) if one.answers < self._settings.pings else _SMOOTHING
        one.round_trip_ms += share * (took_ms - one.round_trip_ms)
        one.answers += 1
        if self.current is None:
            self._decide(now_ms)
        elif address == self.current or one.answers > self._settings.pings:
            self._compare(one)

    def heard(self, address: Address, now_ms: float) -> None:
        """A broker sent something: it lives."""
        if (one := self.candidates.get(address)) is not None:
            one.misses, one.heard_ms = 0, now_ms

    def doubt(self, address: Address, now_ms: float) -> list[tuple[Ping, Address]]:
        """A broker kept somebody waiting: ask whether it is there."""
        one = self.candidates.get(address)
        if one is None or one.ping:
            return []
        return [(self._pinged(one, now_ms), address)]

    def _pinged(self, one: Candidate, now_ms: float) -> Ping:
        self._numbers += 1
        one.ping, one.pinged_ms = self._numbers, now_ms
        return Ping(self._numbers)

    def _is_wanted(self, one: Candidate) -> bool:
        """Not well known yet, or in doubt, and not given up until the next round."""
        settings = self._settings
        if one.misses:
            return one.misses < settings.dead_after
        return one.answers < settings.pings

    def _decide(self, now_ms: float) -> None:
        """Chooses when nobody is chosen, or who was is gone and another is there."""
        settings, current = self._settings, self.current
        if current is not None and self.candidates[current].misses < settings.dead_after:
            return
        known = [one for one in self.candidates.values() if one.score(settings) < math.inf]
        is_whole = all(
            one.answers >= settings.pings or one.misses >= settings.dead_after
            for one in self.candidates.values()
        )
        is_time = now_ms - self._began_ms >= settings.choose_within_ms
        if known and (is_whole or is_time or self.changes):
            self._choose(known)

    def _choose(self, known: list[Candidate]) -> None:
        settings = self._settings
        best = min(one.score(settings) for one in known)
        good = [one for one in known if one.score(settings) <= best * settings.similar]
        self._change_to(self._chance.choice(good).address)

    def _compare(self, one: Candidate) -> None:
        """Counts the rounds in which another is much better than who is chosen."""
        settings, current = self._settings, self.current
        if current is None or one.address == current:
            return
        own, other = self.candidates[current].score(settings), one.score(settings)
        is_better = other < own * settings.better_factor and other < own - settings.better_ms
        one.better_rounds = one.better_rounds + 1 if is_better else 0
        enough = one.better_rounds >= settings.better_rounds
        if enough and self._chance.random() < _CHANGE_AT_ONCE:
            self._change_to(one.address)

    def _change_to(self, address: Address) -> None:
        self.current = address
        self.changes += 1
        for one in self.candidates.values():
            one.better_rounds = 0
