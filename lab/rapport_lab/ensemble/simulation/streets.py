"""Street maps: places, links with length and speed, shortest paths, and generated grids. [EN-11]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import hypot
from typing import Final, NamedTuple

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance

MOST_PLACES: Final = 1_000_000
MOST_STREETS: Final = 3_000_000
_CELL_METRES: Final = 250.0
_SMALL: Final = 1e-6


class Street(NamedTuple):
    """A straight link between two places, by their numbers."""

    start: int
    end: int
    speed: float
    """Metres per second that cars drive there at most."""
    is_one_way: bool = False
    """Cars drive only from start to end; walkers walk both ways."""


Place = tuple[float, float]
"""Metres east and north of somewhere."""


class StreetMap:
    """The places and streets of a town; never changed.

    Ways are looked for by A* and cost a few microseconds per place looked at; a way that was asked
    for before is remembered.
    """

    def __init__(self, places: Sequence[Place], streets: Iterable[Street]) -> None:
        self.places: tuple[Place, ...] = tuple(places)
        self.streets: tuple[Street, ...] = tuple(streets)
        _check(self.places, self.streets)
        self._by_car: list[dict[int, float]] = [{} for _ in self.places]
        self._on_foot: list[dict[int, float]] = [{} for _ in self.places]
        for street in self.streets:
            self._join(street)
        self._car_steps = [self._seconds_from(place) for place in range(len(self.places))]
        self.top_speed = max((street.speed for street in self.streets), default=1.0)
        self._ways: dict[tuple[int, int, bool], tuple[int, ...]] = {}
        self._cells: dict[tuple[int, int], list[int]] = {}
        for number, (east, north) in enumerate(self.places):
            self._cells.setdefault(_cell(east, north), []).append(number)

    def _join(self, street: Street) -> None:
        start, end, speed, is_one_way = street
        if start == end:
            return
        by_car, on_foot = self._by_car, self._on_foot
        # Of two streets between the same places the faster one counts.
        by_car[start][end] = max(speed, by_car[start].get(end, 0.0))
        if not is_one_way:
            by_car[end][start] = max(speed, by_car[end].get(start, 0.0))
        on_foot[start][end] = on_foot[end][start] = self.length(start, end)

    def _seconds_from(self, place: int) -> list[tuple[int, float]]:
        speeds = self._by_car[place].items()
        return [(there, self.length(place, there) / speed) for there, speed in speeds]

    def length(self, start: int, end: int) -> float:
        """Metres between two places, as the crow flies; along a street that joins them the same."""
        here, there = self.places[start], self.places[end]
        return hypot(here[0] - there[0], here[1] - there[1])

    def speed(self, start: int, end: int) -> float:
        """Metres per second for cars from a place to a neighbouring one; 0 when they may not."""
        return self._by_car[start].get(end, 0.0)

    def neighbours(self, place: int, *, by_car: bool = True) -> tuple[int, ...]:
        """The places at the other ends of the streets that leave a place."""
        return tuple(self._by_car[place] if by_car else self._on_foot[place])

    @property
    def metres(self) -> float:
        """The length of all streets together."""
        return sum(self.length(street.start, street.end) for street in self.streets)

    # --- ways ---

    def way(self, start: int, end: int, *, by_car: bool = True) -> tuple[int, ...]:
        """The quickest way by car, or the shortest on foot, as places from start to end; empty when
        there is none.
        """
        key = (start, end, by_car)
        found = self._ways.get(key)
        if found is None:
            if len(self._ways) >= MOST_PLACES:
                self._ways.clear()
            found = self._ways[key] = self._find_way(start, end, by_car)
        return found

    def _find_way(self, start: int, end: int, by_car: bool) -> tuple[int, ...]:
        top_speed = self.top_speed if by_car else 1.0
        best = {start: 0.0}
        came_from: dict[int, int] = {}
        done: set[int] = set()
        waiting = [(self.length(start, end) / top_speed, start)]
        while waiting:
            _guess, here = heappop(waiting)
            if here == end:
                return _trace_back(came_from, start, end)
            if here in done:
                continue
            done.add(here)
            for there, seconds in self._steps(here, by_car):
                cost = best[here] + seconds
                if there not in best or cost < best[there]:
                    best[there], came_from[there] = cost, here
                    heappush(waiting, (cost + self.length(there, end) / top_speed, there))
        return ()

    def _steps(self, here: int, by_car: bool) -> Iterable[tuple[int, float]]:
        return self._car_steps[here] if by_car else self._on_foot[here].items()

    # --- places by where they are ---

    def nearest(self, east: float, north: float) -> int:
        """The place nearest to a point; looks at cells of 250 m in growing rings around it."""
        column, row = _cell(east, north)
        found: tuple[float, int] | None = None
        for ring in range(_CELLS_AROUND):
            # One ring more than the first that has any: a corner is further off than a side.
            if found is not None and found[0] <= (ring - 1) * _CELL_METRES:
                return found[1]
            for number in self._ring(column, row, ring):
                place = self.places[number]
                nearer = (hypot(place[0] - east, place[1] - north), number)
                found = nearer if found is None else min(found, nearer)
        if found is not None:
            return found[1]
        return min(range(len(self.places)), key=lambda number: self._off(number, east, north))

    def _ring(self, column: int, row: int, ring: int) -> Iterable[int]:
        for cell in _ring_cells(column, row, ring):
            yield from self._cells.get(cell, ())

    def _off(self, number: int, east: float, north: float) -> float:
        return hypot(self.places[number][0] - east, self.places[number][1] - north)

    def largest_part(self) -> StreetMap:
        """The largest part in which cars reach every place from every place."""
        arcs = [tuple(speeds) for speeds in self._by_car]
        parts = sorted(strong_parts(arcs), key=len, reverse=True)
        kept = sorted(parts[0]) if parts else []
        if len(kept) == len(self.places):
            return self
        new = {old: number for number, old in enumerate(kept)}
        streets = [
            Street(new[street.start], new[street.end], street.speed, street.is_one_way)
            for street in self.streets
            if street.start in new and street.end in new
        ]
        return StreetMap([self.places[old] for old in kept], streets)


_CELLS_AROUND: Final = 40
"""Rings searched before all places are compared: 10 km of nothing."""


def strong_parts(arcs: Sequence[Sequence[int]]) -> list[list[int]]:
    """The parts of a directed graph in which each reaches each (Kosaraju, without recursion)."""
    against: list[list[int]] = [[] for _ in arcs]
    for here, others in enumerate(arcs):
        for there in others:
            against[there].append(here)
    seen = [False] * len(arcs)
    parts: list[list[int]] = []
    for place in reversed(_finishing_order(arcs)):
        if not seen[place]:
            parts.append(_reached(against, place, seen))
    return parts


def _finishing_order(arcs: Sequence[Sequence[int]]) -> list[int]:
    seen = [False] * len(arcs)
    order: list[int] = []
    for first in range(len(arcs)):
        if seen[first]:
            continue
        seen[first] = True
        stack = [(first, iter(arcs[first]))]
        while stack:
            here, others = stack[-1]
            there = next((other for other in others if not seen[other]), None)
            if there is None:
                order.append(here)
                stack.pop()
            else:
                seen[there] = True
                stack.append((there, iter(arcs[there])))
    return order


def _reached(arcs: Sequence[Sequence[int]], first: int, seen: list[bool]) -> list[int]:
    seen[first] = True
    part = [first]
    for here in part:  # grows while it is walked
        for there in arcs[here]:
            if not seen[there]:
                seen[there] = True
                part.append(there)
    return part


def _trace_back(came_from: dict[int, int], start: int, end: int) -> tuple[int, ...]:
    way = [end]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return tuple(reversed(way))


def _cell(east: float, north: float) -> tuple[int, int]:
    return int(east // _CELL_METRES), int(north // _CELL_METRES)


def _ring_cells(column: int, row: int, ring: int) -> Iterable[tuple[int, int]]:
    if ring == 0:
        yield column, row
        return
    for step in range(-ring, ring + 1):
        yield column + step, row - ring
        yield column + step, row + ring
    for step in range(-ring + 1, ring):
        yield column - ring, row + step
        yield column + ring, row + step


def _check(places: Sequence[Place], streets: Sequence[Street]) -> None:
    if len(places) > MOST_PLACES or len(streets) > MOST_STREETS:
        raise InvalidInput(
            f"a map of {len(places)} places and {len(streets)} streets is too large",
            code="streets.too_large",
            hint=f"at most {MOST_PLACES} places and {MOST_STREETS} streets; cut out a smaller area",
        )
    for street in streets:
        if not (0 <= street.start < len(places) and 0 <= street.end < len(places)):
            raise _bad_street(street, "joins a place that the map does not have")
        if not _SMALL < street.speed < 1_000:
            raise _bad_street(street, "has no possible speed")


def _bad_street(street: Street, fault: str) -> InvalidInput:
    return InvalidInput(
        f"the street {street} {fault}",
        code="streets.bad_street",
        hint="number places from 0; speeds are in metres per second, above 0 and below 1,000",
    )


class GridSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A made-up town. The default covers 8 square kilometres: what we take "the center of Berlin of
    8 km perimeter" to mean. A square with sides of 2 km, the other reading, is so dense with 200
    nodes that each has 7 neighbours, where the published counts show fewer than 2 receivers.
    """

    width_metres: float = 2_828.0
    height_metres: float = 2_828.0
    block_metres: float = 125.0
    jitter_metres: float = 25.0
    """How far a crossing may lie off the grid, in each direction."""
    missing: float = 0.08
    """The part of the streets that are left out, as in towns with parks and a river."""
    speed: float = 50 / 3.6
    """Metres per second on main streets: every `main_every`-th."""
    side_speed: float = 30 / 3.6
    main_every: int = 4


