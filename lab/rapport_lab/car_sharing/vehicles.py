"""Vehicles that offer seats: cars on their own way, and buses with check points. [EN-13]"""

from __future__ import annotations

from dataclasses import field

import msgspec

from rapport.ensemble import Component, Local, Role, process
from rapport_lab.car_sharing.seats import Booking, Desk, Heard, Spot, Waypoint, free_seats, settle
from rapport_lab.car_sharing.town import (
    Town,
    Travel,
    advanced,
    ahead,
    heading_to,
    position,
    standing,
    stayed,
)

_MOST_AHEAD = 28
"""Waypoints that are published."""
_LEAST_TRIP_METRES = 1_300


class Placed(Role):
    """Is somewhere: metres east and north."""

    position: tuple[float, float]


class SeatOffering(Placed):
    """Has seats, and says where it will be."""

    capacity: int
    free: int
    way: list[Waypoint]
    """Where passengers can get in or off, in order."""
    halted: Spot | None
    """Where it stands with open doors."""
    bookings: dict[str, Booking]
    """By passenger."""


class Vehicle(Component, SeatOffering):
    """Drives, and books seats for those who claim them."""

    town: Local[Town]
    travel: Local[Travel]
    heard: Local[dict[str, Heard]] = field(default_factory=dict)
    """What passengers want of it; replaced, never changed."""
    seen: Local[dict[str, tuple[int, int]]] = field(default_factory=dict)
    opens_ms: Local[float] = 0.0
    """See `seats.Desk`."""
    halted: Spot | None = None
    way: list[Waypoint] = field(default_factory=list)
    bookings: dict[str, Booking] = field(default_factory=dict)

    @process(
        every="500 ms", reads=("way", "halted", "capacity"), writes=("bookings", "seen", "free")
    )
    def serve(self) -> None:
        """Books, renews, drops: see `seats.settle`."""
        spots = {(east, north) for east, north, _there in self.way}
        desk = Desk(self.capacity, spots, self.halted, self.town.time_ms(), self.opens_ms)
        self.bookings, self.seen = settle(self.bookings, self.heard, self.seen, desk)
        self.free = free_seats(self.bookings, self.capacity)

    @process(every="500 ms", writes=("position", "travel", "way", "halted"))
    def drive(self) -> None:
        """Moves on, stops where somebody gets in or off, and waits for them for a while."""
        town, now_ms = self.town, self.town.time_ms()
        travel = self.with_a_way(self.travel, now_ms)
        halts = self.halts(travel)
        if self.is_waiting(travel, halts, now_ms):
            travel = stayed(travel, now_ms)
        else:
            travel = advanced(travel, town.streets, town.drive_speed, now_ms, halts)
        self.travel, self.position = travel, position(travel, town.streets)
        is_standing = travel.halted_ms is not None and not travel.metres
        self.halted = town.spot(travel.way[0]) if is_standing else None
        self.way = self.waypoints(travel)

    def with_a_way(self, travel: Travel, now_ms: float) -> Travel:
        """Where to go next, if it came to an end."""
        raise NotImplementedError

    def halts(self, travel: Travel) -> set[int]:
        """The places where it has to stand."""
        wanted = set(self.wanted_spots())
        return {place for place in travel.way if self.town.spot(place) in wanted}

    def wanted_spots(self) -> list[Spot]:
        """Where those with seats get in or off."""
        return [
            booking.drop if booking.is_aboard else booking.meet
            for booking in self.bookings.values()
            if booking.seats and not booking.is_missed
        ]

    def is_waiting(self, travel: Travel, halts: set[int], now_ms: float) -> bool:
        """Whether it stays where it stands."""
        if travel.halted_ms is None or travel.way[0] not in halts:
            return False
        return now_ms - travel.halted_ms < self.town.patience_s * 1_000

    def waypoints(self, travel: Travel) -> list[Waypoint]:
        """What is published of the way ahead."""
        town = self.town
        found = ahead(travel, town.streets, town.drive_speed)[:_MOST_AHEAD]
        return [(*town.spot(place), round(seconds * 10)) for place, seconds in found]


