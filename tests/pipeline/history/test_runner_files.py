"""History in files gives what the local runner gives, however it is cut, read and parted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.policy import building
from rapport import scenarios
from rapport.core.detection import Cause, Undecided, detection_lines
from rapport.core.errors import PolicyError
from rapport.core.schema import PARTS
from rapport.kernel.clock import Chance
from rapport.pipeline.history.arrival import groups_of
from rapport.pipeline.history.exchange import ROWS
from rapport.pipeline.history.files import ReadingsFiles, readings_files, recorded_files
from rapport.pipeline.history.reading_filter import row_filter
from rapport.pipeline.history.results import SparkReplay
from rapport.pipeline.history.runner import PartCounts, evaluate_history, plan_job
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.recordings.files import read_recorded
from rapport.policy.replay.replay import Recording
from rapport.policy.replay.replay import replay as replay_here
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import Site, load_site
from support.examples import examples
from support.history_here import Here
from support.judge.holding import Reading
from support.varied.policies import varied_policy
from support.varied.sites import varied_site
from support.varied.worlds import (
    WINDOW_MS,
    random_policy,
    random_world,
    readings_batch,
    with_periods,
)

Cut = Callable[[pa.Table, Path, str, Chance], list[Path]]
PARTS_TRIED = [1, 2, 7]
EACH = [pytest.param(parts, marks=() if parts == 2 else pytest.mark.slow) for parts in PARTS_TRIED]


class Case(msgspec.Struct):
    """Random plans over a random world, in the order of arrival."""

    ontology: Ontology
    pull: PullData
    plans: list[Plan]
    arrived: pa.RecordBatch
    lateness_ms: int


def random_case(chance: Chance, policies: int = 6) -> Case:
    if chance.randint(0, 1):
        site = varied_site(chance, events=80)
        ontology, pull, readings = site.ontology, site.pull, list(site.readings)
        texts = [varied_policy(chance, ontology) for _ in range(policies)]
    else:
        world, ontology = with_periods(chance, random_world(chance, events=100))
        pull, readings = world.pull, list(world.readings)
        texts = [random_policy(chance) for _ in range(policies)]
    plans = []
    for number, text in enumerate(texts):
        try:
            compiled = compile_policy(
                text, name=f"p{number}", ontology=ontology, window_ms=WINDOW_MS
            )
        except PolicyError:
            continue
        plans.append(compiled.plan)
    lateness_ms = chance.choice((0, 50, 300))
    delay = chance.choice((0, lateness_ms, 3 * lateness_ms + 40))
    readings.sort(key=lambda reading: reading.time + chance.randint(0, delay))
    if chance.randint(0, 3) == 0:  # some come twice
        readings += [chance.choice(readings) for _ in range(5)]
    return Case(ontology, pull, plans, readings_batch(readings, ontology), lateness_ms)


def run(case: Case, history: ReadingsFiles, parts: int) -> SparkReplay:
    found = evaluate_history(
        case.plans,
        case.pull,
        history,
        Here(case.pull),
        lateness_ms=case.lateness_ms,
        parts=PartCounts(parts, parts),
        sources=case.ontology.sources,
    )
    return SparkReplay.of(found)


def locally(case: Case) -> tuple[bytes, list[Undecided], list[Cause], dict[str, int]]:
    runner = LocalRunner(
        case.plans, case.pull, lateness_ms=case.lateness_ms, sources=case.ontology.sources
    )
    found = []
    for first in range(0, len(case.arrived), 17):
        found += runner.feed(case.arrived.slice(first, 17))
    found += runner.finish()
    left_out = runner.suppressed()
    return detection_lines(found), runner.take_undecided(), runner.take_late(), left_out


@pytest.mark.slow
@settings(max_examples=examples(12))
# Rectangles that come as events: the order of their parts matters.
@example(seed=5)
@example(seed=83)
@given(seed=st.integers(0, 2**32))
def test_readings_in_files_give_what_the_local_runner_gives(
    tmp_path_factory: pytest.TempPathFactory, cut_into_files: Cut, seed: int
) -> None:
    chance = Chance(seed)
    case = random_case(chance)
    folder = tmp_path_factory.mktemp("readings")
    history = readings_files(cut_into_files(pa.table(case.arrived), folder, "r", chance))
    lines, undecided, late, left_out = locally(case)
    for parts in PARTS_TRIED:
        found = run(case, history, parts)
        assert detection_lines(found.detections) == lines, parts
        assert (found.undecided, found.suppressed) == (undecided, left_out)
        assert (found.late, found.late_count) == (late, len(late))
        assert found.events == len(case.arrived)


def recorded(case: Case, folder: Path, chance: Chance) -> tuple[Ontology, list[Recording]]:
    """A file for each source under its own names, some with rows that cannot be used."""
    table = pa.table(case.arrived)
    sources, recordings = {}, []
    for name, source in case.ontology.sources.items():
        kind = case.ontology.concepts[source.concept][source.attribute]
        fields = tuple(f"v{place}" for place in range(len(PARTS[kind])))
        source = sources[name] = msgspec.structs.replace(source, value=fields, further=())
        mine = pa.compute.and_(
            pa.compute.equal(table["source"], name),
            pa.compute.equal(table["stream"], source.stream),
        )
        own = table.filter(mine)
        parts = [part for part in own.column_names if part.rpartition(".")[0] == source.stream]
        columns = {source.time: own["time"], source.id: own["id"], source.key: own["key"]}
        columns |= {field: own[part] for field, part in zip(fields, parts, strict=True)}
        rows = with_nulls(pa.table(columns), chance)
        path = folder / f"{name}.parquet"
        pq.write_table(rows, path, row_group_size=chance.randint(1, 30))
        recordings.append(Recording(source, path))
    return msgspec.structs.replace(case.ontology, sources=sources), recordings


def with_nulls(table: pa.Table, chance: Chance) -> pa.Table:
    rows = table.to_pylist()
    for _ in range(3 if rows and chance.randint(0, 2) == 0 else 0):
        chance.choice(rows)[chance.choice(table.column_names)] = None
    return pa.Table.from_pylist(rows, schema=table.schema)


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**32))
def test_recorded_files_of_many_sources_give_what_the_local_replay_gives(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Faulty rows too: they are told alike, and what they change of lateness is made good."""
    chance = Chance(seed)
    case = random_case(chance)
    folder = tmp_path_factory.mktemp("recorded")
    case.ontology, recordings = recorded(case, folder, chance)
    expected = replay_here(
        case.ontology, case.pull, case.plans, recordings, lateness_ms=case.lateness_ms
    )
    history = recorded_files(case.ontology, [(item.source, item.path) for item in recordings])
    for parts in PARTS_TRIED:
        found = run(case, history, parts)
        assert detection_lines(found.detections) == detection_lines(expected.detections), parts
        assert (found.undecided, found.late) == (expected.undecided, expected.late)
        assert (found.events, found.first, found.last) == (
            expected.events,
            expected.first,
            expected.last,
        )
        assert sorted(found.problems, key=str) == sorted(expected.problems, key=str)
        assert sum(one.count for one in found.faulty) == sum(one.count for one in expected.faulty)


