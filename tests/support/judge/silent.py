"""Rule 8 read literally: which sources were silent in an interval, from the list of all readings.
[PO-7]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from rapport.policy.ontology import Ontology
from support.judge.holding import Reading


def silent_sources(
    ontology: Ontology,
    periods: Mapping[str, int],
    readings: Iterable[Reading],
    streams: Collection[str],
    start: int,
    end: int,
) -> tuple[str, ...]:
    """The sources with a period that give one of the streams and were silent in [start, end)."""
    known = list(readings)
    return tuple(
        sorted(
            name
            for name, period in periods.items()
            if not ontology.sources[name].streams.isdisjoint(streams)
            and _silent(known, name, period, start, end)
        )
    )


def _silent(readings: list[Reading], source: str, period: int, start: int, end: int) -> bool:
    """Some stretch without an event of the source, longer than its period, meets the interval."""
    heard = [reading.time for reading in readings if reading.source == source]
    began = min(reading.time for reading in readings)
    moments = [began, *sorted(time for time in heard if time < end), end]
    return any(
        until - since > period and until > start and since < end
        for since, until in pairwise(moments)
    )
