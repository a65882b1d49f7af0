"""Small random worlds and policies with situations, for property tests: `varied_situation`.
[SI-1 to SI-8, SI-11]

The same draws give the same, on every machine. Times repeat and differ by exactly the durations on
purpose; values and constants lie on one small grid, so limits are hit; days, nights and changes of
clocks fall into the time of the readings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from hypothesis import strategies as st

from rapport.core.detection import detection_lines
from rapport.core.times import parse_time
from rapport.kernel.clock import Chance
from rapport.policy.language.situations import parse_situation_policy
from rapport.policy.ontology import (
    Kind,
    Ontology,
    PairTable,
    PushSource,
    Relationship,
    SiteFunction,
)
from rapport.policy.plan import Constraint
from rapport.tables.instances import Instances
from support.judge.holding import Reading
from support.judge.situation_world import TableVersion
from support.judge.situations import SituationVerdict, judge_situation
from support.situation_policies import ZONES, PolicyWriter
from support.varied.sites import Draws
from support.varied.worlds import Pull

NAME = "random"
"""Of every policy."""


def _source(name: str, concept: str, attribute: str, *value: str, stale_s: int = 0) -> PushSource:
    return PushSource(
        name=name,
        concept=concept,
        attribute=attribute,
        key="key",
        value=value or ("value",),
        stale_after_ms=stale_s * 1000,
    )


ONTOLOGY = Ontology(
    concepts={
        "station": {
            "temperature": "number",
            "humidity": "number",
            "level": "number",
            "door": "text",
            "name": "text",
            "region": "text",
            "limit": "number",
        },
        "person": {"status": "text", "position": "point"},
        "room": {"security": "text", "area": "rectangle", "limit": "number"},
    },
    relationships={
        "inside": Relationship("inside", ("person", "position"), ("room", "area"), "inside"),
        "within": Relationship("within", ("person", "position"), ("person", "position"), "within"),
    },
    sources={
        one.name: one
        for one in (
            _source("hut", "station", "temperature"),
            _source("roof", "station", "temperature", stale_s=6),
            _source("cellar", "station", "humidity"),
            _source("gauge", "station", "level", stale_s=10),
            _source("doors", "station", "door"),
            _source("gates", "person", "position", "x", "y"),
            _source("badges", "person", "position", "x", "y", stale_s=10),
        )
    },
    units={
        "station": {"temperature": "degC", "humidity": "%", "level": "m", "limit": "degC"},
        "room": {"limit": "degC"},
    },
    functions={
        "distance": SiteFunction(
            name="distance", of=(("person", "position"),) * 2, measure="distance"
        ),
        "minimumDistance": SiteFunction(
            name="minimumDistance",
            of=(("person", "id"),) * 2,
            lookup=PairTable(table="minimum", keys=("a", "b"), value="metres", symmetric=True),
            unit="m",
        ),
    },
    kinds={"employee": Kind("employee", "person", (Constraint("status", "=", "employee"),))},
    parents={"employee": "person"},
    day_tables=("holidays",),
)
DISTANCES: dict[tuple[str, ...], float] = {
    ("2", "10"): 3.0,
    ("10", "2"): 3.0,
    ("2", "ann"): 1.0,
    ("ann", "2"): 1.0,
}
DAYS = {"holidays": frozenset({"2024-01-06", "2024-03-31", "2024-12-25"})}
Rows = Mapping[str, Mapping[str, object]]
"""The values of each identity; what is left out is missing."""


class SituationTables(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of the three concepts and the days of `holidays`."""

    station: Rows = {}
    person: Rows = {}
    room: Rows = {}
    days: Mapping[str, frozenset[str]] = msgspec.field(default_factory=lambda: DAYS)

    def version(self, since: int | None = None) -> TableVersion:
        """In force from a time on; by default from the beginning."""
        rows = {"station": self.station, "person": self.person, "room": self.room}
        instances = {concept: _instances(concept, one) for concept, one in rows.items()}
        pull = Pull(instances, {"minimumDistance": DISTANCES}, self.days)
        if since is None:
            return TableVersion(pull=pull, days=self.days)
        return TableVersion(pull=pull, days=self.days, since=since)


