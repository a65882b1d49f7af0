"""Policies with `while` over a history find what the judge finds, however it is cut and parted.
[SI-9, SI-11, PI-5]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from rapport.kernel.clock import Chance
from rapport.pipeline.history.files import readings_files
from rapport.pipeline.history.keys import Key, choose_key
from rapport.pipeline.history.results import SparkReplay
from rapport.pipeline.history.runner import PartCounts, evaluate_history
from rapport.pipeline.history.tables import tables_for_workers
from rapport.policy.compiler.compile import compile_conditions
from rapport.policy.plan import Plan
from support.guard_trials import varied_guard
from support.history_here import Here
from support.judge.evaluator import Verdict
from support.judge.trials import Trial, judged, outcome_lines, verdict_of
from support.situation_worlds import ONTOLOGY, SituationTables
from support.varied.worlds import readings_batch
from tests.pipeline.history.conftest import _cut_into_files as cut_into_files

_SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
_ROUNDS = 5


def plan_of(trial: Trial) -> Plan:
    return compile_conditions(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    ).plan


def in_parts(trial: Trial, parts: int, folder: Path) -> Verdict:
    plan = plan_of(trial)
    rows = pa.Table.from_batches([readings_batch(trial.readings, trial.ontology)])
    found = SparkReplay.of(
        evaluate_history(
            [plan],
            trial.pull,
            readings_files(cut_into_files(rows, folder, "all", Chance(parts))),
            Here(tables_for_workers([plan], trial.pull)),
            lateness_ms=0,
            parts=PartCounts(parts, parts),
            sources=trial.ontology.sources,
        )
    )
    assert not found.problems
    return verdict_of(found.detections, found.undecided, found.suppressed["p"])


@pytest.mark.parametrize("seed", _SEEDS)
def test_parts_find_what_the_judge_finds(seed: int) -> None:
    chance, divided = Chance(seed), 0
    for _ in range(_ROUNDS):
        trial = varied_guard(chance)
        expected = outcome_lines(judged(trial))
        key = choose_key(plan_of(trial), trial.pull, trial.ontology.sources)
        divided += isinstance(key, Key)
        for parts in (1, 2, 7):
            with tempfile.TemporaryDirectory() as folder:
                assert outcome_lines(in_parts(trial, parts, Path(folder))) == expected, trial.text
    assert divided, "some of them have a key"


def test_readings_of_a_guard_go_where_its_alias_is_decided() -> None:
    text = (
        "concepts\n  station S\nconditions\n  temperature of S above 27 degC\nwhile\n"
        "  humidity of S above 40 %\nactions\n  look\n"
    )
    plan = compile_conditions(text, name="p", ontology=ONTOLOGY, window_ms=3_000).plan
    pull = SituationTables(station={"2": {}, "10": {}}).version().pull
    key = choose_key(plan, pull)
    assert isinstance(key, Key)
    assert "station.humidity" in {role.stream for role in key.own}
    assert key.others == ()
