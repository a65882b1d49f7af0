"""Lint never calls a policy impossible that some world makes fire. [PO-12]"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.lint.instances import KnownInstances, TableCandidates
from rapport.policy.lint.satisfiability import LintReason, never_fires
from rapport.policy.ontology import Ontology, PushSource
from rapport.tables.instances import Instances
from support.judge.holding import Reading
from support.judge.trials import Trial, judged, varied_trial
from support.varied.sites import Draws
from support.varied.worlds import Pull

pytestmark = pytest.mark.slow

EVENTS, TABLES = ("heat", "damp"), ("floor", "height")
WORDS = ("above", "below", "at least", "at most", "is", "is not")
ONTOLOGY = Ontology(
    concepts={"station": dict.fromkeys((*EVENTS, *TABLES), "number")},
    relationships={},
    sources={
        name: PushSource(name=name, concept="station", attribute=name, key="key", value=("value",))
        for name in EVENTS
    },
)


def never(trial: Trial) -> tuple[LintReason | None, LintReason | None]:
    """What lint says by the conditions alone, and with the tables."""
    plan = compile_policy(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    ).plan
    known = KnownInstances(plan, TableCandidates(trial.pull))
    return never_fires(plan), never_fires(plan, known.dead_terms())


def fires(trial: Trial) -> bool:
    verdict = judged(trial)
    return bool(verdict.detections or verdict.undecided)


@settings(suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_what_fires_on_some_site_is_not_called_impossible(draws: Draws, events: int) -> None:
    trial = varied_trial(draws, events=events)
    if never(trial) != (None, None):
        assert not fires(trial), trial.text


# Policies that compare with few constants contradict themselves often, and fire often.


def comparison(chance: Chance, attributes: tuple[str, ...]) -> str:
    negation = chance.choice(("", "", "NOT "))
    attribute, word = chance.choice(attributes), chance.choice(WORDS)
    return f"{negation}{attribute} of S {word} {chance.randint(0, 2)}"


def state(chance: Chance, depth: int = 0) -> str:
    if depth > 1 or chance.randint(0, 2) == 0:
        return comparison(chance, ("heat", "damp", "heat", "floor"))
    joined = chance.choice((" AND ", " OR "))
    return "(" + joined.join(state(chance, depth + 1) for _ in range(chance.randint(2, 3))) + ")"


def line(chance: Chance) -> str:
    match chance.randint(0, 4):
        case 0:
            return f"{state(chance)} for {chance.choice((20, 100))} ms"
        case 1:
            return f"({comparison(chance, EVENTS)} OR {comparison(chance, TABLES)})"
        case 2:
            return f"{comparison(chance, EVENTS)} FOLLOWED-BY {comparison(chance, EVENTS)}"
        case 3:
            return comparison(chance, TABLES)
        case _:
            return comparison(chance, EVENTS)


def text(chance: Chance) -> str:
    lines = [line(chance) for _ in range(chance.randint(1, 4))]
    properties = chance.choice(("", "", " (floor > 0)", " (floor = 1, height < 2)"))
    parts = ["concepts", f"  station S{properties}", "conditions", *(f"  {one}" for one in lines)]
    return "\n".join([*parts, "actions", "  go", ""])


def stations(chance: Chance) -> Pull:
    ids = [str(number) for number in range(chance.randint(0, 3))]
    columns = {
        name: np.array([float(chance.choice((0, 1, 2, 1, "nan"))) for _ in ids]) for name in TABLES
    }
    return Pull({"station": Instances("station", ids, columns)})


def readings(chance: Chance) -> tuple[Reading, ...]:
    time, found = 1_000, []
    for number in range(40):
        time += chance.choice((0, 5, 10, 50))
        source = chance.choice(EVENTS)
        key, value = str(chance.randint(0, 2)), float(chance.randint(0, 4)) / 2
        stream = f"station.{source}"
        found.append(Reading(time, f"e{number:02}", stream, key, (value,), source))
    return tuple(found)


def comparing(chance: Chance) -> Trial | None:
    """A policy of comparisons; None when the compiler refuses it."""
    trial = Trial(
        text=text(chance),
        ontology=ONTOLOGY,
        pull=stations(chance),
        readings=readings(chance),
        window_ms=100,
    )
    try:
        never(trial)
    except PolicyError:
        return None
    return trial


@given(st.integers(0, 2**32))
def test_contradictions_are_never_seen_where_there_are_none(seed: int) -> None:
    chance = Chance(seed)
    trial = comparing(chance)
    if trial is None:
        return
    alone, with_tables = never(trial)
    if with_tables is not None:
        assert not fires(trial), (with_tables, trial.text)
    if alone is not None:  # then not with other tables and readings either
        for _ in range(3):
            other = Trial(
                text=trial.text,
                ontology=ONTOLOGY,
                pull=stations(chance),
                readings=readings(chance),
                window_ms=100,
            )
            assert not fires(other), (alone, trial.text)


def test_some_policies_are_impossible_and_others_fire() -> None:
    """Else the comparison would prove nothing."""
    kinds: Counter[str] = Counter()
    for seed in range(400):
        trial = comparing(Chance(seed))
        if trial is None:
            continue
        alone, with_tables = never(trial)
        kinds["alone"] += alone is not None
        kinds["with tables"] += with_tables is not None and alone is None
        kinds["fires"] += fires(trial)
    assert all(kinds[name] > 10 for name in ("alone", "with tables", "fires")), kinds
