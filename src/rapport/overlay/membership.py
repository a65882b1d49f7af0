"""Who my neighbours are: joining, watching, departures and the way back, in one machine.
[CX-4, EN-10]

Choosing neighbours from a list: the quickest to answer, and one by chance. [CX-4]

The greedy protocol of the source: three pings each, the lowest mean latencies. Those that are near
may all be near to each other and far from the rest, so one place is kept for one that is drawn
uniformly from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from rapport.kernel.chance import Chance
from rapport.overlay.liveness import Liveness, LostNeighbour, RoundTrip
from rapport.overlay.membership_steps import (
    PARTING,
    Admission,
    Isolated,
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
_ASKED_AGAIN = 1 / 16
"""Of the pings to neighbours so many are Joins instead, drawn by chance."""


class Membership:
    """The neighbours of one member. Every input gives the steps to carry out, in order.

    Neighbourhood is mutual as far as messages arrive, and again after some pings where one was
    lost: a few of them ask the neighbour once more to be one. A full member makes room for one that
    asks by parting from a neighbour, so newcomers always get in. One neighbour is kept that was
    drawn uniformly from all known, because those that are near alone may split the network.
    Those that fell silent are pinged now and then, so a healed partition grows together and a
    restarted broker is found.
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
        "heard_from",
        "heard_ms",
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
        """`former`: neighbours of a life before, which are asked as well as the list; without
        `watching` neighbours are not pinged before `monitor`.
        """
        self.neighbours: tuple[Address, ...] = ()
        """Whom to talk to; replaced, never changed, when it changes."""
        self.random: Address | None = None
        """The neighbour that was drawn by chance."""
        self._own, self._settings, self._chance = own, settings, chance
        self._watching, self._has_left = watching, False
        self._was_member = bool(former)
        self._numbers = count(chance.getrandbits(32) + 1)
        self._known = KnownMembers(own, settings.known)
        self._known.learn(former)
        self._liveness = Liveness(settings, chance, numbers=self._numbers)
        # Needed with each message, so at no more than one call's cost.
        self.heard_from = self._liveness.heard
        """Any message came from an address: a sign of life. About 0.1 microseconds."""
        self.heard_ms = self._liveness.heard_ms
        """What `heard_from` writes: when each that is watched was last heard."""
        self.timeout_ms = self._liveness.timeout_ms
        """How long to wait for an answer of a neighbour (200 ms for a stranger)."""
        self.slowest_ms = self._liveness.slowest_ms
        """The longest mean round trip to one of these; infinite when one was never measured."""
        self._flood = Flood(SeenFilter(_DEPARTURES, _DEPARTURE_MS))
        self._search: NeighbourSearch | None = None
        self._floor, self._wished = settings.at_least, settings.at_most
        self._needed, self._has_news = 1, False
        self._by_hand: bool | None = None
        """Whether the neighbours are given by hand; None before anybody said."""
        self._look_ms: float | None = None
        self._silent = ReconnectSchedule(settings, chance, self._numbers)

    def start(self, candidates: Sequence[Address], now: Now) -> list[MembershipStep]:
        """Looks for neighbours in this list (and among former ones); ends with JoinedNetwork or
        Alone. Also what a controller's `join` does, with a new list at any time.
        """
        self._has_left = self._by_hand = False
        self._known.learn(candidates)
        self._floor, self._wished = self._settings.at_least, self._settings.at_most
        named = set(candidates) - {self._own}
        if self._was_member and not self.neighbours:
            # It is back: whoever is known will do, and it goes on trying.
            return self._look(self._known.besides(()), now, needed=1)
        # A list that is shorter than at_least can only mean all of it.
        return self._look(list(candidates), now, needed=min(self._floor, len(named)))

    def connect(self, brokers: Sequence[Address], now: Now) -> list[MembershipStep]:
        """Asks exactly these to be neighbours, whatever their latency: a topology given by hand.
        Nobody random is added, and no others are looked for while two of them (or all) are there.
        Ends with JoinedNetwork or Alone.
        """
        wanted = [broker for broker in dict.fromkeys(brokers) if broker != self._own]
        self._has_left = False
        self._known.learn(wanted)
        self._given_by_hand(len(set(wanted) | set(self.neighbours)))
        strangers = [broker for broker in wanted if broker not in self.neighbours]
        return self._ask(strangers, now)  # they hear that it is by hand

    def adopt(self, neighbours: Sequence[Address], now: Now) -> None:
        """Has these as neighbours at once, without a word and whatever `at_most`: simulations of a
        given topology.
        """
        self._was_member, self._has_left = True, False
        for address in neighbours:
            self._gain(address, now)
        self._given_by_hand(len(self.neighbours))

    def answered(self, by: Address, number: int, now: Now) -> list[MembershipStep]:
        """A Pong with that number came."""
        self._liveness.answered(by, number, now)
        if self._silent.answered(by, number):
            return self._came_back(by, now)
        if self._search is not None and self._search.answered(by, number, now):
            return self._went_on([], now)
        return []

    def heard_of(self, address: Address) -> None:
        """Another told of this member: somebody to ask when neighbours are gone, and those that
        they knew with them. About 0.1 microseconds.
        """
        self._known.hear_of(address)

    def asked_to_join(self, by: Address, now: Now, *, by_hand: bool = False) -> Admission:
        """A Join came; the admission says what Welcome to answer. Refused only by one that left.
        Who was only ever asked looks for others too, unless the topology is drawn by hand.
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
        """A Welcome came."""
        if self._known.learn(others):
            self._has_news = True
        if self._has_left:
            return [self._parting(by)] if accepted else []
        search = self._search
        asked = search is not None and search.welcomed(by, accepted, now)
        steps: list[MembershipStep] = []
        if accepted:
            steps = self._take(by, search if asked else None, now)
        else:
            self._silent.forget(by)
            if by in self.neighbours:  # it has left, and its good-bye was lost
                self._drop(by)
                self._known.forget(by)
                steps = [NeighbourLost(by, abrupt=False), *self._repair(now)]
        self._plan_look(now)
        return self._went_on(steps, now)

    def departed(
        self, broker: Address, number: int, ttl: int, abrupt: bool, came_from: Address, now: Now
    ) -> list[MembershipStep]:
        """A Departed came; `number` is its id. Passed on while its ttl lasts, each one once. That a
        neighbour fell silent is not believed before a round of our own pings stays unanswered.
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
        """Pings all neighbours from now on, each for the first time within a period (needed only
        when `watching` was turned off).
        """
        self._watching = True
        for address in self.neighbours:
            self._liveness.watch(address, now)
        return []

    @property
    def has_left(self) -> bool:
        """Whether it said good-bye, and was not told since to join again."""
        return self._has_left

    def leave(self, now: Now) -> list[MembershipStep]:
        """Says good-bye; no neighbours, no admissions until `start` or `connect`. A search under
        way ends with Alone.
        """
        steps = self._tell_departed(self._own, now, abrupt=False)
        for address in self.neighbours:
            self._drop(address)
        if self._search is not None:  # whoever waits for its end hears of it
            steps.append(Isolated(0, self._needed))
        self._has_left, self._was_member = True, False
        self._search = self._look_ms = self.random = None
        self._silent.forget_all()
        return steps

    def tick(self, now: Now) -> list[MembershipStep]:
        """What is due."""
        steps: list[MembershipStep] = []
        for step in self._liveness.tick(now):
            if isinstance(step, LostNeighbour):
                steps += self._fell_silent(step.address, now)
            else:
                steps.append(self._perhaps_asked_again(step))
        if self._search is not None:
            self._search.tick(now)
            steps = self._went_on(steps, now)
        if self._look_ms is not None and now.steady_ms >= self._look_ms:
            self._look_ms = None
            steps += self._repair(now)
        return steps + self._silent.tick(now)

    def next_due_ms(self) -> float | None:
        """The steady time at which `tick` has something to do; None: nothing before an input."""
        due_ms, revisit_ms = self._liveness.next_due_ms(), self._silent.next_due_ms()
        if self._search is None and self._look_ms is None and revisit_ms is None:
            return due_ms  # nearly always, so it is quick
        search_ms = None if self._search is None else self._search.next_due_ms()
        dues = (due_ms, search_ms, self._look_ms, revisit_ms)
        return min((due for due in dues if due is not None), default=None)

    def mean_ms(self, address: Address) -> float | None:
        """Mean of the last round trips to that neighbour, for people."""
        return self._liveness.mean_ms(address)

    # Looking for neighbours

    def _given_by_hand(self, count: int) -> None:
        self._by_hand = True
        self._floor = min(self._settings.at_least, max(count, 1))
        self._wished = max(count, self._settings.at_least)

    def _look(self, candidates: list[Address], now: Now, *, needed: int) -> list[MembershipStep]:
        """Looks for neighbours; it is joined when it has `needed` of them."""
        strangers = [
            address
            for address in dict.fromkeys(candidates)
            if address not in self.neighbours and address != self._own
        ]
        have = len(self.neighbours)
        self._look_ms, self._needed = None, max(needed, 1)
        self._search = NeighbourSearch(self._settings, self._chance, self._numbers)
        self._search.look(strangers, needed - have, max(self._wished - have, 1), now)
        return self._went_on([], now)

    def _ask(
        self, addresses: list[Address], now: Now, *, random: Address | None = None
    ) -> list[MembershipStep]:
        self._needed = 1
        self._search = NeighbourSearch(self._settings, self._chance, self._numbers)
        by_hand = self._by_hand is True and random is None
        self._search.ask_exactly(addresses, now, random=random, by_hand=by_hand)
        return self._went_on([], now)

    def _went_on(self, steps: list[MembershipStep], now: Now) -> list[MembershipStep]:
        """The steps, with what the search for neighbours does next and what its end means."""
        search = self._search
        if search is None:
            return steps
        steps += search.steps
        search.steps = []
        if search.ended is None:
            return steps
        self._search = None
        for address in search.silent:
            self._silent.fell_silent(address, now)
        return [*steps, self._result(search.ended.answered, search.random, now)]

    def _result(self, answered: int, drawn: Address | None, now: Now) -> MembershipStep:
        joined = len(self.neighbours) >= self._needed
        self._was_member = self._was_member or joined
        self._plan_look(now)
        if not joined:
            return Isolated(answered, self._needed)
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
        """One has us as a neighbour, so it is one too, or hears that there is no room: others may
        have come since it was asked.
        """
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
        """Makes room for one that asks: any neighbour but the random one goes, and is told."""
        parted = self._chance.choice([one for one in self.neighbours if one != self.random])
        self._drop(parted)
        return [self._parting(parted), NeighbourLost(parted, abrupt=False)]

    def _parting(self, to: Address) -> SendDeparted:
        return SendDeparted(to, self._own, next(self._numbers), PARTING, abrupt=False)

    def _fell_silent(self, address: Address, now: Now) -> list[MembershipStep]:
        self._drop(address)
        self._silent.fell_silent(address, now)
        told = self._tell_departed(address, now, abrupt=True)
        return [NeighbourLost(address, abrupt=True), *told, *self._repair(now)]

    def _tell_departed(self, broker: Address, now: Now, *, abrupt: bool) -> list[MembershipStep]:
        number, ttl = next(self._numbers), self._settings.departure_ttl
        key = (broker, number)
        return [
            SendDeparted(to, broker, number, ttl - 1, abrupt)
            for to in self._flood.spread(key, ttl, None, self.neighbours, now)
        ]

    # Repairing

    def _repair(self, now: Now) -> list[MembershipStep]:
        """Too few neighbours: looks again among all known. The random one lost: draws another."""
        if self._has_left or not self._was_member or self._search is not None:
            return []
        if len(self.neighbours) < self._floor:
            return self._look_again(now)
        if self.random is not None and self.random not in self.neighbours:
            return self._draw_another(now)
        return []

    def _plan_look(self, now: Now) -> None:
        """With too few neighbours: looks again after a while, at once when there are others to ask
        than the last time.
        """
        if self._search is not None or not self._was_member:
            return
        if len(self.neighbours) < self._floor:
            wait_ms = 0.0 if self._has_news else self._settings.look_again_ms
            due_ms = now.steady_ms + wait_ms
            self._look_ms = due_ms if self._look_ms is None else min(self._look_ms, due_ms)

    def _look_again(self, now: Now) -> list[MembershipStep]:
        """Among all known; those that are left are asked whom they know (a neighbour that is asked
        to join says so).
        """
        self._has_news = False
        asked: list[MembershipStep] = [
            SendJoin(neighbour, next(self._numbers)) for neighbour in self.neighbours
        ]
        strangers = self._known.besides(self.neighbours)
        if not strangers:
            self._look_ms = now.steady_ms + self._settings.look_again_ms
            return asked
        return asked + self._look(strangers, now, needed=1)

    def _draw_another(self, now: Now) -> list[MembershipStep]:
        """Uniformly from all known that are not silent; a neighbour will do as well, and must when
        there is no room.
        """
        strangers = self._known.besides(self.neighbours)
        alive = [one for one in strangers if one not in self._silent]
        full = len(self.neighbours) >= self._settings.at_most
        drawn = self._chance.choice([*self.neighbours, *(() if full else alive)])
        if drawn in self.neighbours:
            self.random = drawn
            return []
        return self._ask([drawn], now, random=drawn)

    def _perhaps_asked_again(self, ping: SendPing) -> SendPing | SendJoin:
        """The ping of a neighbour, or a Join instead, which is as good a sign of life: the other
        may have begun anew and remember nobody, or its word that it parted was lost.
        """
        if self._chance.random() >= _ASKED_AGAIN:
            return ping
        return SendJoin(ping.to, ping.number, self._by_hand is True)

    def _was_parted_from(self, now: Now) -> list[MembershipStep]:
        """Another needed the place. Who still has a neighbour does not ask for it back at once:
        in a full network that would go round for ever.
        """
        if 0 < len(self.neighbours) < self._floor:
            self._plan_look(now)
            return []
        return self._repair(now)

    def _came_back(self, address: Address, now: Now) -> list[MembershipStep]:
        if address in self.neighbours or self._search is not None or self._has_left:
            return []
        return self._ask([address], now)
