"""Towns made up: a grid of blocks, a little crooked. [EN-11]"""

from __future__ import annotations

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.chance import Chance
from rapport_lab.ensemble.simulation.streets import Place, Street, StreetMap


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
