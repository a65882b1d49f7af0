"""The search for neighbours: candidates by latency, join requests, and later reconnects. [CX-4]

The greedy protocol of the source: three pings to each candidate, the lowest mean latencies win.
Near candidates may all be near to each other and far from the rest, so one place is reserved for a
candidate drawn uniformly from the others.

A healed partition leaves two networks that do not look for each other. Members remember those that
fell silent and ping them now and then; this also finds restarted brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import msgspec

from rapport.kernel.clock import Chance
from rapport.overlay.hops import HopFailed, HopRetries
from rapport.overlay.liveness import UNKNOWN_MS, RoundTrip
from rapport.overlay.membership_steps import (
    MembershipSettings,
    SendJoin,
    SendPing,
)
from rapport.transport.base import Address, Now


class NeighbourSearch:
    """One search, which always ends, despite loss; `ended` is true then.

    Inputs append messages to `steps`, from where the caller takes them.
    """

    __slots__ = (
        "_asked",
        "_by_hand",
        "_chance",
        "_joining",
        "_numbers",
        "_reserve",
        "_settings",
        "_trips",
        "answered_count",
        "ended",
        "random",
        "silent",
        "steps",
    )

    def __init__(
        self, settings: MembershipSettings, chance: Chance, numbers: Iterator[int]
    ) -> None:
        self._settings, self._chance, self._numbers = settings, chance, numbers
        self.steps: list[SendPing | SendJoin] = []
        self.ended = False
        self.random: Address | None = None
        """The randomly drawn candidate."""
        self.silent: list[Address] = []
        """Addresses of `ask_exactly` that did not answer."""
        self._joining: JoinProcess | None = None
        self._asked = HopRetries()
        self._reserve: list[Address] = []
        self._trips: dict[Address, RoundTrip] = {}
        self.answered_count = 0
        """Candidates that answered a ping or a Join."""
        self._by_hand = False

    def look(self, candidates: Sequence[Address], at_least: int, most: int, now: Now) -> None:
        """Pings the candidates and sends join requests to the nearest and a random one, at most
        `most`; to none if fewer than `at_least` answer.
        """
        settings = self._settings
        self._joining = JoinProcess(
            candidates,
            self._chance,
            pings=settings.pings,
            at_least=at_least,
            at_most=most,
            settings=settings,
            numbers=self._numbers,
        )
        self.steps += self._joining.start(now)
        self._chosen(now)

    def ask_exactly(
        self,
        addresses: Sequence[Address],
        now: Now,
        *,
        random: Address | None = None,
        by_hand: bool = False,
    ) -> None:
        """Sends join requests to these, without pings."""
        self.random, self._by_hand = random, by_hand
        for address in addresses:
            self._ask(address, now)
        self._settle()

    def answered(self, by: Address, number: int, now: Now) -> bool:
        """Handles a Pong; false if it does not belong to this search."""
        if self._joining is None or not self._joining.answered(by, number, now):
            return False
        self._chosen(now)
        return True

    def welcomed(self, by: Address, accepted: bool, now: Now) -> bool:
        """Handles a Welcome; false if it was not requested."""
        if not self._asked.acknowledged(by, by):
            return False
        if self._joining is None:
            self.answered_count += 1
        if not accepted:
            self._ask_another(by, now)
        self._settle()
        return True

    def tick(self, now: Now) -> None:
        if self._joining is not None and self._joining.result is None:
            self.steps += self._joining.tick(now)
            self._chosen(now)
        for late in self._asked.due(now):
            if not isinstance(late, HopFailed):
                self.steps.append(late.payload)
            elif self._joining is None:
                self.silent.append(late.to)
            else:
                self._ask_another(late.to, now)
        if self._joining is None or self._joining.result is not None:
            self._settle()

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that does something."""
        if self._joining is not None and self._joining.result is None:
            return self._joining.next_due_ms()
        return self._asked.next_due()

    def round_trip(self, address: Address) -> RoundTrip | None:
        return self._trips.get(address)

    def _chosen(self, now: Now) -> None:
        """Sends join requests once the candidates are chosen."""
        joining = self._joining
        if joining is None or joining.result is None or self.ended:
            return
        self.answered_count = joining.answered_by()
        if isinstance(joining.result, JoinResult):
            self._trips = joining.result.round_trips
            self._reserve = list(joining.result.reserve)
            self.random = joining.result.random
            for address in joining.result.neighbours:
                self._ask(address, now)
        self._settle()

    def _ask(self, address: Address, now: Now) -> None:
        trip = self._trips.get(address)
        step = SendJoin(address, next(self._numbers), self._by_hand)
        self._asked.sent(address, address, step, now, trip.timeout_ms if trip else UNKNOWN_MS)
        self.steps.append(step)

    def _ask_another(self, instead_of: Address, now: Now) -> None:
        """Tries the nearest of the reserve, or a random one instead of the random candidate."""
        if not self._reserve:
            return
        if instead_of == self.random:
            self.random = self._chance.choice(self._reserve)
            self._reserve.remove(self.random)
            self._ask(self.random, now)
        else:
            self._ask(self._reserve.pop(0), now)

    def _settle(self) -> None:
        if not len(self._asked):
            self.ended = True


