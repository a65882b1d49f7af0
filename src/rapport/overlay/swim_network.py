"""A network of members on simulated time, to test and to measure membership. [EN-10]"""

from __future__ import annotations

from typing import NamedTuple

from rapport.kernel.chance import Chance
from rapport.kernel.simulation import Planned, Scheduler
from rapport.overlay.swim import Swim
from rapport.overlay.swim_messages import decode, encode
from rapport.overlay.swim_roster import Change
from rapport.overlay.swim_settings import SwimSettings
from rapport.transport.base import Address
from rapport.transport.simulated import Link, SimulatedMedium


class Told(NamedTuple):
    """What one node noticed of another, and when."""

    time_ms: float
    by: Address
    change: Change


class _Node:
    """A machine at its endpoint. A starved one hears and does nothing but at times."""

    def __init__(self, network: SwimNetwork, swim: Swim) -> None:
        self.swim, self._network = swim, network
        self._endpoint = network.medium.open(swim.own)
        self._endpoint.receive(self._take)
        self._planned: Planned | None = None
        self._planned_ms = float("inf")
        self._unread: list[tuple[bytes, Address]] = []
        self._is_asleep = self._is_dead = False

    def settle(self) -> None:
        """Sends what is to be sent, notes what was noticed, plans the next tick."""
        swim, network = self.swim, self._network
        for message, to in swim.outbox:
            self._endpoint.send(encode(message), to)
        swim.outbox.clear()
        if swim.changes:
            now_ms = network.scheduler.time_ms
            network.told += [Told(now_ms, swim.own, change) for change in swim.changes]
            swim.changes.clear()
        due_ms = swim.next_due_ms()
        if due_ms is not None and due_ms < self._planned_ms:
            if self._planned is not None:
                network.scheduler.cancel(self._planned)
            self._planned_ms = due_ms
            self._planned = network.scheduler.at(due_ms, self._tick)

    def kill(self) -> None:
        """Is gone without a word."""
        self._is_dead = True
        self._endpoint.leave()

    def starve(self, asleep_ms: float, awake_ms: float) -> None:
        """Gets a processor only now and then."""
        scheduler = self._network.scheduler
        self._is_asleep = True

        def wake() -> None:
            self._is_asleep = False
            self._tick()  # first, as if nobody had answered meanwhile: the worst order
            unread, self._unread = self._unread, []
            for datagram, sender in unread:
                self._take(datagram, sender)
            scheduler.after(awake_ms, self.starve, asleep_ms, awake_ms)

        scheduler.after(asleep_ms, wake)

    def _take(self, datagram: bytes, sender: Address) -> None:
        if self._is_asleep:
            self._unread.append((datagram, sender))
        elif not self._is_dead:
            self.swim.handle(decode(datagram), sender, self._network.scheduler.now)
            self.settle()

    def _tick(self) -> None:
        self._planned, self._planned_ms = None, float("inf")
        if not self._is_asleep and not self._is_dead:
            self.swim.tick(self._network.scheduler.now)
            self.settle()


class SwimNetwork:
    """Members `n0`, `n1`, ... on one simulated medium."""

    def __init__(
        self,
        nodes: int,
        *,
        seed: int = 1,
        link: Link | None = None,
        settings: SwimSettings | None = None,
    ) -> None:
        self.settings = settings or SwimSettings()
        self.scheduler = Scheduler()
        self.chance = Chance(seed)
        link = link or Link(delay_ms=1, jitter_ms=2)
        self.medium = SimulatedMedium(self.scheduler, Chance(seed + 1), link)
        self.told: list[Told] = []
        self._nodes: dict[Address, _Node] = {}
        for number in range(nodes):
            self.add(number, known=() if number == 0 else (self.address(0),))

    def address(self, number: int) -> Address:
        """Of a member."""
        return ("n", number + 1)

    def swim(self, number: int) -> Swim:
        """The machine of a member."""
        return self._nodes[self.address(number)].swim

    def add(self, number: int, known: tuple[Address, ...] = (), name: str = "") -> None:
        """One more starts, or one that was killed starts anew."""
        own = self.address(number)
        chance = Chance(self.chance.getrandbits(64))
        swim = Swim(name or f"n{number}", own, chance, self.settings)
        node = self._nodes[own] = _Node(self, swim)
        swim.start(self.scheduler.now, known)
        node.settle()

    def kill(self, number: int) -> None:
        """One is gone without a word."""
        self._nodes[self.address(number)].kill()

    def leave(self, number: int) -> None:
        """One says goodbye and is gone."""
        node = self._nodes[self.address(number)]
        node.swim.leave()
        node.settle()
        node.kill()

    def starve(self, number: int, asleep_ms: float, awake_ms: float = 20) -> None:
        """One gets a processor only for so long after each sleep."""
        self._nodes[self.address(number)].starve(asleep_ms, awake_ms)

    def run_periods(self, periods: float) -> None:
        """Time goes on."""
        self.scheduler.run(self.scheduler.time_ms + periods * self.settings.period_ms)

    def agree(self, *numbers: int) -> bool:
        """Whether each of these (all when none is named) holds exactly these for present."""
        chosen = [self.address(one) for one in numbers] or list(self._nodes)
        return all({own, *self._nodes[own].swim.present} == set(chosen) for own in chosen)

    def noticed(self, kind: str, number: int, since_ms: float = 0) -> dict[Address, float]:
        """When each first noticed that of one member."""
        found: dict[Address, float] = {}
        for told in self.told:
            change = told.change
            if (
                change.kind == kind
                and change.address == self.address(number)
                and told.time_ms >= since_ms
            ):
                found.setdefault(told.by, told.time_ms)
        return found
