"""Trips and seats: whether a ride is quicker than walking, and seats as leases. Pure. [EN-13]

A passenger claims a seat, the vehicle books it, the passenger holds it. Only the vehicle assigns
its seats, so no two claims get the same one. A silent passenger must lose its seat, and must know
it before the vehicle assigns the seat again. The passenger counts its beats and remembers when it
made each; a booking names the newest beat that the vehicle saw. The passenger holds the seat for
`HOLD_MS` from when it *made* that beat; the vehicle keeps it for longer from when it *saw* it, each
by its own steady clock. So whatever is lost, late or reordered, the passenger releases first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import hypot
from typing import Final, NamedTuple

import msgspec

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


HOLD_MS: Final = 15_000.0
"""So long a passenger holds a seat after the last beat that it knows the vehicle saw."""
KEEP_MS: Final = HOLD_MS * 1.1 + 1_000
"""So long the vehicle keeps it: steady clocks that differ by a tenth do no harm."""
_MOST_SEEN: Final = 4_096


class Claim(msgspec.Struct, frozen=True):
    """A passenger wants seats of one vehicle."""

    number: int
    """Counts the claims of this passenger; a later one is greater."""
    seats: int
    meet: Spot
    drop: Spot
    is_boarding: bool = False
    """The passenger stands at the door."""


class Booking(msgspec.Struct, frozen=True):
    """What a vehicle says to a claim."""

    number: int
    """Of the claim."""
    beat: int
    """The newest of the passenger's beats that the vehicle saw."""
    seats: tuple[int, ...]
    """The numbers of the seats, from 1; none: refused."""
    meet: Spot
    drop: Spot
    seen_ms: float
    """When it saw that beat, by its own steady clock; nobody else can use it."""
    is_aboard: bool = False
    is_missed: bool = False
    """It has passed where they were to meet."""


class Heard(msgspec.Struct, frozen=True):
    """What a vehicle heard of a passenger last."""

    claim: Claim | None
    """On this vehicle."""
    last_number: int
    """The newest claim that the passenger ever made, on whatever vehicle."""
    beat: int
    heard_ms: float


class Desk(msgspec.Struct, frozen=True):
    """How a vehicle stands when it settles its bookings."""

    capacity: int
    ahead: Collection[Spot]
    """Where passengers can still get in or off."""
    halted: Spot | None
    """Where it stands with open doors."""
    now_ms: float
    opens_ms: float = 0.0
    """Before that it gives no seats: it may have been there before and have forgotten some."""


Seen = dict[str, tuple[int, int]]
"""For each passenger the newest claim and beat that ever led to anything."""


def settle(
    bookings: Mapping[str, Booking],
    heard: Mapping[str, Heard],
    seen: Mapping[str, tuple[int, int]],
    desk: Desk,
) -> tuple[dict[str, Booking], Seen]:
    """The bookings of a vehicle after what it heard; and what it has seen by now.

    Old bookings go before new claims, and these in order of passengers' names.
    """
    kept = {}
    for passenger, booking in bookings.items():
        renewed = _renewed(booking, heard.get(passenger), desk)
        if renewed is not None:
            kept[passenger] = renewed
    known = dict(seen)
    for passenger in sorted(heard):
        one = heard[passenger]
        if one.claim is None or passenger in kept:
            continue
        version = (one.claim.number, one.beat)
        if version > known.get(passenger, (0, 0)):
            kept[passenger] = _booked(one.claim, one.beat, kept, desk)
    for passenger, booking in kept.items():
        known[passenger] = (booking.number, booking.beat)
    for passenger in list(known)[: max(len(known) - _MOST_SEEN, 0)]:
        del known[passenger]
    return kept, known


def free_seats(bookings: Mapping[str, Booking], capacity: int) -> int:
    """How many nobody has."""
    return capacity - sum(len(booking.seats) for booking in bookings.values())


def _renewed(booking: Booking, heard: Heard | None, desk: Desk) -> Booking | None:
    """The booking as it goes on; none: it is over."""
    if heard is not None and heard.last_number >= booking.number:
        claim = heard.claim
        if claim is None or claim.number > booking.number:
            return None  # given up: the passenger never comes back to a claim
        if claim.number == booking.number:
            booking = _confirmed(booking, claim, heard.beat, desk)
    if desk.now_ms - booking.seen_ms > KEEP_MS:
        return None
    if booking.is_aboard or booking.meet in desk.ahead:
        return booking
    return msgspec.structs.replace(booking, is_missed=True)


def _confirmed(booking: Booking, claim: Claim, beat: int, desk: Desk) -> Booking:
    """The passenger says again that it wants the seats; or gets in, while the doors are open."""
    if beat > booking.beat:
        booking = msgspec.structs.replace(booking, beat=beat, seen_ms=desk.now_ms)
    if claim.is_boarding and booking.seats and desk.halted == booking.meet:
        booking = msgspec.structs.replace(booking, is_aboard=True, is_missed=False)
    return booking


def _booked(claim: Claim, beat: int, others: Mapping[str, Booking], desk: Desk) -> Booking:
    seats: tuple[int, ...] = ()
    if desk.now_ms >= desk.opens_ms and claim.meet in desk.ahead:
        taken = {seat for booking in others.values() for seat in booking.seats}
        free = [seat for seat in range(1, desk.capacity + 1) if seat not in taken]
        if 1 <= claim.seats <= len(free):
            seats = tuple(free[: claim.seats])
    return Booking(claim.number, beat, seats, claim.meet, claim.drop, desk.now_ms)


# --- the passenger's side ---


class Grant(msgspec.Struct, frozen=True):
    """What a passenger heard of a booking of its own, and of the vehicle."""

    booking: Booking
    position: tuple[float, float]
    halted: Spot | None
    way: tuple[tuple[int, int, int], ...]


def is_held(claim: Claim, grant: Grant | None, beats: Mapping[int, float], now_ms: float) -> bool:
    """Whether the passenger has the seats now. `beats` tells when it made each."""
    if grant is None or grant.booking.number != claim.number or not grant.booking.seats:
        return False
    made_ms = beats.get(grant.booking.beat)
    return made_ms is not None and now_ms < made_ms + HOLD_MS


def with_beat(beats: Mapping[int, float], beat: int, now_ms: float) -> dict[int, float]:
    """The beats that still mean something, and a new one."""
    fresh = {one: made_ms for one, made_ms in beats.items() if now_ms - made_ms < HOLD_MS}
    return {**fresh, beat: now_ms}
