"""Small sites, and trials over them whose outcome the judges and the local runner agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from rapport.policy.ontology import Ontology, PairTable, PushSource, Relationship, SiteFunction
from rapport.tables.instances import Instances
from support.judge.situation_trials import SituationCase, read_situation_trial, told_lines
from support.judge.situation_world import TableVersion
from support.judge.trials import judged, outcome_lines, read_written, run_locally, trial_of
from support.situation_worlds import ONTOLOGY as SITUATION_ONTOLOGY
from support.situation_worlds import SituationTables, SituationWorld, judge_world
from support.varied.worlds import Pull

Tried = Callable[[str], None]
WINDOW = 100


def texts(*values: str | None) -> np.ndarray:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def source(name: str, attribute: str, **more: int) -> PushSource:
    concept = "person" if attribute == "position" else "station"
    value = ("x", "y") if attribute == "position" else ("value",)
    return PushSource(
        name=name, concept=concept, attribute=attribute, key="key", value=value, **more
    )


ONTOLOGY = Ontology(
    concepts={
        "person": {"position": "point", "status": "text"},
        "room": {"area": "rectangle", "limit": "number"},
        "station": {
            "temperature": "number",
            "humidity": "number",
            "door": "text",
            "limit": "number",
            "kind": "text",
        },
    },
    relationships={
        "inside": Relationship("inside", ("person", "position"), ("room", "area"), "inside"),
        "near": Relationship("near", ("person", "position"), ("person", "position"), "within"),
    },
    sources={
        one.name: one
        for one in (
            source("hasty", "position", stale_after_ms=60),
            source("gate", "position", uncertainty_ms=10),
            source("badges", "position"),
            source("roof", "temperature", stale_after_ms=60),
            source("hut", "temperature"),
            source("cellar", "humidity"),
            source("doors", "door"),
        )
    },
    units={
        "station": {"temperature": "degC", "humidity": "%", "limit": "degC"},
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
)
BEAT = source("beat", "position", period_ms=40)
"""Makes doubtful what nobody hears of, so it is there only where a reading comes from it."""
PULL = Pull(
    {
        "person": Instances(
            "person", ["ann", "bob", "eve"], {"status": texts("guest", "guest", "staff")}
        ),
        "room": Instances(
            "room",
            ["lab", "hall", "nowhere"],
            {
                "area": np.array([[0.0, 0, 10, 10], [20, 0, 30, 10], [np.nan] * 4]),
                "limit": np.array([30.0, np.nan, np.nan]),
            },
        ),
        "station": Instances(
            "station",
            ["s1", "s2"],
            {"limit": np.array([30.0, np.nan]), "kind": texts("mast", None)},
        ),
    },
    {"minimumDistance": {("ann", "bob"): 4.0, ("bob", "ann"): 4.0}},
)
CONCEPTS = (
    "person A (status='guest')",
    "person E (status='staff')",
    "person P",
    "person Q",
    "room R",
    "station S",
    "station T",
    "station M (kind='mast')",
)


@pytest.fixture
def tried() -> Tried:
    """Tries a policy as written down: what is found must be what stands there."""

    def try_it(text: str) -> None:
        written = read_written(text)
        sources = {"beat": BEAT, **ONTOLOGY.sources} if "beat" in text else ONTOLOGY.sources
        ontology = msgspec.structs.replace(ONTOLOGY, sources=sources)
        trial = trial_of(written, CONCEPTS, ontology, PULL, WINDOW)
        assert outcome_lines(judged(trial)) == list(written.detections)
        for batch in (0, 1):
            assert outcome_lines(run_locally(trial, batch=batch)) == list(written.detections)

    return try_it


SITUATION_TABLES = SituationTables(
    station={
        "s1": {"region": "north", "name": "One", "limit": 30.0},
        "s2": {"region": "south", "name": "Two"},
    },
    person={
        "ann": {"status": "guest"},
        "bob": {"status": "employee"},
        "eve": {"status": "employee"},
    },
    room={"lab": {"security": "restricted", "area": (0.0, 0.0, 10.0, 10.0)}, "attic": {}},
)


@pytest.fixture
def told() -> SituationCase:
    """What the judge tells must be what stands in the text."""

    def try_it(
        text: str,
        *,
        tables: Sequence[TableVersion] = (SITUATION_TABLES.version(),),
        start: int | None = None,
        until: int | None = None,
        zone: str = "",
    ) -> None:
        trial = read_situation_trial(text, SITUATION_ONTOLOGY)
        world = SituationWorld(
            ontology=msgspec.structs.replace(SITUATION_ONTOLOGY, zone=zone),
            tables=tuple(tables),
            readings=trial.readings,
            start=start,
            until=until,
        )
        assert told_lines(judge_world(world, trial.policy)) == list(trial.told)

    return try_it
