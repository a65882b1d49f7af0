"""Who goes whose way: where a walker meets a vehicle on its way, where it gets off, and whether
that is quicker than walking. Pure. [EN-13]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import Final, NamedTuple

Spot = tuple[int, int]
"""A crossing, in whole metres east and north: as vehicles and passengers name it to each other."""
Waypoint = tuple[int, int, int]
"""A spot on the way ahead of a vehicle, and in how many tenths of a second it is there."""

LEAD_S: Final = 3.0
"""A claim takes some seconds to be heard and confirmed: no meeting is sooner."""
_LEAST_GAIN: Final = 0.25
"""A ride that saves less than this part of the time on foot is not worth it."""
_STREETS: Final = 1.3
"""Along streets one walks about so many times as far as the crow flies."""


class Trip(NamedTuple):
    """A ride that a walker may take."""

    meet: Spot
    drop: Spot
    meet_s: float
    """When both are there."""
    arrival_s: float
    """When the walker is at its destination, with the walk at the end."""


def best_trip(
    way: Sequence[Waypoint],
    position: tuple[float, float],
    destination: tuple[float, float],
    walk_speed: float,
    late_s: float,
) -> Trip | None:
    """The ride with this vehicle that ends soonest; none: walking is about as good, or the walker
    would be there more than `late_s` after the vehicle. A microsecond for each pair of waypoints.
    """
    on_foot_s = walking_s(position, destination, walk_speed)
    after = [walking_s(point[:2], destination, walk_speed) for point in way]
    best: Trip | None = None
    for number, (east, north, there) in enumerate(way):
        vehicle_s, walk_s = there / 10, walking_s(position, (east, north), walk_speed)
        if vehicle_s < LEAD_S or walk_s > vehicle_s + late_s:
            continue
        meet_s = max(vehicle_s, walk_s)
        for end in range(number + 1, len(way)):
            arrival_s = meet_s + way[end][2] / 10 - vehicle_s + after[end]
            if best is None or arrival_s < best.arrival_s:
                best = Trip((east, north), way[end][:2], meet_s, arrival_s)
    if best is None or best.arrival_s > on_foot_s * (1 - _LEAST_GAIN):
        return None
    return best


def arrival_s(
    way: Sequence[Waypoint], drop: Spot, destination: tuple[float, float], walk_speed: float
) -> float | None:
    """When a passenger of the vehicle is at its destination; none: the spot is not ahead."""
    for east, north, there in way:
        if (east, north) == drop:
            return there / 10 + walking_s(drop, destination, walk_speed)
    return None


def walking_s(start: tuple[float, float], end: tuple[float, float], walk_speed: float) -> float:
    """About how long one walks."""
    return hypot(start[0] - end[0], start[1] - end[1]) * _STREETS / walk_speed
