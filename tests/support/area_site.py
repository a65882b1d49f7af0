"""A recorded site with circles, polygons, longitudes and latitudes: tests/data/areas."""

from __future__ import annotations

import csv
from pathlib import Path

from rapport.core.schema import PARTS
from rapport.site.site import Site, load_site
from support.judge.holding import Reading

DIRECTORY = Path(__file__).parents[1] / "data" / "areas"


def area_site() -> Site:
    return load_site(DIRECTORY)


def recorded_readings(site: Site) -> list[Reading]:
    """The readings of all its files, in order of time and id."""
    found = []
    for source in site.ontology.sources.values():
        kind = site.ontology.streams()[source.stream]
        assert len(source.value) == len(PARTS[kind])
        with (DIRECTORY / source.events).open() as file:
            for row in csv.DictReader(file):
                value = tuple(float(row[name]) for name in source.value)
                time, key = int(row[source.time]), row[source.key]
                found.append(Reading(time, row[source.id], source.stream, key, value, source.name))
    return sorted(found, key=lambda one: (one.time, one.id))