class SituationWorld(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is tried on."""

    tables: tuple[TableVersion, ...]
    readings: tuple[Reading, ...]
    """In the order of their times."""
    start: int | None = None
    """By default the time of the first reading."""
    until: int | None = None
    """By default the time of the last reading."""
    ontology: Ontology = ONTOLOGY
    """With the zone of the site."""


# Drawing.

EDGES = tuple(
    parse_time(moment)
    for moment in (
        "2024-01-05T22:00:00+01:00",
        "2024-01-06T00:00:00+01:00",  # a Saturday and a holiday
        "2024-03-31T01:00:00Z",  # clocks of Berlin are put forward
        "2024-10-27T01:00:00Z",  # clocks of Berlin are put back
        "2024-11-03T06:00:00Z",  # clocks of New York are put back
        "2024-02-29T00:00:00+05:45",
        "2025-01-01T00:00:00+01:00",
    )
)
"""Moments at which days and clocks change; the readings lie around one of them."""
_BEFORE_MS = 15_000
_STEPS = (0, 0, 250, 500, 1000, 1000, 1500, 2000, 3000, 4000)
_TEMPERATURES = (20.0, 26.5, 27.0, 27.5, 28.0, 29.0, 30.0, 30.0, 31.5, 31.5, 33.0, -0.0, 1e308)
_HUMIDITIES = (0.0, 30.0, 35.0, 40.0, 50.0, 50.0, 60.5, 100.0, 5e-324)
_LEVELS = (0.0, 1.0, 1.0, 1.05, 1.1, 1.5, 2.0, -3.0)
_PLACES = tuple((x, y) for x in (0.0, 5.0, 8.0, 10.0, 30.0) for y in (0.0, 4.0))
_STATIONS, _PEOPLE = ("2", "10", "x1"), ("2", "10", "ann", "x8")
"""The last one of each is in no table."""


_GIVEN: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[object]]] = {
    "temperature": (("hut", "roof"), _STATIONS, _TEMPERATURES),
    "humidity": (("cellar",), _STATIONS, _HUMIDITIES),
    "level": (("gauge",), _STATIONS, _LEVELS),
    "door": (("doors",), _STATIONS, ("open", "shut", "")),
    "position": (("gates", "badges"), _PEOPLE, _PLACES),
}
"""By attribute its sources, whose values they give, and which."""
_WORDS = {"position": "position|inside|within|[dD]istance"}
"""How a policy names an attribute, where not by its name."""


def varied_tables(draws: Draws) -> SituationTables:
    """Rows of some identities, with cells missing."""

    def rows(identities: Sequence[str], **cells: Sequence[object]) -> Rows:
        listed = [identity for identity in identities if draws.randint(0, 9) != 9]
        return {
            identity: {name: draws.choice(values) for name, values in cells.items()}
            for identity in listed
        }

    areas = ((0.0, 0.0, 10.0, 10.0), (0.0, 0.0, 8.0, 4.0), (10.0, 0.0, 30.0, 10.0), None)
    return SituationTables(
        station=rows(
            _STATIONS[:-1],
            region=("north", "north", "south", None),
            name=("One", "Two", None),
            limit=(27.0, 28.0, 30.0, None),
        ),
        person=rows(_PEOPLE[:-1], status=("guest", "guest", "employee", "contractor", None)),
        room=rows(
            ("r1", "r2"),
            security=("restricted", "restricted", "public"),
            limit=(27.0, 30.0, None),
            area=areas,
        ),
    )


def varied_world(
    draws: Draws,
    attributes: Sequence[str] = tuple(_GIVEN),
    *,
    edge: int = EDGES[0],
    zone: str = "Europe/Berlin",
    events: int = 40,
    changing_tables: bool = True,
) -> SituationWorld:
    """A world around `edge` with readings of these attributes.

    Args:
        events: the largest number of readings; there is at least one.
        changing_tables: whether tables may change while the readings come.
    """
    time = first = edge - _BEFORE_MS
    readings = []
    for number in range(draws.randint(min(18, events), events)):
        time += draws.choice(_STEPS)
        sources, keys, values = _GIVEN[draws.choice(attributes)]
        source, value = draws.choice(sources), draws.choice(values)
        parts = value if isinstance(value, tuple) else (value,)
        readings.append(
            Reading(time, f"e{number}", _stream(source), draws.choice(keys), parts, source)
        )
    tables = [varied_tables(draws).version()]
    if changing_tables and draws.randint(0, 3) == 3:
        since = first + 500 * draws.randint(0, 60)
        tables.append(varied_tables(draws).version(since))
    return SituationWorld(
        ontology=msgspec.structs.replace(ONTOLOGY, zone=zone),
        tables=tuple(tables),
        readings=tuple(readings),
        start=first + 500 * draws.randint(0, 20) if draws.randint(0, 9) == 9 else None,
        until=time + draws.choice((0, 1000, 5000, 30_000)),
    )


def varied_situation(
    draws: Draws, *, events: int = 40, changing_tables: bool = True
) -> tuple[SituationWorld, str]:
    """A world and the text of a policy over it, which the compiler takes."""
    edge = draws.choice(EDGES)
    zone = draws.choice(("Europe/Berlin", "UTC", *ZONES))
    text = PolicyWriter(draws, edge, zone).policy()
    attributes = attributes_in(text)
    if not attributes or draws.randint(0, 1):
        # Readings of others make an instance known, end its silence and move time.
        attributes.append(draws.choice(tuple(_GIVEN)))
    world = varied_world(
        draws,
        attributes,
        edge=edge,
        zone=zone,
        events=events,
        changing_tables=changing_tables,
    )
    return world, text


def attributes_in(text: str) -> list[str]:
    """The attributes of events that a policy names."""
    return [name for name in _GIVEN if re.search(_WORDS.get(name, name), text)]


def situation_trials(
    *, changing_tables: bool = True
) -> st.SearchStrategy[tuple[SituationWorld, str]]:
    """Worlds and policies for hypothesis: from seeds, which vary most, and from its own draws,
    which become small when something fails.
    """
    make = partial(varied_situation, changing_tables=changing_tables)
    seeded = st.integers(0, 2**32).map(lambda seed: make(Chance(seed)))
    return seeded | st.randoms(use_true_random=False).map(make)


def _stream(source: str) -> str:
    return ONTOLOGY.sources[source].stream


# Judging.


def judge_world(world: SituationWorld, text: str, also_at: Sequence[int] = ()) -> SituationVerdict:
    """What the judge says of a policy's text; see `judge_situation`."""
    return judge_situation(
        parse_situation_policy(NAME, text),
        world.ontology,
        world.tables,
        world.readings,
        start=world.start,
        until=world.until,
        also_at=also_at,
    )


def judge_lines(world: SituationWorld, text: str) -> bytes:
    """The lines that `rapport replay` must print."""
    return detection_lines(judge_world(world, text).detections)


def _instances(concept: str, rows: Rows) -> Instances:
    columns = {
        name: _column(kind, [row.get(name) for row in rows.values()])
        for name, kind in ONTOLOGY.concepts[concept].items()
        if f"{concept}.{name}" not in ONTOLOGY.streams()
    }
    return Instances(concept, list(rows), columns)


def _column(kind: str, cells: Sequence[object]) -> np.ndarray:
    if kind == "number":
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
    if kind == "rectangle":
        nothing = (np.nan,) * 4
        found = [nothing if cell is None else cell for cell in cells]
        return np.array(found, np.float64).reshape(len(cells), 4)
    column = np.empty(len(cells), object)
    column[:] = cells
    return column
