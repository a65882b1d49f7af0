"""Situations over a history give the lines of the local replay, however it is cut and parted.
[SI-11, PI-5]
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_lines
from rapport.core.errors import UnknownName
from rapport.kernel.clock import Chance
from rapport.pipeline.history.detection_table import (
    DETECTIONS,
    detections_from,
    encode_detections,
    in_output_order,
)
from rapport.pipeline.history.files import readings_files
from rapport.pipeline.history.keys import Key, choose_key
from rapport.pipeline.history.partitions import explain_partitioning
from rapport.pipeline.history.replay import replay_recorded
from rapport.pipeline.history.results import DETECTION, OutputFiles, SparkReplay
from rapport.pipeline.history.runner import PartCounts, evaluate_history, explain_run
from rapport.pipeline.history.tables import tables_for_workers
from rapport.pipeline.worker_tables import decode_tables, tables_for
from rapport.policy.compiler.compile import compile_policy, compile_situation
from rapport.policy.operators.base import PullData
from rapport.policy.plan import PolicyPlan
from rapport.policy.recordings.files import merge_recordings
from rapport.policy.replay.replay import ReplayResult, recordings_of, replay
from rapport.policy.situation_plan import SituationPlan
from rapport.policy.table_history import PullByTime, SwitchingRunner, TableSwitch
from rapport.site.site import Site, load_site
from rapport.tables.instances import Instances
from support.examples import examples
from support.history_here import Here
from support.situation_worlds import NAME, SituationWorld, judge_lines, situation_trials
from support.varied.worlds import readings_batch
from tests.pipeline.history.conftest import _cut_into_files as cut_into_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES = Path(__file__).parents[2] / "data" / "situations"
EXPECTED = {
    path.name.partition(".")[0]: path.read_bytes() for path in CASES.glob("*.expected.jsonl")
}


GUARDED = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
while
  no person B (status='employee') with (B is within 5 m of A)
actions
  tell the guards
"""


@functools.cache
def worked() -> Site:
    return load_site(CASES)


def plans() -> list[PolicyPlan]:
    return [one.plan for one in worked().policies.values()]


def recorded() -> pa.Table:
    """The readings of the worked cases, in the order of arrival."""
    site = worked()
    files = [
        one.batches(site.ontology, 1_000, pytest.fail)
        for one in recordings_of(site.ontology, CASES)
    ]
    return pa.Table.from_batches(list(merge_recordings(files, batch=1_000)))


def over_files(
    folder: Path, chosen: Sequence[PolicyPlan], parts: int, until_ms: int | None = None
) -> SparkReplay:
    site = worked()
    folder.mkdir()
    paths = cut_into_files(recorded(), folder, "all", Chance(parts))
    found = evaluate_history(
        chosen,
        site.tables,
        readings_files(paths),
        Here(tables_for_workers(chosen, site.tables)),
        lateness_ms=0,
        parts=PartCounts(parts, parts),
        sources=site.ontology.sources,
        until_ms=until_ms,
    )
    return SparkReplay.of(found)


def here(chosen: Sequence[PolicyPlan], until_ms: int | None = None) -> ReplayResult:
    site = worked()
    recordings = recordings_of(site.ontology, CASES)
    return replay(site.ontology, site.tables, chosen, recordings, lateness_ms=0, until_ms=until_ms)


def lines(found: Sequence[Detection]) -> dict[str, bytes]:
    return {name: detection_lines(one for one in found if one.policy == name) for name in EXPECTED}


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_every_worked_case_gives_the_expected_lines_in_parts(tmp_path: Path, parts: int) -> None:
    found = over_files(tmp_path / "files", plans(), parts)
    assert not found.problems
    assert lines(found.detections) == EXPECTED
    local = here(plans())
    assert found.situations == local.situations
    assert found.suppressed == local.suppressed
    assert found.detections == in_output_order(found.detections)


