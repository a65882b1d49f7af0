"""What a vehicle or phone has at hand: a map, a steady clock, and chance. [EN-13]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rapport.kernel.chance import Chance
from rapport_lab.car_sharing.travel import spot_of
from rapport_lab.ensemble.simulation.streets import StreetMap

WALK_SPEED: Final = 1.4
_TRIES: Final = 20


class Town:
    """The surroundings of one node. `pace`: everything moves so many times as fast as in life, so
    that a minute on real sockets shows a quarter of an hour.
    """

    def __init__(
        self, streets: StreetMap, time_ms: Callable[[], float], chance: Chance, *, pace: float = 1.0
    ) -> None:
        self.streets, self.time_ms, self.chance, self.pace = streets, time_ms, chance, pace
        self.walk_speed = WALK_SPEED * pace
        # People wait for a time of life, and for messages, which are as slow as ever.
        self.patience_s = 60 / pace + 6
        """So long a vehicle waits at most for who is not there yet."""
        self.rest_s = 30 / pace + 3
        """So long one stays where one wanted to be."""
        self.dwell_s = 10 / pace + 2
        """So long a bus stops at the least."""
        self._by_spot: dict[tuple[float, float], int] = {
            spot_of(streets, place): place for place in range(len(streets.places))
        }

    def drive_speed(self, start: int, end: int) -> float:
        """Metres per second by car from a place to a neighbouring one."""
        return max(self.streets.speed(start, end), 1.0) * self.pace

    def foot_speed(self, start: int, end: int) -> float:
        """Metres per second on foot, anywhere."""
        return self.walk_speed

    def drawn_place(self, start: int, *, least_metres: float) -> int:
        """Somewhere else, at least so far off if there is such a place."""
        places = len(self.streets.places)
        drawn = [self.chance.randrange(places) for _ in range(_TRIES)]
        far = [place for place in drawn if self.streets.length(start, place) >= least_metres]
        return far[0] if far else max(drawn, key=lambda place: self.streets.length(start, place))

    def place_at(self, position: tuple[float, float]) -> int:
        """The crossing nearest to a position; of a spot that was told, the very crossing."""
        known = self._by_spot.get(position)
        return self.streets.nearest(*position) if known is None else known

    def spot(self, place: int) -> tuple[int, int]:
        """A place as it is named to others."""
        return spot_of(self.streets, place)
