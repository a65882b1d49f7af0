"""People on foot who look for a seat, alone or with others. [EN-13]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import msgspec

from rapport.ensemble import Component, Local, process
from rapport_lab.car_sharing.matching import Spot, Trip, Waypoint, best_trip
from rapport_lab.car_sharing.seats import Claim, Grant, with_beat
from rapport_lab.car_sharing.seeking import (
    AVOID_MS,
    Offer,
    Seeker,
    at_the_door,
    given_up,
    held_by,
    to_claim,
    vehicle_aboard,
)
from rapport_lab.car_sharing.town import Town
from rapport_lab.car_sharing.travel import Travel, advanced, heading_to, position, standing
from rapport_lab.car_sharing.vehicles import Placed

_LEAST_TRIP_METRES = 1_000


class SeatSeeking(Placed):
    """Wants to be somewhere, and claims seats."""

    destination: Spot
    party: int
    """Seats that are needed."""
    walk_speed: float
    claims: dict[str, Claim]
    """By vehicle: one, or two while the passenger changes from one to the other."""
    last_number: int
    """Of the newest claim ever made."""
    beat: int


class Pedestrian(Component, SeatSeeking):
    """Walks to its destination, or to where a vehicle takes it along. Its Local dictionaries are
    replaced, never changed: threads may look at them.
    """

    town: Local[Town]
    travel: Local[Travel]
    offers: Local[dict[str, Offer]] = field(default_factory=dict)
    grants: Local[dict[str, Grant]] = field(default_factory=dict)
    beats: Local[dict[int, float]] = field(default_factory=dict)
    """When each beat was made."""
    made_ms: Local[dict[int, float]] = field(default_factory=dict)
    """When each claim was made, by its number."""
    avoided: Local[dict[str, float]] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    rides: str = ""
    """The vehicle it sits in."""
    party: int = 1

    @process(every="1 s", reads=(), writes=("beat", "beats"))
    def live(self) -> None:
        """Another beat: whoever keeps a seat for it knows that it is still there."""
        self.beat += 1
        self.beats = with_beat(self.beats, self.beat, self.town.time_ms())

    @process(
        every="500 ms",
        reads=("position", "destination", "party", "walk_speed"),
        writes=("claims", "last_number", "made_ms", "avoided"),
    )
    def choose(self) -> None:
        """Gives up what is over, gets in where it can, claims what is better."""
        seeker = self.seeker()
        claims = dict(self.claims)
        over = given_up(seeker)
        for vehicle in over:
            del claims[vehicle]
        until_ms = seeker.now_ms + AVOID_MS
        open_again = {one: end for one, end in self.avoided.items() if end > seeker.now_ms}
        self.avoided = open_again | dict.fromkeys(over, until_ms)
        door = at_the_door(seeker)
        if door in claims:
            claims[door] = msgspec.structs.replace(claims[door], is_boarding=True)
        self.claims = claims
        found = to_claim(self.seeker())
        if found is not None and not self.is_there():
            self.claim(*found)

    @process(
        every="500 ms",
        reads=("claims", "walk_speed"),
        writes=("position", "travel", "destination", "rides"),
    )
    def move(self) -> None:
        """Is carried, walks to where it is picked up, or walks to its destination."""
        seeker, now_ms, town = self.seeker(), self.town.time_ms(), self.town
        self.rides = vehicle_aboard(seeker)
        if self.rides:
            self.position = self.grants[self.rides].position
            self.travel = standing(town.place_at(self.position), now_ms)
            return
        place = town.place_at(self.goal(seeker))
        travel = heading_to(self.travel, town.streets, place, by_car=False)
        self.travel = advanced(travel, town.streets, town.foot_speed, now_ms)
        self.position = position(self.travel, town.streets)
        halted_ms = self.travel.halted_ms
        if self.is_there() and halted_ms is not None and now_ms - halted_ms > town.rest_s * 1_000:
            there = town.drawn_place(place, least_metres=_LEAST_TRIP_METRES)
            self.destination = town.spot(there)

    def seeker(self) -> Seeker:
        """What it knows, for the pure functions."""
        return Seeker(
            now_ms=self.town.time_ms(),
            position=self.position,
            destination=self.destination,
            walk_speed=self.walk_speed,
            claims=self.claims,
            made_ms=self.made_ms,
            offers=self.offers,
            grants=self.grants,
            beats=self.beats,
            avoided=self.avoided,
        )

    def claim(self, vehicle: str, trip: Trip) -> None:
        """Asks for seats of a vehicle."""
        self.last_number += 1
        claim = Claim(self.last_number, self.party, trip.meet, trip.drop)
        self.claims = {**self.claims, vehicle: claim}
        now_ms = self.town.time_ms()
        numbers = {one.number for one in self.claims.values()}
        self.made_ms = {**self.made_ms, self.last_number: now_ms}
        self.made_ms = {one: made for one, made in self.made_ms.items() if one in numbers}

    def trip_with(self, way: Sequence[Waypoint]) -> Trip | None:
        """The best ride with a vehicle that goes this way."""
        late_s = self.town.patience_s / 2  # streets are crooked: not all of it is promised away
        return best_trip(way, self.position, self.destination, self.walk_speed, late_s)

    def goal(self, seeker: Seeker) -> Spot:
        """Where it walks to."""
        held = held_by(seeker)
        newest = max(held, key=lambda vehicle: self.claims[vehicle].number, default="")
        return self.claims[newest].meet if newest else self.destination

    def is_there(self) -> bool:
        """Whether it is where it wanted to be."""
        return self.town.place_at(self.position) == self.town.place_at(self.destination)


def make_pedestrian(
    name: str, town: Town, place: int, destination: int, *, number: int, party: int = 1
) -> Pedestrian:
    """Somebody who sets out. `number`: greater than any that one of this name ever had, such as the
    time in ms.
    """
    travel = standing(place, town.time_ms())
    return Pedestrian(
        id=name,
        town=town,
        travel=travel,
        position=position(travel, town.streets),
        destination=town.spot(destination),
        party=party,
        walk_speed=town.walk_speed,
        last_number=number,
        beat=number,
    )