def test_recorded_time_runs_on_to_until(tmp_path: Path) -> None:
    times = recorded().column("time").to_numpy()
    until = int(times.max()) + 3_600_000
    found, local = over_files(tmp_path / "files", plans(), 3, until), here(plans(), until)
    assert detection_lines(found.detections) == detection_lines(local.detections)
    assert detection_lines(found.detections) != detection_lines(here(plans()).detections)
    assert found.situations == local.situations


def plan_of(text: str) -> SituationPlan:
    site = worked()
    made = compile_policy(
        f"{text}actions\n  tell the guards\n", name="p", ontology=site.ontology, window_ms=5_000
    ).plan
    assert isinstance(made, SituationPlan)
    return made


def test_once_per_and_what_is_open_are_counted_by_the_part_that_owns_them(tmp_path: Path) -> None:
    text = (
        "concepts\n  station S\nsituation\n  no temperature of S for 4 s\n  at most once per 1 h\n"
    )
    chosen = [plan_of(text)]
    found, local = over_files(tmp_path / "files", chosen, 7), here(chosen)
    assert detection_lines(found.detections) == detection_lines(local.detections)
    assert found.suppressed == local.suppressed
    assert found.suppressed["p"] > 0
    assert found.situations == local.situations


def test_a_single_alias_is_the_key_and_its_readings_need_one_bucket() -> None:
    plan = plan_of("concepts\n  station S\nsituation\n  temperature of S above 20 degC\n")
    key = choose_key(plan, worked().tables)
    assert isinstance(key, Key)
    assert (key.alias, key.share, key.others) == ("S", 1.0, ())
    assert {role.stream for role in key.own} == {"station.temperature", "station.humidity"}


def test_instances_that_may_be_counted_are_needed_in_every_bucket() -> None:
    plan = plan_of(
        "concepts\n  person A (status='guest')\nsituation\n"
        "  no person B (status='employee') with (B is within 5 m of A)\n"
    )
    key = choose_key(plan, worked().tables)
    assert isinstance(key, Key)
    assert key.alias == "A"
    assert [role.constraints[0].value for role in key.others] == ["employee"]
    anybody = plan_of(
        "concepts\n  person A\nsituation\n  no person B with (B is within 5 m of A)\n"
    )
    assert choose_key(anybody, worked().tables) == (
        "every event that may stand for A may stand for B of quantifier 1 too"
    )


def test_the_way_a_situation_is_spread_is_explained() -> None:
    site = worked()
    plan = plan_of("concepts\n  station S\nsituation\n  temperature of S above 20 degC\n")
    assert explain_partitioning(plan, site.ontology.sources, site.tables) == (
        "p: buckets of identities of S, for every detection names one; "
        "not in slices of time, because its situation may have begun long before"
    )
    assert explain_run(plan, site.tables)[0] == "p: buckets by alias S"
    hottest = plan_of(
        "concepts\n  station S\nsituation\n  no station T with "
        "(temperature of T above temperature of S)\n"
    )
    assert explain_run(hottest, site.tables)[0] == "p: one piece"


def test_beginnings_and_ends_come_back_from_columns_and_from_older_files(tmp_path: Path) -> None:
    found = here(plans()).detections
    rows = encode_detections(found)
    assert detections_from(pa.Table.from_batches([rows])) == found
    folder = tmp_path / f"kind={DETECTION}"
    folder.mkdir()
    older = pa.Table.from_batches([rows]).drop_columns("began")
    pq.write_table(older, folder / "part.parquet")
    read = OutputFiles(str(tmp_path)).detections()
    assert read.schema == DETECTIONS
    assert OutputFiles(str(tmp_path)).mapped().equals(read)
    assert detections_from(read) == [msgspec.structs.replace(one, began=None) for one in found]


def test_days_of_tables_travel_to_workers() -> None:
    made = tables_for(plans(), worked().tables)
    assert made.days("holidays")
    again = decode_tables(made.encoded)
    assert sorted(again.days("holidays")) == sorted(made.days("holidays"))
    with pytest.raises(UnknownName):
        made.days("feasts")


