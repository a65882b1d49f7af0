"""One run of a world of a city, and what every experiment measures of it. [EN-11, EN-12]"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from rapport_lab.ensemble.simulation.city import City, CitySettings
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges, quartiles
from rapport_lab.ensemble.simulation.world import World

PERIOD_MS: Final = 5_000.0
MINUTE_MS: Final = 60_000.0


@lru_cache(maxsize=1)
def city_of(nodes: int, minutes: float, seed: int) -> City:
    """The city of a point; points of one process that agree in it share it, and who is in range of
    whom at each second. A run is one period longer than its minutes: 15 are 181 publications.
    """
    duration_ms = minutes * MINUTE_MS + PERIOD_MS
    return City(CitySettings(nodes=nodes, duration_ms=duration_ms, seed=seed), keep=True)


def run_and_measure(city: City, world: World, ages: KnowledgeAges) -> dict[str, Any]:
    """Runs a world to its end; what was sent, what arrived, and how old it was."""
    city.run(world)
    nodes = len(world.nodes)
    distinct = quartiles([ages.distinct_components(number) for number in range(nodes)])
    firsts = sum(ages.distinct_components(number) for number in range(nodes))
    aged = ages.quartiles()
    published = nodes * city.settings.duration_ms / PERIOD_MS
    return {
        "messages": world.counters.total,
        **{f"sent_{kind.lower()}": count for kind, count in world.counters.sent.items()},
        **_radio(world),
        "arrivals": aged.values,
        "first_arrivals": firsts,
        "reach": aged.values / max(published * (nodes - 1), 1.0),
        "age_first_ms": aged.first,
        "age_median_ms": aged.median,
        "age_third_ms": aged.third,
        "distinct_first": distinct.first,
        "distinct_median": distinct.median,
        "distinct_third": distinct.third,
        "distinct_mean": firsts / nodes,
        "events": world.scheduler.ran,
    }


def _radio(world: World) -> dict[str, int]:
    counters = world.radio.counters if world.radio is not None else None
    return {
        "on_air": counters.on_air if counters else 0,
        "gave_up": counters.gave_up if counters else 0,
        "delivered": counters.delivered if counters else 0,
        "collided": counters.collided if counters else 0,
    }