class Driver(Vehicle):
    """A car on its own way, which takes along who goes the same way."""

    leaves_ms: Local[float] = 0.0
    """It knows its next way some time before it leaves, so that others can ask for a seat."""

    @process(every="500 ms", writes=("position", "travel", "way", "halted", "leaves_ms"))
    def drive(self) -> None:
        """See Vehicle."""
        super().drive()

    def with_a_way(self, travel: Travel, now_ms: float) -> Travel:
        """At its destination it stays until all are off, then has another one."""
        if len(travel.way) > 1 or Vehicle.is_waiting(self, travel, self.halts(travel), now_ms):
            return travel
        self.leaves_ms = now_ms + self.town.rest_s * 1_000
        there = self.town.drawn_place(travel.way[0], least_metres=_LEAST_TRIP_METRES)
        return heading_to(travel, self.town.streets, there, by_car=True)

    def is_waiting(self, travel: Travel, halts: set[int], now_ms: float) -> bool:
        """Also before it leaves."""
        return now_ms < self.leaves_ms or super().is_waiting(travel, halts, now_ms)

    def waypoints(self, travel: Travel) -> list[Waypoint]:
        """Later, by as long as it still rests."""
        rest = max(round((self.leaves_ms - travel.time_ms) / 100), 0)
        return [(east, north, there + rest) for east, north, there in super().waypoints(travel)]


class Bus(Vehicle):
    """Goes round its check points, and stops at each."""

    line: list[Spot]
    """The check points, in order; after the last comes the first."""

    def with_a_way(self, travel: Travel, now_ms: float) -> Travel:
        """Always a whole round ahead; a way ends at a check point."""
        stops = [self.town.place_at(spot) for spot in self.line]
        way = travel.way
        if sum(place in stops for place in way) > len(stops):
            return travel
        after = stops.index(way[-1]) + 1
        for stop in stops[after:] + stops[:after]:
            way = (*way, *self.town.streets.way(way[-1], stop)[1:])
        return msgspec.structs.replace(travel, way=way)

    def halts(self, travel: Travel) -> set[int]:
        """All check points."""
        return {self.town.place_at(spot) for spot in self.line}

    def is_waiting(self, travel: Travel, halts: set[int], now_ms: float) -> bool:
        """A moment at least, longer for who was promised a seat."""
        if travel.halted_ms is None or travel.way[0] not in halts:
            return False
        is_wanted = self.town.spot(travel.way[0]) in self.wanted_spots()
        least_s = self.town.patience_s if is_wanted else self.town.dwell_s
        return now_ms - travel.halted_ms < least_s * 1_000

    def waypoints(self, travel: Travel) -> list[Waypoint]:
        """Of a bus only the check points count."""
        town, stops = self.town, self.halts(travel)
        found = ahead(travel, town.streets, town.drive_speed)
        at_stops = [(place, seconds) for place, seconds in found if place in stops]
        return [
            (*town.spot(place), round(seconds * 10)) for place, seconds in at_stops[:_MOST_AHEAD]
        ]


def make_driver(name: str, town: Town, place: int, *, seats: int, opens_ms: float = 0.0) -> Driver:
    """A car that stands somewhere and is about to leave."""
    travel = standing(place, town.time_ms())
    return Driver(
        id=name,
        town=town,
        travel=travel,
        position=position(travel, town.streets),
        capacity=seats,
        free=seats,
        opens_ms=opens_ms,
    )


def make_bus(name: str, town: Town, stops: list[int], *, seats: int, opens_ms: float = 0.0) -> Bus:
    """A bus at its first check point. Of places within one metre, which maps have, the one counts
    that their spot means.
    """
    stops = [town.place_at(town.spot(stop)) for stop in stops]
    travel = standing(stops[0], town.time_ms())
    return Bus(
        id=name,
        town=town,
        travel=travel,
        position=position(travel, town.streets),
        capacity=seats,
        free=seats,
        line=[town.spot(stop) for stop in stops],
        opens_ms=opens_ms,
    )