def site_case(site: Site, events: str, lateness_ms: int) -> Case:
    source = site.ontology.sources["positions"]
    batches = list(read_recorded(site.directory / events, source, site.ontology))
    plans = [compiled.plan for compiled in site.policies.values()]
    return Case(site.ontology, site.tables, plans, pa.concat_batches(batches), lateness_ms)


@pytest.mark.parametrize("parts", EACH)
@pytest.mark.parametrize(
    ("events", "lateness"), [("events.csv", 0), ("events_shuffled.csv", 2_000)]
)
def test_the_small_policies_give_their_expected_bytes(
    small_policies: Site, tmp_path: Path, events: str, lateness: int, parts: int
) -> None:
    case = site_case(small_policies, events, lateness)
    pq.write_table(pa.table(case.arrived), tmp_path / "r.parquet", row_group_size=23)
    found = run(case, readings_files([tmp_path / "r.parquet"]), parts)
    for name in small_policies.policies:
        expected = (small_policies.directory / f"{name}.expected.jsonl").read_bytes()
        assert detection_lines(d for d in found.detections if d.policy == name) == expected, name


@pytest.mark.parametrize("parts", PARTS_TRIED)
def test_the_secure_building_gives_its_expected_bytes(
    secure_building: Site, tmp_path: Path, parts: int
) -> None:
    case = site_case(secure_building, "events.csv", 2_000)
    pq.write_table(pa.table(case.arrived), tmp_path / "r.parquet", row_group_size=1_500)
    found = run(case, readings_files([tmp_path / "r.parquet"]), parts)
    expected = (secure_building.directory / "expected.jsonl").read_bytes()
    assert detection_lines(found.detections) == expected
    assert found.layout.slices == parts