class FewerRows:
    """The tables of the site, some concepts without their first rows."""

    def __init__(self, left_out: int) -> None:
        self._left_out = left_out

    def instances(self, concept: str) -> Instances:
        known = worked().tables.instances(concept)
        columns = {name: values[self._left_out :] for name, values in known.columns.items()}
        return Instances(concept, known.ids[self._left_out :], columns)

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        return worked().tables.pairs(function)

    def days(self, table: str) -> Collection[str]:
        return worked().tables.days(table)


@pytest.mark.parametrize("parts", [1, 3])
def test_tables_that_change_give_what_the_local_runner_gives(tmp_path: Path, parts: int) -> None:
    site, rows = worked(), recorded()
    times = sorted(rows.column("time").to_pylist())
    first, middle, last = times[0], times[len(times) // 2], times[-1]
    pull = PullByTime(
        pull=FewerRows(1),
        switches=(
            TableSwitch(first, lambda: FewerRows(2)),
            TableSwitch(middle, lambda: FewerRows(0)),
            TableSwitch(last, lambda: FewerRows(1)),
            TableSwitch(last + 1, lambda: FewerRows(3)),
            TableSwitch(last + 600_000, lambda: FewerRows(2)),
        ),
    )
    runner = SwitchingRunner(plans(), pull, lateness_ms=0, sources=site.ontology.sources)
    expected = [one for batch in rows.to_batches() for one in runner.feed(batch)]
    expected += runner.finish()
    tmp_path.joinpath("files").mkdir()
    paths = cut_into_files(rows, tmp_path / "files", "all", Chance(parts))
    found = evaluate_history(
        plans(),
        pull,
        readings_files(paths),
        Here(tables_for_workers(plans(), pull)),
        lateness_ms=0,
        parts=PartCounts(parts, parts),
        sources=site.ontology.sources,
    )
    assert not found.failed
    assert detection_lines(found.in_order()) == detection_lines(expected)
    assert detection_lines(expected) != detection_lines(here(plans()).detections)


def in_parts(world: SituationWorld, text: str, parts: int, folder: Path) -> SparkReplay:
    """A random policy over a random world, its readings in files of any size."""
    plan = compile_situation(text, name=NAME, ontology=world.ontology).plan
    first, *later = sorted(world.tables, key=lambda one: one.since)
    switches = tuple(TableSwitch(one.since, functools.partial(_itself, one.pull)) for one in later)
    pull = PullByTime(pull=first.pull, switches=switches)
    rows = pa.Table.from_batches([readings_batch(world.readings, world.ontology)])
    found = evaluate_history(
        [plan],
        pull,
        readings_files(cut_into_files(rows, folder, "all", Chance(parts))),
        Here(tables_for_workers([plan], pull)),
        lateness_ms=0,
        parts=PartCounts(parts, parts),
        sources=world.ontology.sources,
        until_ms=world.until,
    )
    return SparkReplay.of(found)


def _itself(pull: PullData) -> PullData:
    return pull


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situation_trials(), st.sampled_from([1, 3, 7]))
def test_buckets_give_what_the_judge_gives(trial: tuple[SituationWorld, str], parts: int) -> None:
    world, text = trial
    world = msgspec.structs.replace(world, start=None)
    with tempfile.TemporaryDirectory() as folder:
        found = in_parts(world, text, parts, Path(folder))
    assert not found.problems
    assert detection_lines(found.detections) == judge_lines(world, text)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_gives_the_expected_lines_of_all_worked_cases_and_of_a_guard(
    spark: SparkSession,
) -> None:
    site = worked()
    guarded = compile_policy(GUARDED, name="p", ontology=site.ontology, window_ms=5_000).plan
    chosen = [*plans(), guarded]
    local = here(chosen)
    for parts in (1, 2, 7):
        found = replay_recorded(
            spark,
            site.ontology,
            site.tables,
            chosen,
            recordings_of(site.ontology, CASES),
            lateness_ms=0,
            partitions=parts,
        )
        assert not found.problems
        assert lines(found.detections) == EXPECTED
        assert found.situations == local.situations
        assert detection_lines(found.detections) == detection_lines(local.detections)
    assert any(one.policy == "p" for one in local.detections)
