"""Small random worlds and policies with situations, as text, for property tests. [SI-1 to SI-8,
SI-11]

Times repeat and differ by exactly the durations on purpose; values and constants lie on one small
grid, so limits are hit; days, nights and changes of clocks fall into the time of the readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rapport.core.detection import detection_lines
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
        pull = Pull(instances, {"minimumDistance": DISTANCES})
        if since is None:
            return TableVersion(pull=pull, days=self.days)
        return TableVersion(pull=pull, days=self.days, since=since)


class SituationWorld(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is tried on."""

    tables: tuple[TableVersion, ...]
    readings: tuple[Reading, ...]
    """In the order of their times."""
    zone: str = "Europe/Berlin"
    start: int | None = None
    """By default the time of the first reading."""
    until: int | None = None
    """By default the time of the last reading."""
    ontology: Ontology = ONTOLOGY


def judge_world(world: SituationWorld, text: str) -> SituationVerdict:
    """What the judge says of a policy's text."""
    return judge_situation(
        parse_situation_policy(NAME, text),
        world.ontology,
        world.tables,
        world.readings,
        start=world.start,
        until=world.until,
        zone=world.zone,
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
