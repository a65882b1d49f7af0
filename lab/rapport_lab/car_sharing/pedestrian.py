"""Pedestrians who look for a seat, alone or with others, and their choice of a ride. [EN-13]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import dist
from typing import Final

import msgspec

from rapport.ensemble import Component, Local, process
from rapport_lab.car_sharing.seats import (
    Claim,
    Grant,
    Spot,
    Trip,
    Waypoint,
    arrival_s,
    best_trip,
    is_held,
    with_beat,
)
from rapport_lab.car_sharing.town import Town, Travel, advanced, heading_to, position, standing
from rapport_lab.car_sharing.vehicles import Placed

FRESH_MS: Final = 3_000.0
"""An offer that was not heard for longer is none."""
ANSWER_MS: Final = 10_000.0
"""A claim that was not answered for so long is given up."""
AVOID_MS: Final = 15_000.0
"""Who refused, or was missed, is not asked again for so long."""
AT_THE_DOOR_METRES: Final = 40.0
CHANGE_GAIN: Final = 0.6
"""Another vehicle is taken only if the time until the destination shrinks to this part."""


class Offer(msgspec.Struct, frozen=True):
    """A vehicle that would take the passenger along."""

    trip: Trip
    heard_ms: float


class Seeker(msgspec.Struct, frozen=True):
    """All that the choice depends on."""

    now_ms: float
    position: tuple[float, float]
    destination: tuple[float, float]
    walk_speed: float
    claims: Mapping[str, Claim]
    made_ms: Mapping[int, float]
    """When each claim was made, by its number."""
    offers: Mapping[str, Offer]
    grants: Mapping[str, Grant]
    beats: Mapping[int, float]
    avoided: Mapping[str, float]
    """Until when."""


def held_by(seeker: Seeker) -> dict[str, Grant]:
    """The vehicles in which the passenger has seats now."""
    return {
        vehicle: seeker.grants[vehicle]
        for vehicle, claim in seeker.claims.items()
        if is_held(claim, seeker.grants.get(vehicle), seeker.beats, seeker.now_ms)
    }


def vehicle_aboard(seeker: Seeker) -> str:
    """The vehicle that it sits in; empty: none."""
    held = held_by(seeker)
    return next((vehicle for vehicle, grant in held.items() if grant.booking.is_aboard), "")


def given_up(seeker: Seeker) -> list[str]:
    """The vehicles that it wants nothing of any more."""
    aboard = vehicle_aboard(seeker)
    return [vehicle for vehicle in seeker.claims if _is_over(seeker, vehicle, aboard)]


def to_claim(seeker: Seeker) -> tuple[str, Trip] | None:
    """The vehicle to claim seats of next; none: nothing, or nothing better than it has.

    Whoever has a seat already keeps it until the other one is confirmed.
    """
    held = held_by(seeker)
    if len(seeker.claims) > len(held) or len(held) > 1 or vehicle_aboard(seeker):
        return None
    limit_s = min((_arrival_s(seeker, one, grant) for one, grant in held.items()), default=None)
    offers = [
        (offer.trip.arrival_s, vehicle)
        for vehicle, offer in seeker.offers.items()
        if vehicle not in seeker.claims and _is_open(seeker, vehicle, offer)
    ]
    if not offers:
        return None
    soonest_s, vehicle = min(offers)
    if limit_s is not None and soonest_s > limit_s * CHANGE_GAIN:
        return None
    return vehicle, seeker.offers[vehicle].trip


def at_the_door(seeker: Seeker) -> str:
    """The vehicle that stands before it with open doors; empty: none."""
    for vehicle, grant in held_by(seeker).items():
        booking = grant.booking
        is_here = dist(seeker.position, booking.meet) <= AT_THE_DOOR_METRES
        if grant.halted == booking.meet and is_here:
            return vehicle
    return ""


def _is_over(seeker: Seeker, vehicle: str, aboard: str) -> bool:
    claim, grant = seeker.claims[vehicle], seeker.grants.get(vehicle)
    if aboard and vehicle != aboard:
        return True
    is_answered = grant is not None and grant.booking.number == claim.number
    if grant is None or not is_answered:
        return seeker.now_ms - seeker.made_ms.get(claim.number, 0.0) > ANSWER_MS
    if not is_held(claim, grant, seeker.beats, seeker.now_ms):
        return True  # refused, or the vehicle was not heard for too long
    if grant.booking.is_aboard:
        return _is_there(grant)
    return grant.booking.is_missed or _is_left_for(seeker, vehicle)


def _is_there(grant: Grant) -> bool:
    """Whether to get off: at the spot, or past it."""
    drop = grant.booking.drop
    return grant.halted == drop or all((east, north) != drop for east, north, _s in grant.way)


def _is_left_for(seeker: Seeker, vehicle: str) -> bool:
    """Whether a later claim is confirmed too: then this one was only kept until then."""
    number = seeker.claims[vehicle].number
    return any(seeker.claims[other].number > number for other in held_by(seeker))


def _arrival_s(seeker: Seeker, vehicle: str, grant: Grant) -> float:
    drop = seeker.claims[vehicle].drop
    found = arrival_s(grant.way, drop, seeker.destination, seeker.walk_speed)
    return float("inf") if found is None else found


def _is_open(seeker: Seeker, vehicle: str, offer: Offer) -> bool:
    is_fresh = seeker.now_ms - offer.heard_ms <= FRESH_MS
    return is_fresh and seeker.avoided.get(vehicle, 0.0) <= seeker.now_ms


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
