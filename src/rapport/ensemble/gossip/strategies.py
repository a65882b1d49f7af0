"""Retransmission strategies: whether a node passes on a version that is new to it. [EN-5]

A strategy decides at once, or waits and counts how often other nodes pass the version on meanwhile.
Pulled versions bypass the strategy. A boundary may still stop a version that the strategy passes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.protocol import Headers, PublishedKnowledge
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Sender

AT_ONCE: Final = 0.0
KEEP: Final = None


class Strategy(Protocol):
    """One node's way to decide; it may have memory, of bounded size."""

    listens: bool
    """Whether `repeated` is to be called; the machine is faster when not."""
    needs_headers: bool
    """Whether it works only where neighbours send headers by radio."""

    def decide(self, message: PublishedKnowledge, sender: Sender, now: Now) -> float | None:
        """For a version received for the first time: 0 = pass on now, ms = wait so long and then
        ask `decide_again`, none = keep it.
        """

    def repeated(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        """The version that is held was heard again from somebody."""

    def decide_again(self, message: PublishedKnowledge, now: Now) -> bool:
        """After the wait: whether to pass it on. Not called when a newer version came."""

    def greeting(self, headers: Headers, now: Now) -> Headers | None:
        """The headers as the node sends them by radio, perhaps with a word of the strategy; none:
        nothing needs to be sent when there are no headers.
        """

    def greeted(self, headers: Headers, now: Now) -> None:
        """Headers of a neighbour came."""


class StrategyDefaults:
    """What most strategies do with repetitions, waits and greetings: nothing."""

    listens = False
    needs_headers = False

    def repeated(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        """Nothing is remembered."""

    def decide_again(self, message: PublishedKnowledge, now: Now) -> bool:
        """Never waits, so never asked."""
        return False

    def greeting(self, headers: Headers, now: Now) -> Headers | None:
        """Headers as they are."""
        return headers if headers.headers else None

    def greeted(self, headers: Headers, now: Now) -> None:
        """Nothing is remembered."""


class Probabilistic(StrategyDefaults):
    """With one probability, for each version and node anew."""

    def __init__(self, probability: float, chance: Chance) -> None:
        _check_probability(probability)
        self._probability, self._random = probability, chance.random

    def decide(self, message: PublishedKnowledge, sender: Sender, now: Now) -> float | None:
        # random() is below 1, so probability 1 always passes and 0 never does.
        return AT_ONCE if self._random() < self._probability else KEEP


class CounterBased(StrategyDefaults):
    """Waits up to `wait_ms` and passes on unless it heard the version `threshold` times by then:
    where many are near each other, few pass on; at the edge everybody does.
    """

    listens = True

    def __init__(self, chance: Chance, *, threshold: int = 3, wait_ms: float = 500.0) -> None:
        if threshold < 1 or wait_ms <= 0:
            raise InvalidInput(
                "a counter needs a threshold of 1 or more and some time",
                code="ensemble.bad_strategy",
            )
        self._chance, self._threshold, self._wait_ms = chance, threshold, wait_ms
        self._heard: dict[str, int] = {}

    def decide(self, message: PublishedKnowledge, sender: Sender, now: Now) -> float | None:
        self._heard[message.component] = 1
        # Above 0, as 0 would mean now.
        return self._wait_ms * (1.0 - self._chance.random())

    def repeated(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        count = self._heard.get(message.component)
        if count is not None:
            self._heard[message.component] = count + 1

    def decide_again(self, message: PublishedKnowledge, now: Now) -> bool:
        return self._heard.pop(message.component, 0) < self._threshold


class Adaptive(StrategyDefaults):
    """Adapts its probability to how often it hears each version from others, as smart gossip does:
    a node that receives everything many times passes on little, one that receives it once passes
    on all.

    The probability is `wished / heard`, where `heard` is a running mean over versions of how often
    they came, and lies between `lowest` and 1.
    """

    listens = True

    def __init__(
        self,
        chance: Chance,
        *,
        wished: float = 2.0,
        lowest: float = 0.1,
        weight: float = 0.1,
        remembered: int = 4_096,
    ) -> None:
        """`wished`: how often each version should be heard; `weight`: of the newest count."""
        _check_probability(lowest)
        if not (wished >= 1 and 0 < weight <= 1):
            raise InvalidInput(
                "a version is heard once or more, a weight lies between 0 and 1",
                code="ensemble.bad_strategy",
            )
        self.heard = 1.0
        """How often a version comes, on average."""
        self._random, self._remembered = chance.random, remembered
        self._wished, self._lowest, self._weight = wished, lowest, weight
        self._counts: dict[str, int] = {}

    @property
    def probability(self) -> float:
        """With which the next version is passed on."""
        return min(1.0, max(self._lowest, self._wished / self.heard))

    def decide(self, message: PublishedKnowledge, sender: Sender, now: Now) -> float | None:
        counts = self._counts
        before = counts.pop(message.component, None)
        if before is not None:
            self.heard += self._weight * (before - self.heard)
        elif len(counts) >= self._remembered:
            del counts[next(iter(counts))]
        counts[message.component] = 1
        return AT_ONCE if self._random() < self.probability else KEEP

    def repeated(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        if message.component in self._counts:
            self._counts[message.component] += 1


def _check_probability(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise InvalidInput(
            f"{probability:g} is no probability",
            code="ensemble.bad_strategy",
            hint="it lies between 0 and 1",
        )


Place = tuple[float, float]
"""Metres east and north of somewhere."""
WhereIs = Callable[[Sender], Place | None]
"""Where a sender is, as far as is known (its signal's strength, its own knowledge)."""
Here = Callable[[], Place | None]

_MOST_HEARD = 16
"""Senders remembered for a version; more cover all there is."""
_SPOKES, _RINGS = 16, 4


class _ByPlace(StrategyDefaults, ABC):
    """Waits, remembers where the version was heard from, and then looks at the places.

    A sender whose place is not known counts for nothing: the node rather passes on once too often.
    """

    listens = True

    def __init__(self, here: Here, where_is: WhereIs, chance: Chance, wait_ms: float) -> None:
        if wait_ms <= 0:
            raise InvalidInput("it needs some time to listen", code="ensemble.bad_strategy")
        self._here, self._where_is = here, where_is
        self._chance, self._wait_ms = chance, wait_ms
        self._heard: dict[str, list[Place]] = {}

    def decide(self, message: PublishedKnowledge, sender: Sender, now: Now) -> float | None:
        here = self._here()
        if here is None:
            return AT_ONCE
        place = self._where_is(sender)
        places = [] if place is None else [place]
        if not self._is_worth_it(here, places):
            return KEEP
        self._heard[message.component] = places
        return self._wait_ms * (1.0 - self._chance.random())

    def repeated(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        places = self._heard.get(message.component)
        if places is not None and len(places) < _MOST_HEARD:
            place = self._where_is(sender)
            if place is not None:
                places.append(place)

    def decide_again(self, message: PublishedKnowledge, now: Now) -> bool:
        places = self._heard.pop(message.component, [])
        here = self._here()
        return here is None or self._is_worth_it(here, places)

    @abstractmethod
    def _is_worth_it(self, here: Place, places: list[Place]) -> bool:
        """Whether others than those at the places would hear it from here."""


class DistanceBased(_ByPlace):
    """Passes on only if everybody it heard the version from is at least `metres` away: what a near
    one sends reaches nearly the same nodes.
    """

    def __init__(
        self, here: Here, where_is: WhereIs, chance: Chance, *, metres: float, wait_ms: float = 500
    ) -> None:
        super().__init__(here, where_is, chance, wait_ms)
        self._metres = metres

    def _is_worth_it(self, here: Place, places: list[Place]) -> bool:
        return all(math.dist(here, place) >= self._metres for place in places)


class LocationBased(_ByPlace):
    """Passes on only if at least the share `uncovered` of the ground in its range is out of range
    of everybody it heard the version from. One sender at the very edge of the range leaves 0.61 of
    it. The share is counted on 64 points.
    """

    def __init__(
        self,
        here: Here,
        where_is: WhereIs,
        chance: Chance,
        *,
        range_metres: float,
        uncovered: float = 0.2,
        wait_ms: float = 500,
    ) -> None:
        super().__init__(here, where_is, chance, wait_ms)
        self._range_metres, self._uncovered = range_metres, uncovered
        self._points = _points_of_a_disc(range_metres)

    def _is_worth_it(self, here: Place, places: list[Place]) -> bool:
        return self.share_uncovered(here, places) >= self._uncovered

    def share_uncovered(self, here: Place, places: list[Place]) -> float:
        """Of the ground in range of `here`, how much is in range of none of the places."""
        reach = self._range_metres
        bare = sum(
            all(math.dist((here[0] + x, here[1] + y), place) > reach for place in places)
            for x, y in self._points
        )
        return bare / len(self._points)


def _points_of_a_disc(radius: float) -> list[Place]:
    """Points that stand for equal areas of a disc around the origin."""
    return [
        (
            radius * math.sqrt((ring + 0.5) / _RINGS) * math.cos(2 * math.pi * spoke / _SPOKES),
            radius * math.sqrt((ring + 0.5) / _RINGS) * math.sin(2 * math.pi * spoke / _SPOKES),
        )
        for ring in range(_RINGS)
        for spoke in range(_SPOKES)
    ]


class _Neighbour(NamedTuple):
    head: str
    heard_ms: float


class ClusterBased(StrategyDefaults):
    """Lowest-name clustering. Needs headers to be sent (`header_ms`), which it sends even when
    there is nothing in them; clusters settle within about as many header periods as the longest
    chain of falling names, mostly two or three.
    """

    needs_headers = True

    def __init__(self, node: str, *, keep_ms: float, remembered: int = 1_024) -> None:
        """`keep_ms`: a neighbour that was silent for so long is none; about three header
        periods.
        """
        self._node, self._keep_ms, self._remembered = node, keep_ms, remembered
        self._neighbours: dict[str, _Neighbour] = {}
        self.head = node
        """The head of the cluster it is in."""
        self.is_gateway = False
        """It hears members of another cluster."""

    @property
    def passes_on(self) -> bool:
        """Whether it passes on at present."""
        return self.head == self._node or self.is_gateway

    def decide(self, message: PublishedKnowledge, sender: Sender, now: Now) -> float | None:
        return AT_ONCE if self.passes_on else KEEP

    def greeting(self, headers: Headers, now: Now) -> Headers | None:
        self._forget_silent(now)
        return msgspec.structs.replace(headers, node=self._node, head=self.head)

    def greeted(self, headers: Headers, now: Now) -> None:
        node = headers.node
        if not node or node == self._node:
            return
        self._neighbours.pop(node, None)
        if len(self._neighbours) >= self._remembered:
            del self._neighbours[next(iter(self._neighbours))]
        self._neighbours[node] = _Neighbour(headers.head or node, now.steady_ms)
        self._settle()

    def _forget_silent(self, now: Now) -> None:
        before_ms = now.steady_ms - self._keep_ms
        silent = [name for name, other in self._neighbours.items() if other.heard_ms < before_ms]
        for name in silent:
            del self._neighbours[name]
        self._settle()

    def _settle(self) -> None:
        heads = [name for name, other in self._neighbours.items() if other.head == name]
        self.head = min([self._node, *heads])
        self.is_gateway = any(
            other.head != self.head or (other.head == name and name != self.head)
            for name, other in self._neighbours.items()
        )
