"""Failure detection of neighbours by pings, and round-trip times. [CX-4, CX-5, EN-10]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

import msgspec

from rapport.kernel.clock import Chance
from rapport.overlay.membership_steps import MembershipSettings, SendPing
from rapport.transport.base import Address, Now

LEAST_MS, MOST_MS = 5.0, 1_000.0
UNKNOWN_MS = 200.0
_KEEP = 3


class RoundTrip:
    """Round trips to one neighbour: the mean of the last three, for the choice of neighbours, and a
    time-out from a smoothed value and its variation, as in TCP (RFC 6298). Both are calculated when
    measured, because they are read far more often.
    """

    __slots__ = ("_last", "mean_ms", "smoothed_ms", "timeout_ms", "variation_ms")

    def __init__(self) -> None:
        self._last: tuple[float, ...] = ()
        self.smoothed_ms = self.variation_ms = 0.0
        self.mean_ms = float("inf")
        """Infinite before the first measurement."""
        self.timeout_ms = UNKNOWN_MS
        """Between 5 ms and 1 s."""

    def measured(self, took_ms: float) -> None:
        if not self._last:
            self.smoothed_ms, self.variation_ms = took_ms, took_ms / 2
        else:
            off = abs(self.smoothed_ms - took_ms)
            self.variation_ms += (off - self.variation_ms) / 4
            self.smoothed_ms += (took_ms - self.smoothed_ms) / 8
        self._last = (*self._last[1 - _KEEP :], took_ms)
        self.mean_ms = sum(self._last) / len(self._last)
        late_ms = self.smoothed_ms + 4 * self.variation_ms
        self.timeout_ms = min(max(late_ms, LEAST_MS), MOST_MS)

    @property
    def known(self) -> bool:
        return bool(self._last)


_NEVER = float("inf")


class LostNeighbour(msgspec.Struct, frozen=True, gc=False):
    """A neighbour without a sign of life for `misses` periods; it is no longer watched."""

    address: Address


class _Watched:
    """A watched neighbour. A round begins with a ping and lasts a period; the ping is repeated
    within it until something is received.
    """

    __slots__ = (
        "began_ms",
        "due_ms",
        "ends_ms",
        "misses",
        "number",
        "repeats_left",
        "round_trip",
        "sent_ms",
    )

    def __init__(self, first_ms: float, round_trip: RoundTrip) -> None:
        self.due_ms = self.ends_ms = first_ms
        self.began_ms = self.sent_ms = -_NEVER
        self.round_trip = round_trip
        self.misses = self.number = self.repeats_left = 0


class Liveness:
    """Watches neighbours. Every received message is a sign of life.

    A dead neighbour is detected within (misses+1) periods; one that answers within a period is
    never lost unless datagrams are. `mark_alive` costs about 0.1 microseconds.
    """

    __slots__ = ("_chance", "_due_ms", "_numbers", "_settings", "_watched", "heard_ms")

    def __init__(
        self,
        settings: MembershipSettings,
        chance: Chance,
        *,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._settings, self._chance = settings, chance
        self._numbers = numbers or count(1)
        self._watched: dict[Address, _Watched] = {}
        self._due_ms = _NEVER
        self.heard_ms: dict[Address, float] = {}
        """The time of the last message of each watched address. Hot paths may write to existing
        entries instead of calling `mark_alive`.
        """

    def watch(self, address: Address, now: Now, round_trip: RoundTrip | None = None) -> None:
        """Watches an address; the first ping is at a random time within a period."""
        if address in self._watched:
            return
        first_ms = now.steady_ms + self._settings.period_ms * self._chance.random()
        self._watched[address] = _Watched(first_ms, round_trip or RoundTrip())
        self.heard_ms[address] = now.steady_ms
        self._due_ms = min(self._due_ms, first_ms)

    def forget(self, address: Address) -> None:
        if self._watched.pop(address, None) is not None:
            del self.heard_ms[address]
            if not self._watched:
                self._due_ms = _NEVER

    def mark_alive(self, address: Address, now: Now) -> None:
        """Notes a message from the address."""
        if address in self.heard_ms:
            self.heard_ms[address] = now.steady_ms

    def answered(self, address: Address, number: int, now: Now) -> bool:
        """Notes an answer; measures the round trip of the last ping."""
        watched = self._watched.get(address)
        if watched is None:
            return False
        self.heard_ms[address] = now.steady_ms
        if number and watched.number == number:  # 0: none is pending
            watched.round_trip.measured(now.steady_ms - watched.sent_ms)
            watched.number = 0
        return True

    def suspect(self, address: Address, now: Now) -> list[SendPing]:
        """Checks a reported failure in one round that begins at once and is as short as its round
        trips allow. It has twice the pings of a normal round, so that under heavy loss one wrong
        report does not cause the next.
        """
        watched = self._watched.get(address)
        last = self._settings.misses - 1
        if watched is None or (watched.misses >= last and not self._is_alive(address, watched)):
            return []
        watched.misses = last
        pings = 2 * (self._settings.repeats + 1)
        patience_ms = min(2 * watched.round_trip.timeout_ms * pings, self._settings.period_ms)
        first = self._begin(address, watched, now, patience_ms)
        watched.repeats_left = pings - 1
        return [first]

    def tick(self, now: Now) -> list[SendPing | LostNeighbour]:
        if now.steady_ms < self._due_ms:
            return []
        steps = [
            step
            for address, watched in list(self._watched.items())
            if watched.due_ms <= now.steady_ms
            and (step := self._next(address, watched, now)) is not None
        ]
        self._due_ms = min((w.due_ms for w in self._watched.values()), default=_NEVER)
        return steps

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that may do something; None without neighbours."""
        return None if self._due_ms == _NEVER else self._due_ms

    def round_trip(self, address: Address) -> RoundTrip | None:
        watched = self._watched.get(address)
        return None if watched is None else watched.round_trip

    def mean_ms(self, address: Address) -> float | None:
        """The mean of the last round trips to a watched neighbour, if measured."""
        watched = self._watched.get(address)
        if watched is None or not watched.round_trip.known:
            return None
        return watched.round_trip.mean_ms

    def slowest_ms(self, addresses: Iterable[Address]) -> float:
        """The longest mean round trip to one of these; infinite if one was never measured."""
        slowest = 0.0
        for address in addresses:
            watched = self._watched.get(address)
            mean_ms = _NEVER if watched is None else watched.round_trip.mean_ms
            if mean_ms > slowest:
                slowest = mean_ms
        return slowest

    def timeout_ms(self, address: Address) -> float:
        watched = self._watched.get(address)
        return UNKNOWN_MS if watched is None else watched.round_trip.timeout_ms

    def _next(
        self, address: Address, watched: _Watched, now: Now
    ) -> SendPing | LostNeighbour | None:
        """The due step of one neighbour: within a round perhaps a repeated ping, at its end the
        next round or the loss.
        """
        if now.steady_ms < watched.ends_ms:
            if watched.repeats_left and not self._is_alive(address, watched):
                watched.repeats_left -= 1
                return self._ping(address, watched, now)
            watched.due_ms = watched.ends_ms
            return None
        watched.misses = 0 if self._is_alive(address, watched) else watched.misses + 1
        if watched.misses >= self._settings.misses:
            del self._watched[address], self.heard_ms[address]
            return LostNeighbour(address)
        jitter = 1 - self._settings.jitter * self._chance.random()
        return self._begin(address, watched, now, self._settings.period_ms * jitter)

    def _is_alive(self, address: Address, watched: _Watched) -> bool:
        return self.heard_ms[address] >= watched.began_ms

    def _begin(self, address: Address, watched: _Watched, now: Now, round_ms: float) -> SendPing:
        watched.began_ms, watched.ends_ms = now.steady_ms, now.steady_ms + round_ms
        watched.repeats_left = self._settings.repeats
        return self._ping(address, watched, now)

    def _ping(self, address: Address, watched: _Watched, now: Now) -> SendPing:
        watched.number, watched.sent_ms = next(self._numbers), now.steady_ms
        # Twice the time-out: an unnecessary repetition only costs a message.
        patient_ms = now.steady_ms + 2 * watched.round_trip.timeout_ms
        watched.due_ms = min(watched.ends_ms, patient_ms)
        self._due_ms = min(self._due_ms, watched.due_ms)
        return SendPing(address, watched.number)
