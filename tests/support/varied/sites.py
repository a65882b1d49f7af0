"""Random sites and what is read there: numbers, texts and points from events and tables, missing
values, identities with odd characters, several sources per stream. [PO-1, PO-7]

The same draws give the same site, on every machine. Times repeat and differ by exactly the windows
and durations on purpose; values lie on a small grid, so borders are hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from rapport.core.schema import AttributeType
from rapport.policy.measures import measure
from rapport.policy.ontology import Ontology, PairTable, PushSource, Relationship, SiteFunction
from rapport.tables.instances import Instances
from support.judge.holding import Reading
from support.varied.worlds import Pull

SPANS_MS = (20, 50, 100, 100, 200, 400)
"""Windows, durations and times of staleness."""
ODD_NAMES = ("o'brien", 'say "x"', "ü ö", " ", "0", "00", "7", "10", "日本", "x/y, z", "A", "-1")
KINDS = ("mast", "buoy", "o'k")
STATES = ("open", "shut", "")
_Item = TypeVar("_Item")


class Draws(Protocol):
    """What random sites need of a generator: `Chance`, or one of hypothesis that can shrink."""

    def randint(self, a: int, b: int) -> int:
        """Both ends belong to it."""

    def choice(self, seq: Sequence[_Item]) -> _Item:
        """One of them."""

    def sample(self, population: Sequence[_Item], k: int) -> list[_Item]:
        """So many different ones."""


@measure("number", "number")
def spread(first: Sequence[float], second: Sequence[float]) -> float:
    """How far two numbers lie apart; not a number where the first is zero."""
    return abs(first[0] - second[0]) if first[0] else float("nan")


@measure("number")
def twice(value: Sequence[float]) -> float:
    """Of one value."""
    return 2 * value[0]


class Site(msgspec.Struct, frozen=True):
    """A random site with what its sources say."""

    ontology: Ontology
    pull: Pull
    readings: tuple[Reading, ...]
    """In order of time."""


def varied_site(draws: Draws, *, events: int = 30) -> Site:
    """Up to three stations, people and rooms each; what comes as events differs from site to
    site.
    """
    ontology = _ontology(draws)
    names = draws.sample(ODD_NAMES, 9)
    named = {"station": names[0:3], "person": names[3:6], "room": names[6:8]}
    known = {concept: own[: draws.randint(2, 3)] for concept, own in named.items()}
    tables = {concept: _instances(draws, ontology, concept, own) for concept, own in known.items()}
    readings = _readings(draws, ontology, named, events)
    return Site(ontology, Pull(tables, _pairs(draws, ontology, named)), readings)


# The ontology.


def _ontology(draws: Draws) -> Ontology:
    given = {"station": ["temperature"], "person": ["position"]}
    optional = ("dewpoint", "state", "place", "alarm")
    given["station"] += [name for name in optional if draws.randint(0, 1)]
    if draws.randint(0, 3) == 0:
        given["room"] = ["area"]
    concepts: dict[str, dict[str, AttributeType]] = {
        "station": {
            "temperature": "number",
            "dewpoint": "number",
            "limit": "number",
            "state": "text",
            "kind": "text",
            "armed": "boolean",
            "alarm": "boolean",
            "place": "point",
        },
        "person": {"position": "point", "status": "text"},
        "room": {"area": "rectangle", "door": "point", "security": "text", "limit": "number"},
    }
    unit = draws.choice(("", "degC"))
    stations = {"temperature": unit, "dewpoint": unit, "limit": unit} if unit else {}
    return Ontology(
        concepts=concepts,
        relationships={one.name: one for one in _RELATIONSHIPS},
        sources=_sources(draws, given),
        units={"station": stations, "room": {"limit": unit} if unit else {}},
        functions={one.name: one for one in _FUNCTIONS},
    )


_RELATIONSHIPS = (
    Relationship("inside", ("person", "position"), ("room", "area"), "inside"),
    Relationship("near", ("person", "position"), ("person", "position"), "within"),
    Relationship(
        "beside",
        ("person", "position"),
        ("station", "place"),
        "support.varied.worlds:in_steps",
    ),
    Relationship("stands", ("station", "place"), ("room", "area"), "inside"),
    Relationship("leads", ("room", "door"), ("room", "area"), "inside"),
    Relationship("resembles", ("station", "state"), ("station", "state"), "same"),
)
_FUNCTIONS = (
    SiteFunction(name="distance", of=(("person", "position"),) * 2, measure="distance"),
    SiteFunction(
        name="apart", of=(("person", "position"), ("station", "place")), measure="distance"
    ),
    SiteFunction(
        name="spread",
        of=(("station", "temperature"), ("station", "dewpoint")),
        measure="support.varied.sites:spread",
    ),
    SiteFunction(
        name="twice",
        of=(("station", "temperature"),),
        measure="support.varied.sites:twice",
    ),
    SiteFunction(
        name="minimumDistance",
        of=(("person", "id"),) * 2,
        lookup=PairTable(table="minimum", keys=("a", "b"), value="metres", symmetric=True),
        unit="m",
    ),
    SiteFunction(
        name="rating",
        of=(("station", "kind"),),
        lookup=PairTable(table="ratings", keys=("kind",), value="rating"),
    ),
)


def _sources(draws: Draws, given: dict[str, list[str]]) -> dict[str, PushSource]:
    """One or two per stream; some give two attributes with one event."""
    sources: dict[str, PushSource] = {}
    for concept, attributes in given.items():
        for attribute in attributes:
            for number in range(draws.randint(1, 2)):
                further: tuple[str, ...] = ()
                if attribute == "temperature" and "dewpoint" in attributes:
                    further = draws.choice(((), ("dewpoint",)))
                name = f"{concept}-{attribute}-{number}"
                sources[name] = PushSource(
                    name=name,
                    concept=concept,
                    attribute=attribute,
                    key="key",
                    value=("value",),
                    further=further,
                    stale_after_ms=draws.choice((0, 0, *SPANS_MS)),
                    uncertainty_ms=draws.choice((0, 0, 0, 5, 10, 50)),
                    period_ms=draws.choice((0, 0, 0, 20, 100, 1_000)),
                )
    return sources


# The tables.


def _instances(draws: Draws, ontology: Ontology, concept: str, names: list[str]) -> Instances:
    given = ontology.streams()
    columns = {
        attribute: _column(draws, attribute, kind, len(names))
        for attribute, kind in ontology.concepts[concept].items()
        if f"{concept}.{attribute}" not in given
    }
    return Instances(concept, names, columns)


def _column(draws: Draws, attribute: str, kind: AttributeType, count: int) -> Any:
    values = [
        None if draws.randint(0, 5) == 0 else _value(draws, attribute, kind) for _ in range(count)
    ]
    if kind in ("text", "boolean"):
        column = np.empty(count, object)
        column[:] = [None if value is None else value[0] for value in values]
        return column
    width = {"number": 1, "point": 2, "rectangle": 4}[kind]
    rows = [(float("nan"),) * width if value is None else value for value in values]
    return np.array(rows, np.float64).reshape(count, width)[:, 0 if width == 1 else slice(None)]


def _value(draws: Draws, attribute: str, kind: AttributeType) -> tuple[Any, ...]:
    match kind:
        case "text":
            known = {"kind": KINDS, "state": STATES}.get(attribute, ("guest", "staff"))
            return (draws.choice(known),)
        case "boolean":
            return (draws.choice((True, False)),)
        case "number":
            return (float(draws.randint(0, 4)),)
        case "point":
            return (float(draws.randint(0, 3)), float(draws.randint(0, 2)))
        case "rectangle":
            x, y = float(draws.randint(0, 2)), float(draws.randint(0, 1))
            return (x, y, x + draws.randint(0, 3), y + draws.randint(0, 2))
    raise AssertionError(f"these sites have no {kind}")


def _pairs(
    draws: Draws, ontology: Ontology, named: dict[str, list[str]]
) -> dict[str, dict[tuple[str, ...], float]]:
    """Some of the numbers that can be looked up; a symmetric table in both orders."""
    found: dict[str, dict[tuple[str, ...], float]] = {"minimumDistance": {}, "rating": {}}
    for one in named["person"]:
        for other in named["person"]:
            if draws.randint(0, 3):
                number = float(draws.randint(0, 3))
                found["minimumDistance"] |= {(one, other): number, (other, one): number}
    found["rating"] = {(kind,): float(draws.randint(0, 4)) for kind in KINDS if draws.randint(0, 3)}
    return found


# The readings.


def _readings(
    draws: Draws, ontology: Ontology, named: dict[str, list[str]], events: int
) -> tuple[Reading, ...]:
    """Mostly the same source goes on, so that others are silent; nobody need stand in a table."""
    time, readings = 1_000, []
    sources = list(ontology.sources.values())
    source = draws.choice(sources)
    number = 0
    taken: set[tuple[int, int, str, str]] = set()
    for _ in range(events):
        step = draws.choice((0, 0, 5, 5, 10, 20, 50, 100))
        time += step
        if draws.randint(0, 1):
            source = draws.choice(sources)
        key = draws.choice(named[source.concept])
        # Ids are unique per source only, so now and then two readings of one time share theirs.
        number += 0 if step == 0 and draws.randint(0, 3) == 0 else 1
        for attribute in source.attributes:
            stream = f"{source.concept}.{attribute}"
            if (time, number, stream, key) in taken:
                continue
            taken.add((time, number, stream, key))
            value = _value(draws, attribute, ontology.concepts[source.concept][attribute])
            readings.append(Reading(time, f"e{number}", stream, key, value, source.name))
    return tuple(readings)
