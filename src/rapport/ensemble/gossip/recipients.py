"""Recipients on IP: a random subset of the known nodes, frequent requesters first. [EN-5, EN-9]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rapport.ensemble.protocol import PublishedKnowledge
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address


class Recipients(Protocol):
    """Chooses the addresses that something is sent to."""

    def to_publish(self, component: str, now: Now) -> list[Address]:
        """For a new version of a component of this node; for headers and pulls, which concern no
        single component, it is empty.
        """

    def to_pass_on(self, message: PublishedKnowledge, now: Now) -> list[Address]:
        """For a version of another node's component."""


class NoRecipients:
    """For nodes without IP."""

    def to_publish(self, component: str, now: Now) -> list[Address]:
        return []

    def to_pass_on(self, message: PublishedKnowledge, now: Now) -> list[Address]:
        return []


class PullCounts:
    """Who pulled which component lately and how often: they are interested in it.

    At most `most` addresses for a component and `components` components are remembered; each time
    a component is published all its counts fall by `fading`, so that who stops asking is forgotten
    after some periods.
    """

    def __init__(self, *, most: int = 64, components: int = 1_024, fading: float = 0.9) -> None:
        self._most, self._components, self._fading = most, components, fading
        self._asked: dict[str, dict[Address, float]] = {}

    def __len__(self) -> int:
        """The number of counts."""
        return sum(map(len, self._asked.values()))

    def asked(self, component: str, by: Address) -> None:
        """Counts a pull of a component of this node."""
        counts = self._asked.get(component)
        if counts is None:
            if len(self._asked) >= self._components:
                del self._asked[next(iter(self._asked))]
            counts = self._asked[component] = {}
        if by not in counts and len(counts) >= self._most:
            del counts[min(counts, key=counts.__getitem__)]
        counts[by] = counts.get(by, 0.0) + 1.0

    def most_eager(self, component: str, number: int) -> list[Address]:
        """The addresses with the most pulls, most first; counts decay."""
        counts = self._asked.get(component)
        if not counts or number <= 0:
            return []
        eager = sorted(counts, key=counts.__getitem__, reverse=True)[:number]
        for address in list(counts):
            counts[address] *= self._fading
            if counts[address] < 0.5:
                del counts[address]
        return eager


class RandomRecipients:
    """A random subset of the known nodes, drawn anew each time. Half of those that a publication
    goes to, rounded up, are its most eager askers, if it has any.
    """

    def __init__(
        self,
        fan_out: int,
        chance: Chance,
        *,
        known: Sequence[Address] = (),
        own: Address | None = None,
        askers: PullCounts | None = None,
    ) -> None:
        self._fan_out, self._chance, self._own, self._askers = fan_out, chance, own, askers
        self._known: list[Address] = []
        self._places: dict[Address, None] = {}
        self.know(known)

    @property
    def known(self) -> Sequence[Address]:
        return self._known

    def know(self, nodes: Sequence[Address]) -> None:
        """These are the known nodes from now on; this one itself may be among them."""
        self._places = dict.fromkeys(node for node in nodes if node != self._own)
        self._known = list(self._places)

    def to_publish(self, component: str, now: Now) -> list[Address]:
        eager: list[Address] = []
        if self._askers is not None and component:
            wished = self._askers.most_eager(component, (self._fan_out + 1) // 2)
            eager = [one for one in wished if one in self._places]
        drawn = self._draw(self._fan_out)
        return eager + [one for one in drawn if one not in eager][: self._fan_out - len(eager)]

    def to_pass_on(self, message: PublishedKnowledge, now: Now) -> list[Address]:
        # The source of the message is drawn but not sent to: it would know nothing new.
        return [one for one in self._draw(self._fan_out) if one != message.address]

    def _draw(self, number: int) -> list[Address]:
        known = self._known
        if number >= len(known):
            return list(known)
        return self._chance.sample(known, number)