def test_nothing_to_read_and_nothing_to_run_give_nothing(
    small_policies: Site, tmp_path: Path
) -> None:
    case = site_case(small_policies, "events.csv", 0)
    pq.write_table(pa.table(case.arrived).slice(0, 0), tmp_path / "empty.parquet")
    for history in (ReadingsFiles(()), readings_files([tmp_path / "empty.parquet"])):
        found = run(case, history, 2)
        assert (found.detections, found.late, found.events) == ([], [], 0)
    pq.write_table(pa.table(case.arrived), tmp_path / "r.parquet")
    case.plans = []
    assert run(case, readings_files([tmp_path / "r.parquet"]), 2).events == 200


def test_late_readings_can_be_counted_without_being_kept(
    small_policies: Site, tmp_path: Path
) -> None:
    case = site_case(small_policies, "events_shuffled.csv", 0)
    pq.write_table(pa.table(case.arrived), tmp_path / "r.parquet", row_group_size=40)
    history = readings_files([tmp_path / "r.parquet"])
    every = run(case, history, 2)
    few = evaluate_history(
        case.plans,
        case.pull,
        history,
        Here(case.pull),
        lateness_ms=0,
        parts=PartCounts(2, 2),
        most_late=1,
    )
    assert every.late_count == len(every.late) > 5
    assert few.late_count == every.late_count
    assert len(few.late) < 5
    assert detection_lines(few.detections()) == detection_lines(every.detections)


