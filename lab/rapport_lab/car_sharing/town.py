"""Movement over streets as a function of time, and the resources of an actor. [EN-13]"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Final

import msgspec

from rapport.kernel.clock import Chance
from rapport_lab.car_sharing.seats import Spot
from rapport_lab.ensemble.simulation.streets import StreetMap

Speed = Callable[[int, int], float]
"""Metres per second from a place to a neighbouring one."""


class Travel(msgspec.Struct, frozen=True):
    """Somebody on the way: `metres` behind the first place of `way`, going to the second."""

    way: tuple[int, ...]
    """Places of the map; the first is the one that was passed last."""
    metres: float
    time_ms: float
    """When it is there."""
    halted_ms: float | None = None
    """Since when it stands at the first place, if it does."""


def standing(place: int, time_ms: float) -> Travel:
    """Nobody moves yet."""
    return Travel((place,), 0.0, time_ms, time_ms)


def advanced(
    travel: Travel, streets: StreetMap, speed: Speed, time_ms: float, halts: Collection[int] = ()
) -> Travel:
    """Moves on until a time, or until it comes to a place of `halts`, where it stands; where it
    stands already it leaves.
    """
    way, metres = travel.way, travel.metres
    left_s = max(time_ms - travel.time_ms, 0.0) / 1_000
    while len(way) > 1 and left_s > 0:
        length, pace = streets.length(way[0], way[1]), speed(way[0], way[1])
        need_s = (length - metres) / pace
        if need_s > left_s:
            return Travel(way, metres + left_s * pace, time_ms)
        left_s -= need_s
        way, metres = way[1:], 0.0
        if way[0] in halts or len(way) == 1:
            return Travel(way, 0.0, time_ms, time_ms)
    is_here = len(way) == 1 or metres == 0.0
    since_ms = travel.halted_ms if travel.halted_ms is not None else time_ms
    return Travel(way, metres, time_ms, since_ms if is_here else None)


def stayed(travel: Travel, time_ms: float) -> Travel:
    """Time passes, nothing moves."""
    return msgspec.structs.replace(travel, time_ms=time_ms)


def heading_to(travel: Travel, streets: StreetMap, place: int, *, by_car: bool) -> Travel:
    """The same, now on the quickest way to a place. In the midst of a street a car goes to its end
    first; who is on foot turns round if that is shorter.
    """
    if travel.way[-1] == place:
        return travel
    if travel.metres == 0.0:
        return _led_on(travel, streets, travel.way[:1], place, by_car)
    on = _led_on(travel, streets, travel.way[:2], place, by_car)
    if by_car:
        return on
    length = streets.length(*travel.way[:2])
    turned = msgspec.structs.replace(travel, metres=length - travel.metres)
    back = _led_on(turned, streets, travel.way[1::-1], place, by_car)
    return min(on, back, key=lambda one: _metres_left(one, streets))


def _led_on(
    travel: Travel, streets: StreetMap, kept: tuple[int, ...], place: int, by_car: bool
) -> Travel:
    found = streets.way(kept[-1], place, by_car=by_car)
    return msgspec.structs.replace(travel, way=(*kept, *found[1:]))


def _metres_left(travel: Travel, streets: StreetMap) -> float:
    return sum(streets.length(*link) for link in pairwise(travel.way)) - travel.metres


def position(travel: Travel, streets: StreetMap) -> tuple[float, float]:
    """Where it is, to a decimetre."""
    east, north = streets.places[travel.way[0]]
    if len(travel.way) > 1 and travel.metres:
        there = streets.places[travel.way[1]]
        part = travel.metres / max(streets.length(*travel.way[:2]), 0.001)
        east, north = east + (there[0] - east) * part, north + (there[1] - north) * part
    return round(east, 1), round(north, 1)


def ahead(travel: Travel, streets: StreetMap, speed: Speed) -> list[tuple[int, float]]:
    """The places ahead with the seconds until then; the one where it stands is the first."""
    found = [] if travel.metres else [(travel.way[0], 0.0)]
    seconds, metres = 0.0, travel.metres
    for start, end in pairwise(travel.way):
        seconds += (streets.length(start, end) - metres) / speed(start, end)
        metres = 0.0
        found.append((end, seconds))
    return found


def spot_of(streets: StreetMap, place: int) -> Spot:
    """A place as vehicles and passengers name it."""
    east, north = streets.places[place]
    return round(east), round(north)


WALK_SPEED: Final = 1.4
_TRIES: Final = 20


class Town:
    """The surroundings of one node. `pace`: everything moves so many times as fast as in life, so
    that a minute on real sockets shows a quarter of an hour.
    """

    def __init__(
        self, streets: StreetMap, time_ms: Callable[[], float], chance: Chance, *, pace: float = 1.0
    ) -> None:
        self.streets, self.time_ms, self.chance, self.pace = streets, time_ms, chance, pace
        self.walk_speed = WALK_SPEED * pace
        # People wait for a time of life, and for messages, which are as slow as ever.
        self.patience_s = 60 / pace + 6
        """So long a vehicle waits at most for who is not there yet."""
        self.rest_s = 30 / pace + 3
        """So long one stays where one wanted to be."""
        self.dwell_s = 10 / pace + 2
        """So long a bus stops at the least."""
        self._by_spot: dict[tuple[float, float], int] = {
            spot_of(streets, place): place for place in range(len(streets.places))
        }

    def drive_speed(self, start: int, end: int) -> float:
        """Metres per second by car from a place to a neighbouring one."""
        return max(self.streets.speed(start, end), 1.0) * self.pace

    def foot_speed(self, start: int, end: int) -> float:
        """Metres per second on foot, anywhere."""
        return self.walk_speed

    def drawn_place(self, start: int, *, least_metres: float) -> int:
        """Somewhere else, at least so far off if there is such a place."""
        places = len(self.streets.places)
        drawn = [self.chance.randrange(places) for _ in range(_TRIES)]
        far = [place for place in drawn if self.streets.length(start, place) >= least_metres]
        return far[0] if far else max(drawn, key=lambda place: self.streets.length(start, place))

    def place_at(self, position: tuple[float, float]) -> int:
        """The crossing nearest to a position; of a spot that was told, the very crossing."""
        known = self._by_spot.get(position)
        return self.streets.nearest(*position) if known is None else known

    def spot(self, place: int) -> tuple[int, int]:
        """A place as it is named to others."""
        return spot_of(self.streets, place)
