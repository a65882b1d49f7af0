"""Datagrams on simulated time: delay, loss, duplication, reordering, range and partitions, from one
seed. [CX-7, EN-10]

It uses no asyncio: a datagram is a call planned on the scheduler. A handler that raises ends the
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport.transport.base import MAX_DATAGRAM, Address, DatagramHandler, check_size
from rapport_lab.memory_transport import check_is_free
from rapport_lab.scheduler import Scheduler

Position = tuple[float, float]
"""Metres east and north of an origin."""

Whereabouts = Callable[[Address], Position | None]
"""The current position of an address; None: out of range of all."""


@dataclass(frozen=True, slots=True)
class SimulatedLink:
    """The properties of a link."""

    delay_ms: float = 1.0
    jitter_ms: float = 0.0
    """Upper limit of a uniformly random addition to the delay, which may reorder datagrams."""
    loss: float = 0.0
    """The probability that a datagram is lost."""
    duplication: float = 0.0
    """The probability that it arrives twice, with independent delays."""

    def __post_init__(self) -> None:
        chances = (self.loss, self.duplication)
        if min(self.delay_ms, self.jitter_ms, *chances) < 0 or max(chances) > 1:
            raise InvalidInput(
                f"no such link: {self}",
                code="transport.bad_link",
                hint="times of 0 ms or more, chances from 0 to 1",
            )


@dataclass(slots=True)
class MediumCounters:
    """Monotonic counters of datagrams."""

    sent: int = 0
    """Counted per receiver in range."""
    arrived: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_range: int = 0
    cut_off: int = 0
    nobody: int = 0
    """No endpoint or handler was at the address on arrival."""
    bytes: int = 0
    """Bytes sent."""


class SimulatedMedium:
    """A network of simulated endpoints; who is in range of whom may change at any time."""

    def __init__(
        self,
        scheduler: Scheduler,
        chance: Chance,
        link: SimulatedLink | None = None,
        *,
        range_metres: float | None = None,
        positions: Mapping[Address, Position] | Whereabouts | None = None,
        max_datagram: int = MAX_DATAGRAM,
    ) -> None:
        """Without `range_metres` everybody reaches everybody; with it `positions` says where each
        address is: a mapping or a function, asked whenever something is sent.
        """
        self.link = link or SimulatedLink()
        self.counters = MediumCounters()
        self._scheduler, self._chance = scheduler, chance
        self._range_metres = range_metres
        self._position_of = _as_function(positions)
        self._max_datagram = max_datagram
        self._places: dict[Address, SimulatedEndpoint] = {}
        self._links: dict[tuple[Address, Address], SimulatedLink] = {}
        self._groups: dict[Address, int] | None = None
        self._number = 0

    def open(self, address: Address | None = None) -> SimulatedEndpoint:
        """A new endpoint, at a free address unless one is named; raises DuplicateName."""
        if address is None:
            self._number += 1
            address = ("simulated", self._number)
        check_is_free(address, self._places)
        endpoint = SimulatedEndpoint(self, address, self._max_datagram)
        self._places[address] = endpoint
        return endpoint

    def set_link(self, sender: Address, to: Address, link: SimulatedLink | None) -> None:
        """What datagrams of one to the other meet, in this direction; none: what all meet."""
        if link is None:
            self._links.pop((sender, to), None)
        else:
            self._links[sender, to] = link

    def cut(self, groups: Iterable[Iterable[Address]]) -> None:
        """Parts the network: only within a group datagrams arrive, those under way included.
        Who is in no group is alone with the others in none.
        """
        self._groups = {
            address: number for number, group in enumerate(groups, start=1) for address in group
        }

    def heal(self) -> None:
        """Ends the partition."""
        self._groups = None

    def carry(self, datagram: bytes, sender: Address, to: Address) -> None:
        """Sends a datagram on its way."""
        if self._is_in_range(sender, to):
            self._pass(datagram, sender, to)
        else:
            self.counters.out_of_range += 1

    def carry_to_all(self, datagram: bytes, sender: Address) -> None:
        """Sends a datagram to every other endpoint in range; each copy has a fate of its own.
        Looks at every endpoint.
        """
        for to in list(self._places):
            if to != sender and self._is_in_range(sender, to):
                self._pass(datagram, sender, to)

    def remove(self, address: Address) -> None:
        """Forgets an endpoint; what is under way to it is lost."""
        self._places.pop(address, None)

    def _pass(self, datagram: bytes, sender: Address, to: Address) -> None:
        counters = self.counters
        counters.sent += 1
        counters.bytes += len(datagram)
        link = self._links.get((sender, to), self.link) if self._links else self.link
        if link.loss and self._chance.random() < link.loss:
            counters.lost += 1
            return
        self._plan(datagram, sender, to, link)
        if link.duplication and self._chance.random() < link.duplication:
            counters.duplicated += 1
            self._plan(datagram, sender, to, link)

    def _plan(self, datagram: bytes, sender: Address, to: Address, link: SimulatedLink) -> None:
        delay_ms = link.delay_ms
        if link.jitter_ms:
            delay_ms += self._chance.random() * link.jitter_ms
        self._scheduler.after(delay_ms, self._arrive, datagram, sender, to)

    def _arrive(self, datagram: bytes, sender: Address, to: Address) -> None:
        groups = self._groups
        if groups is not None and groups.get(sender, 0) != groups.get(to, 0):
            self.counters.cut_off += 1
            return
        place = self._places.get(to)
        if place is None or place.handler is None:
            self.counters.nobody += 1
            return
        self.counters.arrived += 1
        place.handler(datagram, sender)

    def _is_in_range(self, sender: Address, to: Address) -> bool:
        if self._range_metres is None:
            return True
        here, there = self._position_of(sender), self._position_of(to)
        if here is None or there is None:
            return False
        east, north = here[0] - there[0], here[1] - there[1]
        return east * east + north * north <= self._range_metres * self._range_metres


class SimulatedEndpoint:
    """An endpoint of a SimulatedMedium."""

    def __init__(self, medium: SimulatedMedium, address: Address, max_datagram: int) -> None:
        self.address, self.max_datagram = address, max_datagram
        self.handler: DatagramHandler | None = None
        self._medium = medium
        self._is_closed = False

    def send(self, datagram: bytes, to: Address) -> None:
        """Towards one address; raises InvalidInput when larger than `max_datagram`."""
        check_size(datagram, self.max_datagram)
        if not self._is_closed:
            self._medium.carry(datagram, self.address, to)

    def broadcast(self, datagram: bytes) -> None:
        """To every other endpoint in range."""
        check_size(datagram, self.max_datagram)
        if not self._is_closed:
            self._medium.carry_to_all(datagram, self.address)

    def receive(self, handler: DatagramHandler) -> None:
        """Calls the handler for each datagram from now on."""
        if not self._is_closed:
            self.handler = handler

    async def close(self) -> None:
        """Leaves the medium."""
        self.leave()

    def leave(self) -> None:
        """As `close`, for simulations that have no loop."""
        self._is_closed = True
        self.handler = None
        self._medium.remove(self.address)


def _as_function(positions: Mapping[Address, Position] | Whereabouts | None) -> Whereabouts:
    if positions is None:
        return lambda address: None
    return positions.get if isinstance(positions, Mapping) else positions
