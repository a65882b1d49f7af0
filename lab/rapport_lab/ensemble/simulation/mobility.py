"""Movement of actors: drivers between drawn places, walkers who pause; positions at any time.
[EN-11]

A plan is drawn before the run, so a position is a pure function of time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import cos, pi, sin, sqrt
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport_lab.ensemble.simulation.streets import Place, StreetMap

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


Positions = NDArray[np.float64]
"""One row for each actor: metres east and north."""


class Whereabouts(Protocol):
    """What the radio asks: where all are."""

    def __len__(self) -> int:
        """How many actors there are."""

    def positions_at(self, time_ms: float) -> Positions:
        """Of all actors, in order of their numbers."""

    def position_at(self, actor: int, time_ms: float) -> Place:
        """Of one actor."""


class FixedPlaces:
    """Actors that stay where they are."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._positions: Positions = np.asarray(places, dtype=np.float64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._positions)

    def positions_at(self, time_ms: float) -> Positions:
        """See Whereabouts."""
        return self._positions

    def position_at(self, actor: int, time_ms: float) -> Place:
        """See Whereabouts."""
        east, north = self._positions[actor].tolist()
        return east, north


class Mobility:
    """Actors with plans. A position costs a binary search among the points of the plan; those of
    all together one vectorised search: about 1 ms for 10,000 actors. Before its plan begins an
    actor is at its first place, afterwards at its last.
    """

    def __init__(self, streets: StreetMap, plans: Iterable[Sequence[PlanPoint]]) -> None:
        self.streets = streets
        counts: list[int] = []
        times: list[float] = []
        places: list[int] = []
        for plan in plans:
            _check(plan)
            counts.append(len(plan))
            times.extend(point.time_ms for point in plan)
            places.extend(point.place for point in plan)
        self._starts: Any = np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))
        self._times: Any = np.asarray(times, dtype=np.float64)
        self._places: Any = np.asarray(places, dtype=np.int64)
        self._points: Any = np.asarray(streets.places, dtype=np.float64).reshape(-1, 2)
        # All plans one after another on one line of time, so that one search finds a point in each.
        self._span_ms = (max(times) if times else 0.0) + 1.0
        owners = np.repeat(np.arange(len(counts)), counts)
        self._line: Any = self._times + owners * self._span_ms
        self._offsets: Any = np.arange(len(counts)) * self._span_ms

    def __len__(self) -> int:
        return len(self._starts) - 1

    def plan(self, actor: int) -> list[PlanPoint]:
        """The plan of an actor."""
        some = slice(self._starts[actor], self._starts[actor + 1])
        return [
            PlanPoint(time_ms, place)
            for time_ms, place in zip(
                self._times[some].tolist(), self._places[some].tolist(), strict=True
            )
        ]

    def position_at(self, actor: int, time_ms: float) -> Place:
        """See Whereabouts."""
        first, last = int(self._starts[actor]), int(self._starts[actor + 1]) - 1
        at = bisect_right(self._times, time_ms, first, last + 1) - 1
        before, after = max(at, first), min(max(at, first) + 1, last)
        here, there = self._points[self._places[before]], self._points[self._places[after]]
        part = _part(self._times[before], self._times[after], time_ms)
        east, north = (here + (there - here) * part).tolist()
        return east, north

    def positions_at(self, time_ms: float) -> Positions:
        """See Whereabouts."""
        clipped = min(max(time_ms, 0.0), self._span_ms - 1.0)
        at = np.searchsorted(self._line, self._offsets + clipped, side="right") - 1
        before = np.maximum(at, self._starts[:-1])
        after = np.minimum(before + 1, self._starts[1:] - 1)
        began, ends = self._times[before], self._times[after]
        lasts = np.where(ends > began, ends - began, 1.0)
        part = np.clip((clipped - began) / lasts, 0.0, 1.0)[:, None]
        here, there = self._points[self._places[before]], self._points[self._places[after]]
        found: Positions = here + (there - here) * part
        return found


def traffic(
    streets: StreetMap,
    *,
    drivers: int,
    walkers: int,
    until_ms: float,
    chance: Chance,
    settings: PlanSettings | None = None,
) -> Mobility:
    """Drivers (numbers from 0) and then walkers, with plans drawn from the chance."""
    settings = settings or PlanSettings()
    if not streets.places:
        raise InvalidInput(
            "nobody moves on a map without places",
            code="streets.no_places",
            hint="give a map with streets",
        )
    plans = [drive_plan(streets, settings, chance, until_ms) for _ in range(drivers)]
    plans += [walk_plan(streets, settings, chance, until_ms) for _ in range(walkers)]
    return Mobility(streets, plans)


def _part(began: float, ends: float, time_ms: float) -> float:
    return min(max((time_ms - began) / (ends - began), 0.0), 1.0) if ends > began else 0.0


def _check(plan: Sequence[PlanPoint]) -> None:
    is_ordered = all(a.time_ms <= b.time_ms for a, b in pairwise(plan))
    if not plan or plan[0].time_ms < 0 or not is_ordered:
        raise InvalidInput(
            "a plan has no points, or their times go back",
            code="streets.bad_plans",
            hint="one point at least, from time 0 on, in order of time",
        )
