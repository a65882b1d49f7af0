"""One search for neighbours: choose by latency, ask each, take another for one that will not.
[CX-4]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.kernel.chance import Chance
from rapport.overlay.hops import Failed, Hops
from rapport.overlay.joining import Joined, Joining
from rapport.overlay.latency import UNKNOWN_MS, RoundTrip
from rapport.overlay.membership_steps import MembershipSettings, SendJoin, SendPing
from rapport.transport.base import Address, Now


class Ended(msgspec.Struct, frozen=True, gc=False):
    """How it ended: of the candidates so many answered a ping or a Join."""

    answered: int


class NeighbourSearch:
    """A search that ends by itself, whatever is lost; `ended` is there when it did.

    Inputs put what is to be sent into `steps`; who calls takes them from there.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_by_hand",
        "_chance",
        "_joining",
        "_numbers",
        "_reserve",
        "_settings",
        "_trips",
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
        self.ended: Ended | None = None
        self.random: Address | None = None
        """The one that is asked because it was drawn by chance."""
        self.silent: list[Address] = []
        """Those of `ask_exactly` from which nothing was heard."""
        self._joining: Joining | None = None
        self._asked = Hops()
        self._reserve: list[Address] = []
        self._trips: dict[Address, RoundTrip] = {}
        self._answered = 0
        self._by_hand = False

    def look(self, candidates: Sequence[Address], at_least: int, most: int, now: Now) -> None:
        """Pings the candidates and asks the nearest and one by chance, at most so many; nobody when
        fewer than `at_least` answer.
        """
        settings = self._settings
        self._joining = Joining(
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
        """Asks these, without pings."""
        self.random, self._by_hand = random, by_hand
        for address in addresses:
            self._ask(address, now)
        self._settle()

    def answered(self, by: Address, number: int, now: Now) -> bool:
        """A Pong came; false when it was none of this search's."""
        if self._joining is None or not self._joining.answered(by, number, now):
            return False
        self._chosen(now)
        return True

    def welcomed(self, by: Address, accepted: bool, now: Now) -> bool:
        """A Welcome came; false when it was not asked for."""
        if not self._asked.acknowledged(by, by):
            return False
        if self._joining is None:
            self._answered += 1
        if not accepted:
            self._ask_another(by, now)
        self._settle()
        return True

    def tick(self, now: Now) -> None:
        """What is due."""
        if self._joining is not None and self._joining.result is None:
            self.steps += self._joining.tick(now)
            self._chosen(now)
        for late in self._asked.due(now):
            if not isinstance(late, Failed):
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
        """What its pings measured."""
        return self._trips.get(address)

    def _chosen(self, now: Now) -> None:
        """Asks those that were chosen, when they are."""
        joining = self._joining
        if joining is None or joining.result is None or self.ended is not None:
            return
        self._answered = joining.answered_by()
        if isinstance(joining.result, Joined):
            self._trips = joining.result.round_trips
            self._reserve = list(joining.result.reserve)
            self.random = joining.result.random
            for address in joining.result.neighbours:
                self._ask(address, now)
        self._settle()

    def _ask(self, address: Address, now: Now) -> None:
        trip = self._trips.get(address)
        step = SendJoin(address, next(self._numbers), self._by_hand)
        self._asked.sent(address, address, step, now, trip.timeout_ms() if trip else UNKNOWN_MS)
        self.steps.append(step)

    def _ask_another(self, instead_of: Address, now: Now) -> None:
        """The nearest of the reserve; for the random one a random one."""
        if not self._reserve:
            return
        if instead_of == self.random:
            self.random = self._chance.choice(self._reserve)
            self._reserve.remove(self.random)
            self._ask(self.random, now)
        else:
            self._ask(self._reserve.pop(0), now)

    def _settle(self) -> None:
        if not len(self._asked) and self.ended is None:
            self.ended = Ended(self._answered)
