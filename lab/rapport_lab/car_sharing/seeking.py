"""What a passenger claims: a pure choice among what it heard. [EN-13]"""

from __future__ import annotations

from collections.abc import Mapping
from math import dist
from typing import Final

import msgspec

from rapport_lab.car_sharing.matching import Trip, arrival_s
from rapport_lab.car_sharing.seats import Claim, Grant, is_held

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
