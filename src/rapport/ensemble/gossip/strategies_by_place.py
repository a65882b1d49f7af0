"""Passing on by place: who is far from all that sent it, or reaches ground they do not. [EN-5]"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.strategies import AT_ONCE, KEEP, Silent
from rapport.ensemble.messages import Published
from rapport.kernel.chance import Chance
from rapport.transport.base import Now, Sender

Place = tuple[float, float]
"""Metres east and north of somewhere."""
WhereIs = Callable[[Sender], Place | None]
"""Where a sender is, as far as can be told (its signal's strength, its own knowledge)."""
Here = Callable[[], Place | None]

_MOST_HEARD = 16
"""Senders remembered for a version; more cover all there is."""
_SPOKES, _RINGS = 16, 4


class _ByPlace(Silent, ABC):
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

    def decide(self, message: Published, sender: Sender, now: Now) -> float | None:
        here = self._here()
        if here is None:
            return AT_ONCE
        place = self._where_is(sender)
        places = [] if place is None else [place]
        if not self._is_worth_it(here, places):
            return KEEP
        self._heard[message.component] = places
        return self._wait_ms * (1.0 - self._chance.random())

    def repeated(self, message: Published, sender: Sender, now: Now) -> None:
        places = self._heard.get(message.component)
        if places is not None and len(places) < _MOST_HEARD:
            place = self._where_is(sender)
            if place is not None:
                places.append(place)

    def decide_again(self, message: Published, now: Now) -> bool:
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
