"""An IP network between nodes: delay, jitter, loss; who is at which address. [EN-11]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rapport.core.errors import DuplicateName, InvalidInput, TooLarge
from rapport.kernel.clock import Chance
from rapport.transport.base import Address
from rapport_lab.scheduler import Scheduler

Arrive = Callable[[int, Any, int], None]
"""Gets the sender's number, the message, and the receiver's number."""
Miss = Callable[[int, Any, Address, str], None]
"""Gets the sender's number, the message, where it was sent, and why it did not arrive."""


class IpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the network is like."""

    delay_ms: float = 20.0
    jitter_ms: float = 10.0
    """Added to the delay, evenly from 0 to this: messages may overtake each other."""
    loss: float = 0.0
    largest_bytes: int = 1_500

    def __post_init__(self) -> None:
        is_good = min(self.delay_ms, self.jitter_ms, self.largest_bytes - 1) >= 0
        if not is_good or not 0 <= self.loss <= 1:
            raise InvalidInput(
                f"no network is like this: {self}",
                code="ensemble.bad_ip_network",
                hint="times of 0 ms or more, a size above 0, a loss from 0 to 1",
            )


class IpCounters(msgspec.Struct):
    """What became of messages; sent = delivered + lost + cut_off + nobody + those under
    way."""

    sent: int = 0
    delivered: int = 0
    lost: int = 0
    cut_off: int = 0
    """The network was parted between the two."""
    nobody: int = 0
    """Nobody was at the address when it arrived."""
    bytes: int = 0


class IpNetwork:
    """Addresses of nodes, and what is under way between them."""

    def __init__(
        self, scheduler: Scheduler, chance: Chance, settings: IpSettings | None = None
    ) -> None:
        self.settings = settings or IpSettings()
        self.counters = IpCounters()
        self.sent_by: dict[int, int] = {}
        """Messages by the number of who sent them."""
        self.received_by: dict[int, int] = {}
        self.on_arrive: Arrive = _nobody
        self.on_miss: Miss | None = None
        self._scheduler, self._random = scheduler, chance.random
        self._numbers: dict[Address, int] = {}
        self._groups: Mapping[int, int] | None = None

    def open(self, number: int, address: Address) -> None:
        """A node is at an address from now on; raises DuplicateName when another one is."""
        if self._numbers.setdefault(address, number) != number:
            raise DuplicateName(
                f"a node is at {address} already",
                code="transport.address_taken",
                hint="give each node an address of its own",
            )

    def close(self, address: Address) -> None:
        """Nobody is there any more; what is under way to it is lost."""
        self._numbers.pop(address, None)

    def part(self, groups: Mapping[int, int] | None) -> None:
        """From now on only those with the same group reach each other, those under way included;
        without groups all do again.
        """
        self._groups = groups

    def send(self, number: int, message: Any, to: Address, size_bytes: int) -> None:
        """Sends a message on its way; raises TooLarge."""
        settings, counters = self.settings, self.counters
        if size_bytes > settings.largest_bytes:
            raise TooLarge(
                f"a message of {size_bytes} bytes does not fit the network, "
                f"which takes {settings.largest_bytes}",
                code="transport.too_large",
                hint="make the parts of the gossip settings smaller",
            )
        counters.sent += 1
        counters.bytes += size_bytes
        self.sent_by[number] = self.sent_by.get(number, 0) + 1
        if settings.loss and self._random() < settings.loss:
            counters.lost += 1
            self._miss(number, message, to, "lost")
            return
        delay_ms = settings.delay_ms
        if settings.jitter_ms:
            delay_ms += self._random() * settings.jitter_ms
        self._scheduler.after(delay_ms, self._arrive, number, message, to)

    def _arrive(self, number: int, message: Any, to: Address) -> None:
        receiver = self._numbers.get(to)
        if receiver is None:
            self.counters.nobody += 1
            self._miss(number, message, to, "nobody")
            return
        groups = self._groups
        if groups is not None and groups.get(number) != groups.get(receiver):
            self.counters.cut_off += 1
            self._miss(number, message, to, "cut off")
            return
        self.counters.delivered += 1
        self.received_by[receiver] = self.received_by.get(receiver, 0) + 1
        self.on_arrive(number, message, receiver)

    def _miss(self, number: int, message: Any, to: Address, why: str) -> None:
        if self.on_miss is not None:
            self.on_miss(number, message, to, why)


def _nobody(number: int, message: Any, receiver: int) -> None:
    """Nobody listens."""
