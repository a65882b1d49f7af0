"""An observer of car sharing: a picture for the map, and events in words. [EN-13]

It sees only published knowledge, so it works the same on simulated and on real nodes, in this
process or elsewhere.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from rapport.core.knowledge import Knowledge
from rapport_lab.car_sharing.map_page import Ground, Happening, Picture, Thing, Tie
from rapport_lab.car_sharing.seats import Booking, Claim
from rapport_lab.ensemble.simulation.streets import StreetMap

_KEPT: Final = 60
_MAIN_SPEED: Final = 40 / 3.6
COUNTED: Final = ("rides", "arrivals", "changes", "refused", "missed", "lost")


class SeenVehicle(msgspec.Struct, frozen=True, kw_only=True):
    """What is published of a vehicle, as far as it is shown."""

    position: tuple[float, float]
    capacity: int
    free: int
    way: tuple[tuple[int, int, int], ...] = ()
    bookings: dict[str, Booking] = {}
    line: tuple[tuple[int, int], ...] = ()


class SeenPerson(msgspec.Struct, frozen=True, kw_only=True):
    """What is published of somebody on foot, as far as it is shown."""

    position: tuple[float, float]
    destination: tuple[int, int]
    claims: dict[str, Claim] = {}
    rides: str = ""


class Watcher:
    """Compares what it sees with what it saw. It is the source of the map page."""

    def __init__(self, streets: StreetMap, title: str = "Cars that take people along") -> None:
        self.title, self._streets = title, streets
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self._lost: set[str] = set()
        self._time_ms = 0.0
        self._vehicles: dict[str, SeenVehicle] = {}
        self._people: dict[str, SeenPerson] = {}
        self._number = 0
        self._happenings: deque[Happening] = deque(maxlen=_KEPT)

    def look(self, knowledge: Iterable[Knowledge], time_ms: float) -> list[Happening]:
        """Takes in how it is now; what is not among it is gone. Returns what happened since."""
        self._time_ms = time_ms
        vehicles: dict[str, SeenVehicle] = {}
        people: dict[str, SeenPerson] = {}
        for one in knowledge:
            if "SeatOffering" in one.roles:
                _read(one, SeenVehicle, vehicles)
            elif "SeatSeeking" in one.roles:
                _read(one, SeenPerson, people)
        first = self._number
        self._tell_who_is_there(vehicles, people)
        for name, vehicle in vehicles.items():
            self._tell_vehicle(name, vehicle, self._vehicles.get(name))
        for name, person in people.items():
            if name in self._people:
                self._tell_person(name, person, self._people[name])
        self._vehicles, self._people = vehicles, people
        return [one for one in self._happenings if one.number > first]

    # --- words ---

    def _tell(self, text: str, counted: str = "") -> None:
        self._number += 1
        if counted:
            self.counts[counted] += 1
        self._happenings.append(Happening(self._number, self._time_ms, text))

    def _tell_who_is_there(self, vehicles: dict[str, Any], people: dict[str, Any]) -> None:
        now, before = {**vehicles, **people}, {**self._vehicles, **self._people}
        for name in sorted(before.keys() - now.keys()):
            self._tell(f"{name} is not heard any more", "lost")
            self._lost.add(name)
        for name in sorted(self._lost & now.keys()):
            self._tell(f"{name} is there again")
            self._lost.discard(name)

    def _tell_vehicle(self, name: str, now: SeenVehicle, before: SeenVehicle | None) -> None:
        known = before.bookings if before is not None else {}
        for passenger, booking in now.bookings.items():
            old = known.get(passenger)
            if old is None or old.number != booking.number:
                self._tell_booking(name, passenger, booking)
                old = msgspec.structs.replace(booking, is_aboard=False, is_missed=False)
            if booking.is_aboard and not old.is_aboard:
                self._tell(f"{passenger} gets into {name}", "rides")
            if booking.is_missed and not old.is_missed and booking.seats:
                self._tell(f"{name} went on without {passenger}", "missed")
        for passenger, old in known.items():
            if passenger not in now.bookings and old.is_aboard:
                self._tell(f"{passenger} gets off {name}")

    def _tell_booking(self, name: str, passenger: str, booking: Booking) -> None:
        if not booking.seats:
            self._tell(f"{name} has no seat for {passenger}", "refused")
            return
        seats = " and ".join(str(seat) for seat in booking.seats)
        word = "seat" if len(booking.seats) == 1 else "seats"
        east, north = booking.meet
        self._tell(
            f"{name} gives {passenger} {word} {seats}; they meet at {east} east, {north} north"
        )

    def _tell_person(self, name: str, now: SeenPerson, before: SeenPerson) -> None:
        for vehicle in sorted(now.claims.keys() - before.claims.keys()):
            self._tell(f"{name} asks {vehicle} for a seat")
        left = sorted(before.claims.keys() - now.claims.keys())
        kept = now.claims.keys() & before.claims.keys()
        if len(left) == len(kept) == 1 and not before.rides:
            (newer,) = kept
            if before.claims[newer].number > before.claims[left[0]].number:
                self._tell(f"{name} changes from {left[0]} to {newer}", "changes")
        if now.destination != before.destination:
            self._tell(f"{name} has arrived, and sets out again", "arrivals")

    # --- the map ---

    def ground(self) -> Ground:
        """See MapSource."""
        places = self._streets.places
        easts, norths = [place[0] for place in places], [place[1] for place in places]
        lines = tuple(
            (*_round(places[one.start]), *_round(places[one.end]), one.speed > _MAIN_SPEED)
            for one in self._streets.streets
        )
        return Ground(
            west=min(easts), south=min(norths), east=max(easts), north=max(norths), streets=lines
        )

    def picture(self) -> Picture:
        """See MapSource."""
        vehicles = [_vehicle(name, one) for name, one in sorted(self._vehicles.items())]
        people = [self._person(name, one) for name, one in sorted(self._people.items())]
        return Picture(
            time_ms=self._time_ms,
            things=(*vehicles, *people),
            ties=tuple(self._ties()),
            happenings=tuple(reversed(self._happenings)),
            counts={name: self.counts[name] for name in COUNTED},
            is_over=self.is_over,
        )

    def _ties(self) -> Iterable[Tie]:
        for name, person in sorted(self._people.items()):
            for vehicle in person.claims:
                if vehicle in self._vehicles and vehicle != person.rides:
                    is_held = self._booking(vehicle, name) is not None
                    yield Tie(name, vehicle, "held" if is_held else "claimed")

    def _booking(self, vehicle: str, person: str) -> Booking | None:
        seen, claim = self._vehicles.get(vehicle), self._people[person].claims.get(vehicle)
        booking = seen.bookings.get(person) if seen is not None else None
        if booking is None or claim is None or booking.number != claim.number:
            return None
        return booking if booking.seats else None

    def _person(self, name: str, one: SeenPerson) -> Thing:
        held = [vehicle for vehicle in one.claims if self._booking(vehicle, name) is not None]
        if one.rides:
            says, state = f"rides with {one.rides}", "riding"
        elif held:
            says, state = f"walks to where {held[-1]} picks it up", "waiting"
        elif one.claims:
            says, state = f"walks, and has asked {', '.join(one.claims)}", ""
        else:
            says, state = "walks to its destination", ""
        target = one.claims[held[-1]].meet if held and not one.rides else one.destination
        east, north = one.position
        return Thing(
            id=name, kind="person", east=east, north=north, says=says, state=state, way=(target,)
        )


def _vehicle(name: str, one: SeenVehicle) -> Thing:
    aboard = sorted(who for who, booking in one.bookings.items() if booking.is_aboard)
    awaited = sorted(
        who
        for who, booking in one.bookings.items()
        if booking.seats and not (booking.is_aboard or booking.is_missed)
    )
    words = [f"{one.free} of {one.capacity} seats free"]
    words += [f"with {', '.join(aboard)}"] if aboard else []
    words += [f"will meet {', '.join(awaited)}"] if awaited else []
    east, north = one.position
    return Thing(
        id=name,
        kind="bus" if one.line else "car",
        east=east,
        north=north,
        says="; ".join(words),
        state="" if one.free else "full",
        way=tuple((there[0], there[1]) for there in one.way),
    )


def _read(one: Knowledge, shape: type[Any], into: dict[str, Any]) -> None:
    """What cannot be read is not shown: somebody of another release, or none of ours."""
    try:
        into[one.component] = msgspec.convert(one.values, shape, strict=False)
    except msgspec.ValidationError:
        into.pop(one.component, None)


def _round(place: tuple[float, float]) -> tuple[float, float]:
    return round(place[0], 1), round(place[1], 1)
