"""Choosing neighbours from a list: the quickest to answer, and one by chance. [CX-4]

The greedy protocol of the source: three pings each, the lowest mean latencies. Those that are near
may all be near to each other and far from the rest, so one place is kept for one that is drawn
uniformly from the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from rapport.kernel.chance import Chance
from rapport.overlay.latency import RoundTrip
from rapport.overlay.membership_steps import MembershipSettings, SendPing
from rapport.transport.base import Address, Now


class Joined(msgspec.Struct, frozen=True, gc=False):
    """Enough answered: these are to be the neighbours, the nearest first and the random one last;
    `reserve` are the others that answered, the nearest first.
    """

    neighbours: tuple[Address, ...]
    random: Address
    reserve: tuple[Address, ...]
    round_trips: dict[Address, RoundTrip]


class NotJoined(msgspec.Struct, frozen=True, gc=False):
    """Too few answered: wait for a new list."""

    answered: int


class Joining:
    """One try to choose neighbours; `result` is there when it ended.

    It ends when all pings are answered, or `wait_ms` after the last one was sent.
    """

    __slots__ = (
        "_at_least",
        "_at_most",
        "_chance",
        "_next_ms",
        "_numbers",
        "_open",
        "_round_trips",
        "_rounds_left",
        "_settings",
        "candidates",
        "result",
    )

    def __init__(
        self,
        candidates: Sequence[Address],
        chance: Chance,
        *,
        pings: int = 3,
        at_least: int = 2,
        at_most: int = 20,
        settings: MembershipSettings | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`numbers` gives the numbers of the pings, for who counts them together with others."""
        self._settings = settings or MembershipSettings()
        self._chance = chance
        self._at_least, self._at_most = at_least, at_most
        self._numbers = numbers or count(1)
        chosen = list(dict.fromkeys(candidates))
        if len(chosen) > self._settings.most_candidates:
            chosen = chance.sample(chosen, self._settings.most_candidates)
        self.candidates = tuple(chosen)
        self.result: Joined | NotJoined | None = None
        self._rounds_left = pings
        self._next_ms = 0.0
        self._open: dict[int, tuple[Address, float]] = {}
        self._round_trips: dict[Address, RoundTrip] = {}

    def start(self, now: Now) -> list[SendPing]:
        """The first ping to each candidate."""
        if not self.candidates:
            self.result = NotJoined(0)
            return []
        return self._ping_all(now)

    def answered(self, to: Address, number: int, now: Now) -> bool:
        """A candidate answered; false when that ping was not of this try, or was answered."""
        ping = self._open.get(number)
        if ping is None or ping[0] != to or self.result is not None:
            return False
        del self._open[number]
        self._round_trips.setdefault(to, RoundTrip()).measured(now.steady_ms - ping[1])
        if not self._open and not self._rounds_left:
            self._choose()
        return True

    def tick(self, now: Now) -> list[SendPing]:
        """The next pings when they are due, or the end."""
        if self.result is not None or now.steady_ms < self._next_ms:
            return []
        if self._rounds_left:
            return self._ping_all(now)
        self._choose()
        return []

    def answered_by(self) -> int:
        """How many candidates answered so far."""
        return len(self._round_trips)

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that does something; None when it ended."""
        return None if self.result is not None else self._next_ms

    def _ping_all(self, now: Now) -> list[SendPing]:
        self._rounds_left -= 1
        wait_ms = self._settings.between_ms if self._rounds_left else self._settings.wait_ms
        self._next_ms = now.steady_ms + wait_ms
        pings = [SendPing(to, next(self._numbers)) for to in self.candidates]
        for ping in pings:
            self._open[ping.number] = (ping.to, now.steady_ms)
        return pings

    def _choose(self) -> None:
        trips = self._round_trips
        if len(trips) < max(self._at_least, 1):
            self.result = NotJoined(len(trips))
            return
        by_latency = sorted(trips, key=lambda address: trips[address].mean_ms())
        near = by_latency[: max(self._at_most - 1, 0)]
        rest = by_latency[len(near) :]
        # When all fit, all are taken, and any of them serves as the random one.
        drawn = self._chance.choice(rest or near)
        reserve = [address for address in rest if address != drawn]
        neighbours = [address for address in near if address != drawn]
        self.result = Joined((*neighbours, drawn), drawn, tuple(reserve), trips)