def test_a_policy_that_fails_is_told_and_the_others_go_on(
    small_policies: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaking.py").write_text(
        "import msgspec\n"
        "from rapport.policy.relations import get\n"
        "def _breaks(first, second, parameter):\n"
        "    raise RuntimeError('no idea')\n"
        "near = msgspec.structs.replace(\n"
        "    get('inside'), holds=_breaks, holds_many=_breaks, shape='opaque')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    case = site_case(small_policies, "events.csv", 0)
    plan = small_policies.policies["or"].plan
    terms = tuple(msgspec.structs.replace(term, function="breaking:near") for term in plan.terms)
    broken = msgspec.structs.replace(plan, policy="broken", terms=terms)
    case.plans = [plan, broken]
    pq.write_table(pa.table(case.arrived), tmp_path / "r.parquet", row_group_size=23)
    for parts in (1, 2):
        found = run(case, readings_files([tmp_path / "r.parquet"]), parts)
        expected = (small_policies.directory / "or.expected.jsonl").read_bytes()
        assert detection_lines(found.detections) == expected
        (problem,) = found.problems
        assert problem.code == "policy.failed"
        assert "no idea" in problem.message


@pytest.mark.slow
def test_footers_that_lie_are_found_out(small_policies: Site, tmp_path: Path) -> None:
    """Times by the footer that the rows do not have: who reads them tells, and all is done anew."""
    case = site_case(small_policies, "events_shuffled.csv", 700)
    pq.write_table(pa.table(case.arrived), tmp_path / "r.parquet", row_group_size=23)
    history = readings_files([tmp_path / "r.parquet"])
    (series,) = history.series
    (file,) = series.files
    lying = tuple(
        msgspec.structs.replace(
            group, first=(group.first or 0) + 3_000, last=(group.last or 0) + 900
        )
        if number % 3 == 1
        else group
        for number, group in enumerate(file.groups)
    )
    files = (msgspec.structs.replace(file, groups=lying),)
    wrong = ReadingsFiles((msgspec.structs.replace(series, files=files),))
    lines, _, late, _ = locally(case)
    for parts in PARTS_TRIED:
        found = run(case, wrong, parts)
        assert (detection_lines(found.detections), found.late) == (lines, late), parts


def moving_about(site: Site, chance: Chance, events: int) -> pa.RecordBatch:
    """Readings of all streams of a site by the instances its tables know, slightly out of order."""
    readings, time = [], 1_000_000
    for number in range(events):
        time += chance.choice((0, 5, 40, 400))
        stream, kind = chance.choice(sorted(site.ontology.streams().items()))
        known = site.tables.instances(stream.partition(".")[0]).ids
        value = tuple(float(chance.randint(0, 12)) for _ in PARTS[kind])
        key = chance.choice([*known, "unknown"])
        readings.append(Reading(time, f"e{number}", stream, key, value))
    readings.sort(key=lambda reading: reading.time + chance.randint(0, 900))
    return readings_batch(readings, site.ontology)


@pytest.mark.parametrize("name", ["secure_building", "dangerous_goods"])
def test_the_scenarios_give_what_the_local_runner_gives(name: str, tmp_path: Path) -> None:
    site = load_site(Path(scenarios.__file__).parent / name / "site")
    numeric = {"number", "point", "rectangle"}
    assert set(site.ontology.streams().values()) <= numeric
    plans = [compiled.plan for compiled in site.policies.values()]
    arrived = moving_about(site, Chance(7), 600)
    case = Case(site.ontology, site.tables, plans, arrived, 200)
    pq.write_table(pa.table(arrived), tmp_path / "r.parquet", row_group_size=41)
    lines, undecided, late, left_out = locally(case)
    assert lines
    assert late
    for parts in PARTS_TRIED:
        found = run(case, readings_files([tmp_path / "r.parquet"]), parts)
        assert detection_lines(found.detections) == lines, parts
        assert (found.undecided, found.late) == (undecided, late)
        assert found.suppressed == left_out


@pytest.mark.slow
@pytest.mark.parametrize("parts", PARTS_TRIED)
def test_what_at_most_once_per_leaves_out_is_counted_once_however_it_is_parted(
    parts: int, tmp_path: Path
) -> None:
    """Readings of employees go to every bucket of guests, so buckets find what others own."""
    conditions = building.TOGETHER + "  at most once per 5 s\n"
    plans = [
        building.policy(conditions, name="guests"),
        building.policy(conditions, name="anybody", who="badge!='3'"),
        building.policy("  A is inside R\n  at most once per 20 s\n", name="inside"),
        building.policy("  A is inside R\n", name="always"),
    ]
    pull = building.Building(20, 9, 1)
    arrived = building.walk(20, 9, 3_000, 1).readings
    case = Case(building.ONTOLOGY, pull, plans, arrived, 0)
    pq.write_table(pa.table(arrived), tmp_path / "r.parquet", row_group_size=700)
    lines, _, _, left_out = locally(case)
    found = run(case, readings_files([tmp_path / "r.parquet"]), parts)
    assert detection_lines(found.detections) == lines
    assert found.suppressed == left_out
    assert min(left_out[name] for name in ("guests", "anybody", "inside")) > 5
    assert left_out["always"] == 0


def test_only_what_matters_goes_through_the_shuffle(tmp_path: Path) -> None:
    """The same readings as the filter keeps, each once per slice that reads it."""
    pull = building.Building(200, 100, 1)
    readings = building.walk(200, 100, 6_000, 1).readings
    pq.write_table(pa.table(readings), tmp_path / "r.parquet", row_group_size=1_000)
    history = readings_files([tmp_path / "r.parquet"])
    plan = building.policy("  A is inside R FOLLOWED-BY B is inside R\n", who="badge='6'")
    job, layout = plan_job(
        [plan],
        pull,
        history,
        groups_of(history),
        lateness_ms=0,
        parts=PartCounts(3, 3),
        sources={},
    )
    columns = Here(pull).exchanged(job, history).select([2, 3]).columns
    sent = [
        row["id"]
        for kind, body in zip(*columns, strict=True)
        if kind.as_py() == ROWS
        for row in pa.ipc.open_stream(body.as_buffer()).read_all().to_pylist()
    ]
    wanted = row_filter([plan], pull)
    assert wanted is not None
    keys = readings.column("key").to_pylist()
    kept = wanted.wanted(
        building.STREAM,
        keys,
        np.arange(len(keys)),
        lambda part: readings.column(f"{building.STREAM}.{part}").to_numpy(),
    )
    ids = [
        id for id, is_kept in zip(readings.column("id").to_pylist(), kept, strict=True) if is_kept
    ]
    assert set(sent) == set(ids)
    assert layout.slices == 3
    assert len(ids) <= len(sent) < 2 * len(ids) < len(readings) / 2