class ReconnectSchedule:
    """Remembers a bounded number of silent members and pings a random one every `revisit_ms`."""

    __slots__ = ("_chance", "_due_ms", "_numbers", "_pinged", "_settings", "_silent")

    def __init__(
        self, settings: MembershipSettings, chance: Chance, numbers: Iterator[int]
    ) -> None:
        self._settings, self._chance, self._numbers = settings, chance, numbers
        self._silent: dict[Address, None] = {}
        self._due_ms: float | None = None
        self._pinged: tuple[Address, int] | None = None

    def fell_silent(self, address: Address, now: Now) -> None:
        if address not in self._silent and len(self._silent) >= self._settings.known:
            del self._silent[next(iter(self._silent))]
        self._silent[address] = None
        if self._due_ms is None:
            self._due_ms = now.steady_ms + self._settings.revisit_ms

    def forget(self, address: Address) -> None:
        """Removes a member that is back or departed."""
        self._silent.pop(address, None)

    def forget_all(self) -> None:
        self._silent.clear()
        self._due_ms = self._pinged = None

    def __contains__(self, address: Address) -> bool:
        return address in self._silent

    def answered(self, by: Address, number: int) -> bool:
        """Whether this answers our ping to a silent member, which stays until `forget`."""
        if self._pinged != (by, number):
            return False
        self._pinged = None
        return by in self._silent

    def tick(self, now: Now) -> list[SendPing]:
        if self._due_ms is None or now.steady_ms < self._due_ms:
            return []
        if not self._silent:
            self._due_ms = self._pinged = None
            return []
        self._due_ms = now.steady_ms + self._settings.revisit_ms
        self._pinged = (self._chance.choice(list(self._silent)), next(self._numbers))
        return [SendPing(*self._pinged)]

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that may do something."""
        return self._due_ms


class KnownMembers:
    """A bounded set of other members' addresses; when full it drops the oldest."""

    __slots__ = ("_known", "_most", "_own")

    def __init__(self, own: Address, most: int) -> None:
        self._own, self._most = own, most
        self._known: dict[Address, None] = {}

    def learn(self, addresses: Iterable[Address]) -> bool:
        """Adds addresses; returns whether one is new."""
        news = [one for one in addresses if one != self._own and one not in self._known]
        for address in news:
            self._known[address] = None
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return bool(news)

    def hear_of(self, address: Address) -> None:
        """Knows it too while there is room: hearsay drives out nobody."""
        if len(self._known) < self._most and address != self._own:
            self._known[address] = None

    def forget(self, address: Address) -> None:
        self._known.pop(address, None)

    def besides(self, neighbours: tuple[Address, ...]) -> list[Address]:
        return [address for address in self._known if address not in neighbours]

    def __len__(self) -> int:
        return len(self._known)


class JoinResult(msgspec.Struct, frozen=True, gc=False):
    """The chosen neighbours, the nearest first and the random one last; `reserve` are the other
    candidates that answered, the nearest first.
    """

    neighbours: tuple[Address, ...]
    random: Address
    reserve: tuple[Address, ...]
    round_trips: dict[Address, RoundTrip]


class JoinFailure(msgspec.Struct, frozen=True, gc=False):
    """Too few candidates answered."""

    answered: int


class JoinProcess:
    """Chooses neighbours by ping times. It ends, and sets `result`, when all pings are answered or
    `wait_ms` after the last one.
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
        """`numbers` is the source of ping numbers, shared with other pings."""
        self._settings = settings or MembershipSettings()
        self._chance = chance
        self._at_least, self._at_most = at_least, at_most
        self._numbers = numbers or count(1)
        chosen = list(dict.fromkeys(candidates))
        if len(chosen) > self._settings.most_candidates:
            chosen = chance.sample(chosen, self._settings.most_candidates)
        self.candidates = tuple(chosen)
        self.result: JoinResult | JoinFailure | None = None
        self._rounds_left = pings
        self._next_ms = 0.0
        self._open: dict[int, tuple[Address, float]] = {}
        self._round_trips: dict[Address, RoundTrip] = {}

    def start(self, now: Now) -> list[SendPing]:
        if not self.candidates:
            self.result = JoinFailure(0)
            return []
        return self._ping_all(now)

    def answered(self, to: Address, number: int, now: Now) -> bool:
        """Handles an answer; false if that ping is not pending."""
        ping = self._open.get(number)
        if ping is None or ping[0] != to or self.result is not None:
            return False
        del self._open[number]
        self._round_trips.setdefault(to, RoundTrip()).measured(now.steady_ms - ping[1])
        if not self._open and not self._rounds_left:
            self._choose()
        return True

    def tick(self, now: Now) -> list[SendPing]:
        """Returns the next pings if due, or ends the process."""
        if self.result is not None or now.steady_ms < self._next_ms:
            return []
        if self._rounds_left:
            return self._ping_all(now)
        self._choose()
        return []

    def answered_by(self) -> int:
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
            self.result = JoinFailure(len(trips))
            return
        by_latency = sorted(trips, key=lambda address: trips[address].mean_ms)
        near = by_latency[: max(self._at_most - 1, 0)]
        rest = by_latency[len(near) :]
        # If all fit, all are chosen, and any of them is the random one.
        drawn = self._chance.choice(rest or near)
        reserve = [address for address in rest if address != drawn]
        neighbours = [address for address in near if address != drawn]
        self.result = JoinResult((*neighbours, drawn), drawn, tuple(reserve), trips)