def grid_streets(settings: GridSettings, chance: Chance) -> StreetMap:
    """The largest connected part of a grid drawn from the chance; raises InvalidInput."""
    columns, rows = _counts(settings)
    places = [_crossing(settings, chance, index, columns, rows) for index in range(columns * rows)]
    streets = [
        Street(start, end, speed)
        for start, end, speed in _grid_links(settings, columns, rows)
        if chance.random() >= settings.missing
    ]
    return StreetMap(places, streets).largest_part()


def _counts(settings: GridSettings) -> tuple[int, int]:
    block = settings.block_metres
    sides = (settings.width_metres, settings.height_metres)
    is_bad = block < 1 or min(sides) < block or not 0 <= settings.jitter_metres < block / 2
    if is_bad or not 0 <= settings.missing < 0.5 or settings.main_every < 1:
        raise InvalidInput(
            f"no town has this grid: {settings}",
            code="streets.bad_grid",
            hint="blocks of 1 m or more, sides of a block or more, jitter below half a block, "
            "less than half of the streets missing",
        )
    columns, rows = (round(side / block) + 1 for side in sides)
    return columns, rows


def _crossing(settings: GridSettings, chance: Chance, index: int, columns: int, rows: int) -> Place:
    column, row = index % columns, index // columns
    jitter = settings.jitter_metres
    east = column * settings.width_metres / (columns - 1) + chance.uniform(-jitter, jitter)
    north = row * settings.height_metres / (rows - 1) + chance.uniform(-jitter, jitter)
    # Nothing lies outside of the town: its edge streets bend inwards only.
    return (
        min(max(east, 0.0), settings.width_metres),
        min(max(north, 0.0), settings.height_metres),
    )


def _grid_links(settings: GridSettings, columns: int, rows: int) -> list[tuple[int, int, float]]:
    main, side, every = settings.speed, settings.side_speed, settings.main_every
    links: list[tuple[int, int, float]] = []
    for row in range(rows):
        for column in range(columns):
            here = row * columns + column
            if column + 1 < columns:
                links.append((here, here + 1, side if row % every else main))
            if row + 1 < rows:
                links.append((here, here + columns, side if column % every else main))
    return links
