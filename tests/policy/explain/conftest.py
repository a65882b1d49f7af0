"""A small site to ask questions of, in the short text of `support.judge.trials`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from rapport.policy.compiler.compile import compile_policy
from rapport.policy.explain.answer import WhyNotAnswer
from rapport.policy.explain.evidence import Reading, readings_of
from rapport.policy.explain.why_not import WhyNotQuestion, why_not
from rapport.policy.ontology import Ontology, PushSource, Relationship, SiteFunction
from rapport.tables.instances import Instances
from support.judge.trials import Trial, Written, trial_of
from support.varied.worlds import Pull, readings_batch

WINDOW_MS = 100
CONCEPTS = (
    "person A (status='guest')",
    "person V (status='staff' vip=true height>2 m)",
    "person E (status='staff')",
    "room R",
    "station S",
    "station T",
)


def source(name: str, stream: str, **more: int) -> PushSource:
    concept, _, attribute = stream.partition(".")
    values = ("x", "y") if attribute == "position" else ("value",)
    return PushSource(
        name=name, concept=concept, attribute=attribute, key="key", value=values, **more
    )


ONTOLOGY = Ontology(
    concepts={
        "person": {
            "position": "point",
            "status": "text",
            "vip": "boolean",
            "height": "number",
        },
        "room": {"area": "rectangle"},
        "station": {
            "temperature": "number",
            "humidity": "number",
            "state": "text",
            "armed": "boolean",
        },
    },
    relationships={
        "inside": Relationship("inside", ("person", "position"), ("room", "area"), "inside"),
        "near": Relationship("near", ("person", "position"), ("person", "position"), "within"),
    },
    sources={
        "badges": source("badges", "person.position"),
        "hut": source("hut", "station.temperature"),
        "cellar": source("cellar", "station.humidity"),
        "arms": source("arms", "station.armed"),
        "bolts": source("bolts", "station.state", period_ms=40),
    },
    units={"station": {"temperature": "degC", "humidity": "%"}, "person": {"height": "m"}},
    functions={
        "distance": SiteFunction(
            name="distance",
            of=(("person", "position"), ("person", "position")),
            measure="distance",
            unit="m",
        )
    },
)


def texts(*values: object) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    column = np.empty(len(values), object)
    column[:] = values
    return column


PULL = Pull(
    {
        "person": Instances(
            "person",
            ["ann", "bob", "eve", "tim"],
            {
                "status": texts("guest", "guest", "staff", "staff"),
                "vip": texts(None, None, False, True),
                "height": np.array([1.7, 1.8, 1.7, 1.9]),
            },
        ),
        "room": Instances(
            "room", ["lab", "hall"], {"area": np.array([[0, 0, 10, 10], [20, 0, 30, 10]], float)}
        ),
        "station": Instances("station", ["s1", "s2"], {}),
    }
)


def make_trial(conditions: str, readings: Iterable[str]) -> Trial:
    lines = tuple(line.strip() for line in conditions.splitlines() if line.strip())
    written = Written(lines, tuple(readings), ())
    return trial_of(written, CONCEPTS, ONTOLOGY, PULL, WINDOW_MS)


def ask_trial(
    trial: Trial, at: int, given: dict[str, str], within_ms: int | None = None
) -> tuple[WhyNotAnswer, list[Reading]]:
    plan = compile_policy(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    ).plan
    readings = readings_of(readings_batch(trial.readings, trial.ontology), trial.ontology)
    question = WhyNotQuestion(at=at, given=given, within_ms=within_ms)
    return why_not(plan, trial.ontology, trial.pull, readings, question), readings


Ask = Callable[..., WhyNotAnswer]


@pytest.fixture
def ask() -> Ask:
    """`ask(conditions, readings, at, A="ann")`."""

    def asked(
        conditions: str,
        readings: Iterable[str],
        at: int,
        within_ms: int | None = None,
        **given: str,
    ) -> WhyNotAnswer:
        return ask_trial(make_trial(conditions, readings), at, given, within_ms)[0]

    return asked


@pytest.fixture
def trial_of_text() -> Callable[[str, Iterable[str]], Trial]:
    return make_trial


@pytest.fixture
def ask_of_trial() -> Callable[..., tuple[WhyNotAnswer, list[Reading]]]:
    return ask_trial
