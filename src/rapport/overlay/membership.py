"""The neighbours of a member: joining, failure detection, departures and repair. [CX-4, EN-10]"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from rapport.kernel.clock import Chance
from rapport.overlay.liveness import Liveness, LostNeighbour, RoundTrip
from rapport.overlay.membership_steps import (
    PARTING,
    Admission,
    IsolationNotice,
    JoinedNetwork,
    MembershipSettings,
    MembershipStep,
    NeighbourLost,
    SendDeparted,
    SendJoin,
    SendPing,
)
from rapport.overlay.neighbour_search import KnownMembers, NeighbourSearch, ReconnectSchedule
from rapport.overlay.routing import Flood, SeenFilter
from rapport.transport.base import Address, Now

_DEPARTURES, _DEPARTURE_MS = 1_024, 60_000.0
_JOIN_SHARE = 1 / 16
"""The random share of pings to neighbours that are sent as Joins."""


class Membership:
    """The neighbours of one member. Every input returns the steps to carry out, in order.

    Neighbourhood is mutual; if a message about it was lost, some pings are sent as join requests,
    which restores it. A full member parts from a neighbour to accept a new one. One neighbour is
    drawn uniformly from all known members, because near neighbours alone may split the network.
    Silent members are pinged now and then, which heals partitions and finds restarted brokers.
    """

    __slots__ = (
        "_by_hand",
        "_chance",
        "_flood",
        "_floor",
        "_has_left",
        "_has_news",
        "_known",
        "_liveness",
        "_look_ms",
        "_needed",
        "_numbers",
        "_own",
        "_search",
        "_settings",
        "_silent",
        "_was_member",
        "_watching",
        "_wished",
        "heard_ms",
        "mark_alive",
        "neighbours",
        "random",
        "slowest_ms",
        "timeout_ms",
    )

    def __init__(
        self,
        own: Address,
        settings: MembershipSettings,
        chance: Chance,
        *,
        former: Sequence[Address] = (),
        watching: bool = True,
    ) -> None:
        """`former`: neighbours before a restart, which are candidates too. Without `watching`,
        neighbours are not pinged before `monitor`.
        """
        self.neighbours: tuple[Address, ...] = ()
        """The current neighbours; replaced on change, never mutated."""
        self.random: Address | None = None
        """The randomly drawn neighbour."""
        self._own, self._settings, self._chance = own, settings, chance
        self._watching, self._has_left = watching, False
        self._was_member = bool(former)
        self._numbers = count(chance.getrandbits(32) + 1)
        self._known = KnownMembers(own, settings.known)
        self._known.learn(former)
        self._liveness = Liveness(settings, chance, numbers=self._numbers)
        # Bound methods, because they are called for each message.
        self.mark_alive = self._liveness.mark_alive
        """Notes a message from an address as a sign of life. About 0.1 microseconds."""
        self.heard_ms = self._liveness.heard_ms
        """The times that `mark_alive` writes, by watched address."""
        self.timeout_ms = self._liveness.timeout_ms
        """The time-out for a neighbour's answer (200 ms for others)."""
        self.slowest_ms = self._liveness.slowest_ms
        """The longest mean round trip to one of these; infinite if one was never measured."""
        self._flood = Flood(SeenFilter(_DEPARTURES, _DEPARTURE_MS))
        self._search: NeighbourSearch | None = None
        self._floor, self._wished = settings.at_least, settings.at_most
        self._needed, self._has_news = 1, False
        self._by_hand: bool | None = None
        """Whether the neighbours are given by hand; None if unknown."""
        self._look_ms: float | None = None
        self._silent = ReconnectSchedule(settings, chance, self._numbers)

    def start(self, candidates: Sequence[Address], now: Now) -> list[MembershipStep]:
        """Searches neighbours in this list and among former ones; ends with JoinedNetwork or
        IsolationNotice. A controller may call it with a new list at any time.
        """
        self._has_left = self._by_hand = False
        self._known.learn(candidates)
        self._floor, self._wished = self._settings.at_least, self._settings.at_most
        named = set(candidates) - {self._own}
        if self._was_member and not self.neighbours:
            # After a restart all known members are candidates, and it keeps trying.
            return self._look(self._known.besides(()), now, needed=1)
        # A list shorter than at_least means all of it.
        return self._look(list(candidates), now, needed=min(self._floor, len(named)))

    def connect(self, brokers: Sequence[Address], now: Now) -> list[MembershipStep]:
        """Requests exactly these neighbours, whatever their latency: a topology given by hand. It
        adds no random one and searches no others while two of them (or all) are present. Ends with
        JoinedNetwork or IsolationNotice.
        """
        wanted = [broker for broker in dict.fromkeys(brokers) if broker != self._own]
        self._has_left = False
        self._known.learn(wanted)
        self._given_by_hand(len(set(wanted) | set(self.neighbours)))
        strangers = [broker for broker in wanted if broker not in self.neighbours]
        return self._ask(strangers, now)  # the requests state that it is by hand

    def adopt(self, neighbours: Sequence[Address], now: Now) -> None:
        """Sets these neighbours without messages and without `at_most`; for simulations."""
        self._was_member, self._has_left = True, False
        for address in neighbours:
            self._gain(address, now)
        self._given_by_hand(len(self.neighbours))

    def answered(self, by: Address, number: int, now: Now) -> list[MembershipStep]:
        self._liveness.answered(by, number, now)
        if self._silent.answered(by, number):
            return self._came_back(by, now)
        if self._search is not None and self._search.answered(by, number, now):
            return self._advance_search([], now)
        return []

    def heard_of(self, address: Address) -> None:
        """Notes a member named by another one, as a candidate for later. About 0.1 microseconds."""
        self._known.hear_of(address)

    def join_requested(self, by: Address, now: Now, *, by_hand: bool = False) -> Admission:
        """Handles a Join; the admission is the Welcome to answer. Only a member that left refuses.
        A member that only received requests searches others too, unless the topology is by hand.
        """
        if self._has_left or by == self._own:
            return Admission(False, (), [])
        others = [address for address in self.neighbours if address != by]
        if len(others) > self._settings.others:
            others = self._chance.sample(others, self._settings.others)
        steps: list[MembershipStep] = []
        if by not in self.neighbours:
            if len(self.neighbours) >= self._settings.at_most:
                steps = self._part_from_one()
            self._gain(by, now)
            self._was_member = True
            if by_hand and self._by_hand is not False:
                self._given_by_hand(len(self.neighbours))
            self._plan_look(now)
        return Admission(True, tuple(others), steps)

    def welcomed(
        self, by: Address, accepted: bool, others: Sequence[Address], now: Now
    ) -> list[MembershipStep]:
        if self._known.learn(others):
            self._has_news = True
        if self._has_left:
            return [self._parting(by)] if accepted else []
        search = self._search
        was_awaited = search is not None and search.welcomed(by, accepted, now)
        steps: list[MembershipStep] = []
        if accepted:
            steps = self._take(by, search if was_awaited else None, now)
        else:
            self._silent.forget(by)
            if by in self.neighbours:  # it has left, and its departure was lost
                self._drop(by)
                self._known.forget(by)
                steps = [NeighbourLost(by, abrupt=False), *self._repair(now)]
        self._plan_look(now)
        return self._advance_search(steps, now)

    def departed(
        self, broker: Address, number: int, ttl: int, abrupt: bool, came_from: Address, now: Now
    ) -> list[MembershipStep]:
        """Handles a Departed with its id `number`; forwards it once while its ttl lasts. A
        neighbour reported as silent is lost only after a round of our own pings stays unanswered.
        """
        key, ttl = (broker, number), min(ttl, self._settings.departure_ttl)
        is_new = self._flood.is_new(key, now)
        steps: list[MembershipStep] = []
        if broker != self._own:
            for to in self._flood.spread(key, ttl, came_from, self.neighbours, now):
                if to != broker:
                    steps.append(SendDeparted(to, broker, number, ttl - 1, abrupt))
        if not is_new or broker == self._own or self._has_left:
            return steps
        if abrupt:
            return steps + self._liveness.suspect(broker, now)
        if broker in self.neighbours:
            self._drop(broker)
            steps.append(NeighbourLost(broker, abrupt=False))
        if ttl == PARTING:
            return steps + self._was_parted_from(now)
        self._known.forget(broker)
        self._silent.forget(broker)
        return steps + self._repair(now)

    def monitor(self, now: Now) -> list[MembershipStep]:
        """Starts to ping all neighbours (needed only without `watching`)."""
        self._watching = True
        for address in self.neighbours:
            self._liveness.watch(address, now)
        return []

    @property
    def has_left(self) -> bool:
        """Whether it left and was not started since."""
        return self._has_left

    def leave(self, now: Now) -> list[MembershipStep]:
        """Reports its departure; no neighbours and no admissions until `start` or `connect`. A
        pending search ends with IsolationNotice.
        """
        steps = self._report_departure(self._own, now, abrupt=False)
        for address in self.neighbours:
            self._drop(address)
        if self._search is not None:  # reports the end of the search
            steps.append(IsolationNotice(0, self._needed))
        self._has_left, self._was_member = True, False
        self._search = self._look_ms = self.random = None
        self._silent.forget_all()
        return steps

    def tick(self, now: Now) -> list[MembershipStep]:
        steps: list[MembershipStep] = []
        for step in self._liveness.tick(now):
            if isinstance(step, LostNeighbour):
                steps += self._fell_silent(step.address, now)
            else:
                steps.append(self._ping_or_join(step))
        if self._search is not None:
            self._search.tick(now)
            steps = self._advance_search(steps, now)
        if self._look_ms is not None and now.steady_ms >= self._look_ms:
            self._look_ms = None
            steps += self._repair(now)
        return steps + self._silent.tick(now)

    def next_due_ms(self) -> float | None:
        """The steady time of the next `tick`; None: only after another input."""
        due_ms, revisit_ms = self._liveness.next_due_ms(), self._silent.next_due_ms()
        if self._search is None and self._look_ms is None and revisit_ms is None:
            return due_ms  # the usual case
        search_ms = None if self._search is None else self._search.next_due_ms()
        dues = (due_ms, search_ms, self._look_ms, revisit_ms)
        return min((due for due in dues if due is not None), default=None)

    def mean_ms(self, address: Address) -> float | None:
        """The mean of the last round trips to a neighbour."""
        return self._liveness.mean_ms(address)

    # Looking for neighbours

    def _given_by_hand(self, count: int) -> None:
        self._by_hand = True
        self._floor = min(self._settings.at_least, max(count, 1))
        self._wished = max(count, self._settings.at_least)

    def _look(self, candidates: list[Address], now: Now, *, needed: int) -> list[MembershipStep]:
        """Starts a search that succeeds with `needed` neighbours."""
        strangers = [
            address
            for address in dict.fromkeys(candidates)
            if address not in self.neighbours and address != self._own
        ]
        have = len(self.neighbours)
        self._look_ms, self._needed = None, max(needed, 1)
        self._search = NeighbourSearch(self._settings, self._chance, self._numbers)
        self._search.look(strangers, needed - have, max(self._wished - have, 1), now)
        return self._advance_search([], now)

    def _ask(
        self, addresses: list[Address], now: Now, *, random: Address | None = None
    ) -> list[MembershipStep]:
        self._needed = 1
        self._search = NeighbourSearch(self._settings, self._chance, self._numbers)
        by_hand = self._by_hand is True and random is None
        self._search.ask_exactly(addresses, now, random=random, by_hand=by_hand)
        return self._advance_search([], now)

    def _advance_search(self, steps: list[MembershipStep], now: Now) -> list[MembershipStep]:
        """The steps with those of the search, and its result if it ended."""
        search = self._search
        if search is None:
            return steps
        steps += search.steps
        search.steps = []
        if not search.ended:
            return steps
        self._search = None
        for address in search.silent:
            self._silent.fell_silent(address, now)
        return [*steps, self._result(search.answered_count, search.random, now)]

    def _result(self, answered: int, drawn: Address | None, now: Now) -> MembershipStep:
        joined = len(self.neighbours) >= self._needed
        self._was_member = self._was_member or joined
        self._plan_look(now)
        if not joined:
            return IsolationNotice(answered, self._needed)
        if (drawn or self.random) is not None and self.random not in self.neighbours:
            self.random = self._chance.choice(self.neighbours)
        return JoinedNetwork(self.neighbours)

    # Gaining and losing

    def _gain(self, address: Address, now: Now, trip: RoundTrip | None = None) -> None:
        if address in self.neighbours or address == self._own:
            return
        self.neighbours = (*self.neighbours, address)
        self._known.learn((address,))
        self._silent.forget(address)
        if self._watching:
            self._liveness.watch(address, now, trip)

    def _take(self, by: Address, search: NeighbourSearch | None, now: Now) -> list[MembershipStep]:
        """Accepts a member that accepted us, or parts from it if there is no room any more."""
        if by in self.neighbours or by == self._own:
            return []
        drawn = search is not None and by == search.random
        steps: list[MembershipStep] = []
        if len(self.neighbours) >= self._settings.at_most:
            if not drawn:
                return [self._parting(by)]
            steps = self._part_from_one()
        self._gain(by, now, search.round_trip(by) if search is not None else None)
        if drawn:
            self.random = by
        return steps

    def _drop(self, address: Address) -> None:
        self.neighbours = tuple(one for one in self.neighbours if one != address)
        self._liveness.forget(address)

    def _part_from_one(self) -> list[MembershipStep]:
        """Parts from any neighbour except the random one."""
        parted = self._chance.choice([one for one in self.neighbours if one != self.random])
        self._drop(parted)
        return [self._parting(parted), NeighbourLost(parted, abrupt=False)]

    def _parting(self, to: Address) -> SendDeparted:
        return SendDeparted(to, self._own, next(self._numbers), PARTING, abrupt=False)

    def _fell_silent(self, address: Address, now: Now) -> list[MembershipStep]:
        self._drop(address)
        self._silent.fell_silent(address, now)
        departures = self._report_departure(address, now, abrupt=True)
        return [NeighbourLost(address, abrupt=True), *departures, *self._repair(now)]

    def _report_departure(self, broker: Address, now: Now, *, abrupt: bool) -> list[MembershipStep]:
        number, ttl = next(self._numbers), self._settings.departure_ttl
        key = (broker, number)
        return [
            SendDeparted(to, broker, number, ttl - 1, abrupt)
            for to in self._flood.spread(key, ttl, None, self.neighbours, now)
        ]

    # Repairing

    def _repair(self, now: Now) -> list[MembershipStep]:
        """Searches again with too few neighbours; draws another random one if it was lost."""
        if self._has_left or not self._was_member or self._search is not None:
            return []
        if len(self.neighbours) < self._floor:
            return self._look_again(now)
        if self.random is not None and self.random not in self.neighbours:
            return self._draw_another(now)
        return []

    def _plan_look(self, now: Now) -> None:
        """With too few neighbours, schedules a search: at once if there are new candidates."""
        if self._search is not None or not self._was_member:
            return
        if len(self.neighbours) < self._floor:
            wait_ms = 0.0 if self._has_news else self._settings.look_again_ms
            due_ms = now.steady_ms + wait_ms
            self._look_ms = due_ms if self._look_ms is None else min(self._look_ms, due_ms)

    def _look_again(self, now: Now) -> list[MembershipStep]:
        """Searches among all known members; joins to the remaining neighbours name others."""
        self._has_news = False
        joins: list[MembershipStep] = [
            SendJoin(neighbour, next(self._numbers)) for neighbour in self.neighbours
        ]
        strangers = self._known.besides(self.neighbours)
        if not strangers:
            self._look_ms = now.steady_ms + self._settings.look_again_ms
            return joins
        return joins + self._look(strangers, now, needed=1)

    def _draw_another(self, now: Now) -> list[MembershipStep]:
        """Draws uniformly from all known members that are not silent, and the neighbours; only from
        the neighbours if there is no room.
        """
        strangers = self._known.besides(self.neighbours)
        alive = [one for one in strangers if one not in self._silent]
        full = len(self.neighbours) >= self._settings.at_most
        drawn = self._chance.choice([*self.neighbours, *(() if full else alive)])
        if drawn in self.neighbours:
            self.random = drawn
            return []
        return self._ask([drawn], now, random=drawn)

    def _ping_or_join(self, ping: SendPing) -> SendPing | SendJoin:
        """The ping, or now and then a Join, which is answered too: the neighbour may have restarted
        without state, or its parting was lost.
        """
        if self._chance.random() >= _JOIN_SHARE:
            return ping
        return SendJoin(ping.to, ping.number, self._by_hand is True)

    def _was_parted_from(self, now: Now) -> list[MembershipStep]:
        """Handles a parting. A member with other neighbours does not search at once, because in a
        full network partings would go round forever.
        """
        if 0 < len(self.neighbours) < self._floor:
            self._plan_look(now)
            return []
        return self._repair(now)

    def _came_back(self, address: Address, now: Now) -> list[MembershipStep]:
        if address in self.neighbours or self._search is not None or self._has_left:
            return []
        return self._ask([address], now)
