"""Who goes where and when: drivers between drawn places, walkers who stay and go on. [EN-11]

A plan is drawn once, before the run; then a position is a pure function of time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import cos, pi, sin, sqrt
from typing import Final, NamedTuple

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.chance import Chance
from rapport_lab.ensemble.simulation.streets import StreetMap

_TRIES: Final = 16
_MOST_POINTS: Final = 1_000_000


class PlanPoint(NamedTuple):
    """Being at a place of the map at a time; in between one goes straight at a steady speed."""

    time_ms: float
    place: int


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How people move."""

    trip_metres: float = 3_000.0
    """Destinations are drawn from the places that are so far off at most."""
    slowest_driver: float = 0.6
    """Drivers go at a part of the allowed speed, drawn from here to 1."""
    walk_speed: float = 1.0
    """Metres per second of the slowest walker."""
    fastest_walk_speed: float = 1.7
    stay_ms: float = 30_000.0
    """How long walkers stay where they went, at least, and at most:"""
    longest_stay_ms: float = 300_000.0
    stop_ms: float = 0.0
    """How long drivers stop where they went, at least, and at most:"""
    longest_stop_ms: float = 30_000.0

    def __post_init__(self) -> None:
        is_good = (
            self.trip_metres > 0
            and 0 < self.slowest_driver <= 1
            and 0 < self.walk_speed <= self.fastest_walk_speed
            and 0 <= self.stay_ms <= self.longest_stay_ms
            and 0 <= self.stop_ms <= self.longest_stop_ms
        )
        if not is_good:
            raise InvalidInput(
                f"nobody moves like this: {self}",
                code="streets.bad_plans",
                hint="speeds and distances above 0, each least value up to its greatest",
            )


def drive_plan(
    streets: StreetMap, settings: PlanSettings, chance: Chance, until_ms: float
) -> list[PlanPoint]:
    """A driver's plan: from a drawn place to another by the quickest way, and on."""
    factor = chance.uniform(settings.slowest_driver, 1.0)

    def seconds(start: int, end: int) -> float:
        return streets.length(start, end) / (streets.speed(start, end) * factor)

    stay = (settings.stop_ms, settings.longest_stop_ms)
    return _draw(_Trip(streets, settings.trip_metres, True, seconds, stay), chance, until_ms)


def walk_plan(
    streets: StreetMap, settings: PlanSettings, chance: Chance, until_ms: float
) -> list[PlanPoint]:
    """A walker's plan: stays somewhere, walks to a drawn place by the shortest way, and on."""
    speed = chance.uniform(settings.walk_speed, settings.fastest_walk_speed)

    def seconds(start: int, end: int) -> float:
        return streets.length(start, end) / speed

    stay = (settings.stay_ms, settings.longest_stay_ms)
    return _draw(_Trip(streets, settings.trip_metres, False, seconds, stay), chance, until_ms)


class _Trip(NamedTuple):
    streets: StreetMap
    metres: float
    by_car: bool
    seconds: Callable[[int, int], float]
    stay_ms: tuple[float, float]


def _draw(trip: _Trip, chance: Chance, until_ms: float) -> list[PlanPoint]:
    """Legs until the time is up. Who begins, begins in the middle of a stay: at time 0 the streets
    are as full as later.
    """
    here = chance.randrange(len(trip.streets.places))
    points = [PlanPoint(0.0, here)]
    time_ms = chance.uniform(*trip.stay_ms) * chance.random()
    while time_ms < until_ms and len(points) < _MOST_POINTS:
        points.append(PlanPoint(time_ms, here))
        way = trip.streets.way(here, _destination(trip, here, chance), by_car=trip.by_car)
        for start, end in pairwise(way):
            time_ms += trip.seconds(start, end) * 1_000
            points.append(PlanPoint(time_ms, end))
            if time_ms >= until_ms:
                return points
        here = points[-1].place
        # A moment at least: two places may be the same, and time must go on.
        time_ms += max(chance.uniform(*trip.stay_ms), 1_000.0 if len(way) < 2 else 0.0)
    points.append(PlanPoint(max(time_ms, until_ms), here))
    return points


def _destination(trip: _Trip, here: int, chance: Chance) -> int:
    """A place drawn evenly by area from the circle around; here itself when there is no other."""
    east, north = trip.streets.places[here]
    for _ in range(_TRIES):
        away, direction = trip.metres * sqrt(chance.random()), 2 * pi * chance.random()
        there = trip.streets.nearest(east + away * cos(direction), north + away * sin(direction))
        if there != here and trip.streets.length(here, there) <= trip.metres:
            return there
    return here
