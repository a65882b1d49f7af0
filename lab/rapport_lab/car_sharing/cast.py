"""The actors of car sharing and their places, drawn from a seed so that processes agree. [EN-13]"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble import Component
from rapport.kernel.clock import Chance
from rapport_lab.car_sharing.pedestrian import make_pedestrian
from rapport_lab.car_sharing.town import Town
from rapport_lab.car_sharing.vehicles import make_bus, make_driver
from rapport_lab.ensemble.simulation.streets import GridSettings, StreetMap, grid_streets


class CastSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each kind, and how large the town is, if it is made up."""

    cars: int = 8
    buses: int = 1
    people: int = 12
    seed: int = 1
    side_metres: float = 1_800.0

    def __post_init__(self) -> None:
        counts = (self.cars, self.buses, self.people)
        if min(counts) < 0 or not 0 < sum(counts) <= _MOST:
            raise InvalidInput(
                f"{self.cars} cars, {self.buses} buses and {self.people} people cannot be",
                code="cars.bad_cast",
                hint=f"from 1 to {_MOST} of them together",
            )


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of them, before it is there."""

    name: str
    kind: Kind
    places: tuple[int, ...]
    """Where it begins; of a bus all check points, of a person also where it wants to be."""
    seats: int
    """That it has, or needs."""


def make_town(settings: CastSettings) -> StreetMap:
    """A town of blocks."""
    side = settings.side_metres
    grid = GridSettings(width_metres=side, height_metres=side, block_metres=150, jitter_metres=22)
    return grid_streets(grid, Chance(settings.seed))


def draw_cast(settings: CastSettings, streets: StreetMap) -> list[Part]:
    """All parts; the same for the same settings and streets."""
    chance = Chance(settings.seed + 1)
    count = len(streets.places)
    parts = [
        Part(name=f"car-{number}", kind="car", places=_drawn(chance, count, 1), seats=seats)
        for number in range(1, settings.cars + 1)
        if (seats := chance.randint(2, 4))
    ]
    parts += [
        Part(name=f"bus-{number}", kind="bus", places=_line(streets, number), seats=_BUS_SEATS)
        for number in range(1, settings.buses + 1)
    ]
    for number in range(settings.people):
        again = f"-{number // len(_NAMES) + 1}" if number >= len(_NAMES) else ""
        name = _NAMES[number % len(_NAMES)] + again
        party = 2 if chance.random() < 0.15 else 1
        places = _drawn(chance, count, 2)
        parts.append(Part(name=name, kind="person", places=places, seats=party))
    return parts


def make_component(part: Part, town: Town, *, number: int, opens_ms: float = 0.0) -> Component:
    """The one who plays it; `number` as `make_pedestrian` asks for it."""
    if part.kind == "car":
        return make_driver(part.name, town, part.places[0], seats=part.seats, opens_ms=opens_ms)
    if part.kind == "bus":
        stops = list(part.places)
        return make_bus(part.name, town, stops, seats=part.seats, opens_ms=opens_ms)
    start, end = part.places
    return make_pedestrian(part.name, town, start, end, number=number, party=part.seats)


def _drawn(chance: Chance, count: int, places: int) -> tuple[int, ...]:
    return tuple(chance.randrange(count) for _ in range(places))


def _line(streets: StreetMap, number: int) -> tuple[int, ...]:
    """A round of check points; every second line goes the other way round."""
    easts = [place[0] for place in streets.places]
    norths = [place[1] for place in streets.places]
    west, south = min(easts), min(norths)
    width, height = max(easts) - west, max(norths) - south
    shrink = 1 - 0.25 * ((number - 1) // 2 % 3)
    stops = [
        streets.nearest(
            west + width * (0.5 + (east - 0.5) * shrink),
            south + height * (0.5 + (north - 0.5) * shrink),
        )
        for east, north in _CORNERS
    ]
    line = tuple(dict.fromkeys(stops))
    return line[::-1] if number % 2 == 0 else line


_NAMES: Final = (
    *("ana", "ben", "cleo", "dario", "emma", "finn", "greta", "hugo", "ida", "jan", "kim", "leo"),
    *("mia", "nils", "olga", "paul", "rosa", "sami", "tina", "uwe", "vera", "wim", "yara", "zoe"),
)


_MOST: Final = 500


_BUS_SEATS: Final = 20


_CORNERS: Final = ((0.15, 0.15), (0.5, 0.1), (0.85, 0.2), (0.85, 0.8), (0.5, 0.9), (0.15, 0.8))
"""Where a bus line has its check points, as parts of the town's sides."""


Kind = Literal["car", "bus", "person"]
