"""Simulation of SWIM membership: detection times, false positives and load, measured as in the
SWIM, memberlist and Lifeguard publications. [EN-10]
"""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport.overlay.swim import Swim
from rapport.overlay.swim_members import Change
from rapport.overlay.swim_protocol import SwimSettings, decode, encode
from rapport.transport.base import Address
from rapport_lab.scheduler import Planned, Scheduler, without_collector
from rapport_lab.simulated_transport import SimulatedLink, SimulatedMedium


class MembershipReport(NamedTuple):
    """A change that one node noticed in another, with its time."""

    time_ms: float
    by: Address
    change: Change


class _Node:
    """A member on its endpoint. A starved one handles messages only at times."""

    def __init__(self, network: SwimNetwork, swim: Swim) -> None:
        self.swim, self._network = swim, network
        self._endpoint = network.medium.open(swim.own)
        self._endpoint.receive(self._take)
        self._planned: Planned | None = None
        self._planned_ms = float("inf")
        self._unread: list[tuple[bytes, Address]] = []
        self._is_asleep = self._is_dead = False

    def settle(self) -> None:
        """Sends the outbox, records changes, plans the next tick."""
        swim, network = self.swim, self._network
        for message, to in swim.outbox:
            self._endpoint.send(encode(message), to)
        swim.outbox.clear()
        if swim.changes:
            now_ms = network.scheduler.time_ms
            network.told += [MembershipReport(now_ms, swim.own, change) for change in swim.changes]
            swim.changes.clear()
        due_ms = swim.next_due_ms()
        if due_ms is not None and due_ms < self._planned_ms:
            if self._planned is not None:
                network.scheduler.cancel(self._planned)
            self._planned_ms = due_ms
            self._planned = network.scheduler.at(due_ms, self._tick)

    def kill(self) -> None:
        """Stops without a message."""
        self._is_dead = True
        self._endpoint.leave()

    def starve(self, asleep_ms: float, awake_ms: float) -> None:
        """Gets CPU time only now and then."""
        scheduler = self._network.scheduler
        self._is_asleep = True

        def wake() -> None:
            self._is_asleep = False
            self._tick()  # before the answers: the worst order
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
        link: SimulatedLink | None = None,
        settings: SwimSettings | None = None,
    ) -> None:
        self.settings = settings or SwimSettings()
        self.scheduler = Scheduler()
        self.chance = Chance(seed)
        link = link or SimulatedLink(delay_ms=1, jitter_ms=2)
        self.medium = SimulatedMedium(self.scheduler, Chance(seed + 1), link)
        self.told: list[MembershipReport] = []
        self._nodes: dict[Address, _Node] = {}
        for number in range(nodes):
            self.add(number, known=() if number == 0 else (self.address(0),))

    def address(self, number: int) -> Address:
        return ("n", number + 1)

    def swim(self, number: int) -> Swim:
        return self._nodes[self.address(number)].swim

    def add(self, number: int, known: tuple[Address, ...] = (), name: str = "") -> None:
        """Starts a new member, or restarts a killed one."""
        own = self.address(number)
        chance = Chance(self.chance.getrandbits(64))
        swim = Swim(name or f"n{number}", own, chance, self.settings)
        node = self._nodes[own] = _Node(self, swim)
        swim.start(self.scheduler.now, known)
        node.settle()

    def kill(self, number: int) -> None:
        self._nodes[self.address(number)].kill()

    def leave(self, number: int) -> None:
        """Lets a member leave."""
        node = self._nodes[self.address(number)]
        node.swim.leave()
        node.settle()
        node.kill()

    def starve(self, number: int, asleep_ms: float, awake_ms: float = 20) -> None:
        """Lets a member run only for `awake_ms` after each sleep."""
        self._nodes[self.address(number)].starve(asleep_ms, awake_ms)

    def run_periods(self, periods: float) -> None:
        self.scheduler.run(self.scheduler.time_ms + periods * self.settings.period_ms)

    def agree(self, *numbers: int) -> bool:
        """Whether each of these (default: all) has exactly these as present members."""
        chosen = [self.address(one) for one in numbers] or list(self._nodes)
        return all({own, *self._nodes[own].swim.present} == set(chosen) for own in chosen)

    def noticed(self, kind: str, number: int, since_ms: float = 0) -> dict[Address, float]:
        """The first time each member noticed that change of one member."""
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


_SETTLE_PERIODS, _DEATH_PERIODS = 12, 30


class DetectionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Times in probe periods since a member died: mean over the deaths, and the longest."""

    nodes: int
    loss: float
    starved: int
    deaths: int
    suspected: float
    """Until the first suspects it."""
    declared: float
    """Until the first calls it dead."""
    all_know: float
    longest: float
    """Until all others do, in the worst case."""
    missed: int
    """Pairs that did not know it at the end."""
    false_positives: int
    """Living members that any healthy one called dead: pairs."""
    false_of_starved: int
    """Starved members that any healthy one called dead: pairs."""


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one node sends per period while nothing happens."""

    nodes: int
    messages: float
    bytes: float


def measure_detection(
    nodes: int,
    *,
    loss: float = 0.0,
    deaths: int = 10,
    starved: int = 0,
    seed: int = 1,
    settings: SwimSettings | None = None,
) -> DetectionResult:
    """Lets one after the other die in networks of so many; costs about nodes * deaths * 2 ms.

    Raises InvalidInput (`overlay.bad_study`) when nobody dies, or nobody would be left to see it.
    """
    if deaths < 1:
        raise _bad_study(f"there are {deaths} deaths to measure", "one death or more")
    if starved < 0 or nodes < 2 + starved:
        raise _bad_study(
            f"of {nodes} nodes, {starved} starved, nobody sees the one that dies",
            "two nodes or more beside the starved: one that dies and one that notices",
        )
    link = SimulatedLink(delay_ms=1, jitter_ms=2, loss=loss)
    runs = []
    with without_collector():
        for death in range(deaths):
            network = SwimNetwork(nodes, seed=seed + 100 * death, link=link, settings=settings)
            runs.append(_let_die(network, nodes, starved))
    return DetectionResult(
        nodes=nodes,
        loss=loss,
        starved=starved,
        deaths=deaths,
        suspected=fmean(run.suspected for run in runs),
        declared=fmean(run.declared for run in runs),
        all_know=fmean(run.all_know for run in runs),
        longest=max(run.all_know for run in runs),
        missed=sum(run.missed for run in runs),
        false_positives=sum(run.false_positives for run in runs),
        false_of_starved=sum(run.false_of_starved for run in runs),
    )


def measure_load(nodes: int, *, periods: int = 60, seed: int = 1) -> LoadResult:
    """Counts what is sent once all know each other and nothing happens; raises InvalidInput
    (`overlay.bad_study`) without a node or a period.
    """
    if min(nodes, periods) < 1:
        raise _bad_study(f"{nodes} nodes in {periods} periods send nothing", "one or more of each")
    network = SwimNetwork(nodes, seed=seed)
    network.run_periods(3 * _SETTLE_PERIODS)
    counters = network.medium.counters
    sent, sent_bytes = counters.sent, counters.bytes
    with without_collector():
        network.run_periods(periods)
    per = nodes * periods
    return LoadResult(
        nodes=nodes,
        messages=(counters.sent - sent) / per,
        bytes=(counters.bytes - sent_bytes) / per,
    )


def _bad_study(what: str, hint: str) -> InvalidInput:
    return InvalidInput(what, code="overlay.bad_study", hint=hint)


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    suspected: float
    declared: float
    all_know: float
    missed: int
    false_positives: int
    false_of_starved: int


def _let_die(network: SwimNetwork, nodes: int, starved: int) -> _Run:
    """The last node dies; the first ones are starved."""
    period_ms, dying = network.settings.period_ms, nodes - 1
    network.run_periods(_SETTLE_PERIODS)
    for number in range(starved):
        network.starve(number, asleep_ms=3 * period_ms)
    network.run_periods(network.chance.random() * 2)
    died_ms = network.scheduler.time_ms
    network.kill(dying)
    network.run_periods(_DEATH_PERIODS)
    slow = {network.address(number) for number in range(starved)}
    suspected = network.noticed("suspected", dying, died_ms).values()
    declared = network.noticed("failed", dying, died_ms)
    in_time = [time_ms for by, time_ms in declared.items() if by not in slow]

    def periods(time_ms: float) -> float:
        return (time_ms - died_ms) / period_ms

    wrong = [
        told.change.address in slow
        for told in network.told
        if told.change.kind == "failed"
        and told.by not in slow
        and told.change.address != network.address(dying)
    ]
    return _Run(
        suspected=periods(min(suspected, default=network.scheduler.time_ms)),
        declared=periods(min(in_time, default=network.scheduler.time_ms)),
        all_know=periods(max(in_time, default=network.scheduler.time_ms)),
        missed=nodes - 1 - starved - len(in_time),
        false_positives=wrong.count(False),
        false_of_starved=wrong.count(True),
    )
