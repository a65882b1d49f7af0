"""Whether a node passes on what it received for the first time: the interface, and the strategies
that need no place. [EN-5]

A strategy decides at once, or waits and listens whether others pass it on meanwhile. Pulled
versions are passed on without asking it; a boundary may still keep back what it would pass on.
"""

from __future__ import annotations

from typing import Final, Protocol

from rapport.core.errors import InvalidInput
from rapport.ensemble.messages import Headers, Published
from rapport.kernel.chance import Chance
from rapport.transport.base import Now, Sender

AT_ONCE: Final = 0.0
KEEP: Final = None


class Strategy(Protocol):
    """One node's way to decide; it may have memory, of bounded size."""

    listens: bool
    """Whether `repeated` is to be called; the machine is faster when not."""
    needs_headers: bool
    """Whether it works only where neighbours send headers by radio."""

    def decide(self, message: Published, sender: Sender, now: Now) -> float | None:
        """For a version received for the first time: 0 = pass on now, ms = wait so long and then
        ask `decide_again`, none = keep it.
        """

    def repeated(self, message: Published, sender: Sender, now: Now) -> None:
        """The version that is held was heard again from somebody."""

    def decide_again(self, message: Published, now: Now) -> bool:
        """After the wait: whether to pass it on. Not called when a newer version came."""

    def greeting(self, headers: Headers, now: Now) -> Headers | None:
        """The headers as the node sends them by radio, perhaps with a word of the strategy; none:
        nothing needs to be sent when there are no headers.
        """

    def greeted(self, headers: Headers, now: Now) -> None:
        """Headers of a neighbour came."""


class Silent:
    """What most strategies do with repetitions, waits and greetings: nothing."""

    listens = False
    needs_headers = False

    def repeated(self, message: Published, sender: Sender, now: Now) -> None:
        """Nothing is remembered."""

    def decide_again(self, message: Published, now: Now) -> bool:
        """Never waits, so never asked."""
        return False

    def greeting(self, headers: Headers, now: Now) -> Headers | None:
        """Headers as they are."""
        return headers if headers.headers else None

    def greeted(self, headers: Headers, now: Now) -> None:
        """Nothing is remembered."""


class Probabilistic(Silent):
    """With one probability, for each version and node anew."""

    def __init__(self, probability: float, chance: Chance) -> None:
        _check_probability(probability)
        self._probability, self._random = probability, chance.random

    def decide(self, message: Published, sender: Sender, now: Now) -> float | None:
        # random() is below 1, so probability 1 always passes and 0 never does.
        return AT_ONCE if self._random() < self._probability else KEEP


class CounterBased(Silent):
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

    def decide(self, message: Published, sender: Sender, now: Now) -> float | None:
        self._heard[message.component] = 1
        # Above 0, as 0 would mean now.
        return self._wait_ms * (1.0 - self._chance.random())

    def repeated(self, message: Published, sender: Sender, now: Now) -> None:
        heard = self._heard.get(message.component)
        if heard is not None:
            self._heard[message.component] = heard + 1

    def decide_again(self, message: Published, now: Now) -> bool:
        return self._heard.pop(message.component, 0) < self._threshold


class Adaptive(Silent):
    """Adapts its probability to how often it hears each version from others, as smart gossip does:
    whoever hears everything many times passes on little, whoever hears it once everything.

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

    def decide(self, message: Published, sender: Sender, now: Now) -> float | None:
        counts = self._counts
        before = counts.pop(message.component, None)
        if before is not None:
            self.heard += self._weight * (before - self.heard)
        elif len(counts) >= self._remembered:
            del counts[next(iter(counts))]
        counts[message.component] = 1
        return AT_ONCE if self._random() < self.probability else KEEP

    def repeated(self, message: Published, sender: Sender, now: Now) -> None:
        if message.component in self._counts:
            self._counts[message.component] += 1


def _check_probability(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise InvalidInput(
            f"{probability:g} is no probability",
            code="ensemble.bad_strategy",
            hint="it lies between 0 and 1",
        )
