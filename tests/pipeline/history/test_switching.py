"""History whose tables change under way gives what the local runner gives that goes over to them at
the same times, however it is cut. [PI-5, PO-2, PO-8]
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.detection import Undecided, detection_lines, unique_undecided
from rapport.core.errors import PolicyError, Unsupported
from rapport.kernel.clock import Chance
from rapport.pipeline.history import tables
from rapport.pipeline.history.files import ReadingsFiles, readings_files
from rapport.pipeline.history.results import SparkReplay
from rapport.pipeline.history.runner import PartCounts, evaluate_history
from rapport.pipeline.history.tables import Pull, tables_for_workers
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.table_history import PullByTime, SwitchingRunner, TableSwitch
from rapport.tables.instances import Instances
from support.examples import examples
from support.history_here import Here
from support.varied.policies import varied_policy
from support.varied.sites import varied_site
from support.varied.worlds import ONTOLOGY, WINDOW_MS, random_policy, random_world, readings_batch

Cut = Callable[[pa.Table, Path, str, Chance], list[Path]]
PARTS = [1, 2, 7]


class Case:
    """Random plans over a random world whose rows change some times."""

    def __init__(self, chance: Chance) -> None:
        if chance.randint(0, 1):
            site = varied_site(chance, events=80)
            self.ontology, first, readings = site.ontology, site.pull, list(site.readings)
            texts = [varied_policy(chance, self.ontology) for _ in range(5)]
        else:
            world = random_world(chance, events=100)
            self.ontology, first, readings = ONTOLOGY, world.pull, list(world.readings)
            texts = [random_policy(chance) for _ in range(5)]
        self.plans = plans_of(texts, self.ontology)
        self.lateness_ms = chance.choice((0, 50))
        readings.sort(key=lambda one: one.time + chance.randint(0, self.lateness_ms))
        self.arrived = readings_batch(readings, self.ontology)
        times = sorted({one.time for one in readings})
        moments = [chance.choice(times) + chance.randint(-3, 3) for _ in range(3)]
        before = [times[0] - 50] if chance.randint(0, 1) else []
        given: PullData = first
        switches: list[TableSwitch] = []
        for since in sorted({*moments, *before}):
            given = other_rows(chance, given, self.ontology.concepts)
            switches.append(TableSwitch(since, partial(itself, given)))
        self.pull = PullByTime(pull=first, switches=tuple(switches))


def itself(pull: PullData) -> PullData:
    return pull


def plans_of(texts: list[str], ontology: Ontology) -> list[Plan]:
    plans = []
    for number, text in enumerate(texts):
        try:
            compiled = compile_policy(
                text, name=f"p{number}", ontology=ontology, window_ms=WINDOW_MS
            )
        except PolicyError:
            continue
        plans.append(compiled.plan)
    return plans


class Other:
    """Tables of which one concept has other rows."""

    def __init__(self, base: PullData, own: Instances) -> None:
        self._base, self._own = base, own

    def instances(self, concept: str) -> Instances:
        return self._own if concept == self._own.concept else self._base.instances(concept)

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        return self._base.pairs(function)


def other_rows(chance: Chance, pull: PullData, concepts: Iterable[str]) -> Other:
    """The values of one concept go to others, and perhaps somebody is gone."""
    own = pull.instances(chance.choice(sorted(concepts)))
    order = list(range(len(own)))
    chance.shuffle(order)
    kept = [place for place in range(len(own)) if chance.randint(0, 5)]
    places = np.array([order[place] for place in kept], np.int64)
    columns = {name: column[places] for name, column in own.columns.items()}
    return Other(pull, Instances(own.concept, [own.ids[place] for place in kept], columns))


def locally(case: Case) -> tuple[bytes, list[Undecided], dict[str, int]]:
    runner = SwitchingRunner(
        case.plans, case.pull, lateness_ms=case.lateness_ms, sources=case.ontology.sources
    )
    found, undecided = [], list[Undecided]()
    for first in range(0, len(case.arrived), 17):
        found += runner.feed(case.arrived.slice(first, 17))
        undecided += runner.take_undecided()
    found += runner.finish()
    undecided += runner.take_undecided()
    return detection_lines(found), unique_undecided(undecided), runner.runner.suppressed()


def run(case: Case, history: ReadingsFiles, parts: int, pull: Pull) -> SparkReplay:
    found = evaluate_history(
        case.plans,
        pull,
        history,
        Here(pull),
        lateness_ms=case.lateness_ms,
        parts=PartCounts(parts, parts),
        sources=case.ontology.sources,
    )
    return SparkReplay.of(found)


def compared(case: Case, history: ReadingsFiles) -> int:
    """The number of bytes found: else the comparison would prove nothing."""
    lines, undecided, left_out = locally(case)
    for parts in PARTS:
        found = run(case, history, parts, case.pull)
        assert detection_lines(found.detections) == lines, parts
        assert (found.undecided, found.suppressed) == (undecided, left_out), parts
    return len(lines)


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(seed=st.integers(0, 2**32))
def test_tables_that_change_give_what_the_local_runner_gives(
    tmp_path_factory: pytest.TempPathFactory, cut_into_files: Cut, seed: int
) -> None:
    chance = Chance(seed)
    case, folder = Case(chance), tmp_path_factory.mktemp("readings")
    compared(case, readings_files(cut_into_files(pa.table(case.arrived), folder, "r", chance)))


@pytest.mark.slow
def test_the_comparison_finds_something_and_rows_matter(
    tmp_path: Path, cut_into_files: Cut
) -> None:
    found = others = 0
    for seed in range(12):
        chance = Chance(seed)
        case, folder = Case(chance), tmp_path / str(seed)
        folder.mkdir()
        history = readings_files(cut_into_files(pa.table(case.arrived), folder, "r", chance))
        found += bool(compared(case, history))
        lines = detection_lines(run(case, history, 2, case.pull.pull).detections)
        others += lines != locally(case)[0]
    assert found > 4
    assert others > 4


def test_what_travels_is_plain_data_and_rows_that_did_not_change_travel_once() -> None:
    world = random_world(Chance(1), events=10)
    plans = plans_of([random_policy(Chance(number)) for number in range(4)], ONTOLOGY)
    same = PullByTime(
        pull=world.pull,
        switches=tuple(TableSwitch(time, lambda: world.pull) for time in range(50)),
    )
    sent = tables_for_workers(plans, same)
    once = len(pickle.dumps(tables_for_workers(plans, world.pull)))
    assert len(pickle.dumps(sent)) < 3 * once + 50 * 200
    back = pickle.loads(pickle.dumps(sent))
    assert [one.since for one in back.switches] == list(range(50))
    assert list(back.switches[7].pull().instances("person").ids) == list(
        world.pull.instances("person").ids
    )


def test_more_rows_than_can_travel_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Chance(2)
    world = random_world(chance, events=10)
    plans = plans_of([random_policy(Chance(number)) for number in range(4)], ONTOLOGY)
    changed = tuple(
        TableSwitch(time, partial(itself, other_rows(chance, world.pull, ["person", "room"])))
        for time in range(20)
    )
    monkeypatch.setattr(tables, "MOST_ROWS_SENT", 30)
    with pytest.raises(Unsupported, match="rows of then") as refused:
        tables_for_workers(plans, PullByTime(pull=world.pull, switches=changed))
    assert "--engine spark" in refused.value.hint
