"""Replaying a site: the checks byte by byte, shuffled, in any batch, stopped and resumed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from rapport.core.detection import detection_lines
from rapport.core.errors import Conflict, Corrupt, InvalidInput, Problem, UnknownName, Unsupported
from rapport.kernel.clock import Chance
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.replay.replay import (
    EngineResult,
    ReplayResult,
    ReplayState,
    RowFaults,
    recordings_of,
    replay,
    save_state,
)
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import Site, load_site

CHECKS = Path(__file__).parents[2] / "data" / "checks"
SMALL = load_site(CHECKS / "small-policies")
BUILDING = load_site(CHECKS / "secure-building")


def run(site: Site, *files: Path, lateness_ms: int = 0, **options: object) -> ReplayResult:
    return replay(
        site.ontology,
        site.tables,
        [compiled.plan for compiled in site.policies.values()],
        recordings_of(site.ontology, site.directory, [str(file) for file in files]),
        lateness_ms=lateness_ms,
        tables_version=site.tables.version(),
        **options,  # type: ignore[arg-type]
    )


def assert_small_is_exact(result: ReplayResult) -> None:
    for name in SMALL.policies:
        mine = [found for found in result.detections if found.policy == name]
        assert (
            detection_lines(mine)
            == (CHECKS / "small-policies" / f"{name}.expected.jsonl").read_bytes()
        )


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 13, 10_000])
def test_the_small_policies_are_exact_in_order_and_shuffled(batch: int) -> None:
    assert_small_is_exact(run(SMALL, batch=batch))
    shuffled = run(
        SMALL, CHECKS / "small-policies" / "events_shuffled.csv", lateness_ms=2_000, batch=batch
    )
    assert_small_is_exact(shuffled)
    assert shuffled.late == []
    assert shuffled.events == 200


@pytest.mark.slow
@pytest.mark.parametrize("batch", [37, 10_000])
def test_secure_building_is_exact_in_order_and_shuffled(tmp_path: Path, batch: int) -> None:
    expected = (CHECKS / "secure-building" / "expected.jsonl").read_bytes()
    assert detection_lines(run(BUILDING, batch=batch).detections) == expected
    heading, *rows = (CHECKS / "secure-building" / "events.csv").read_text().splitlines()
    chance = Chance(1)
    rows.sort(key=lambda row: int(row.split(",")[1]) + chance.randint(0, 1_999))
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("\n".join([heading, *rows]) + "\n")
    result = run(BUILDING, mixed, lateness_ms=2_000, batch=batch)
    assert detection_lines(result.detections) == expected
    assert result.late == []


def test_late_events_are_reported_and_faulty_rows_too(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    file.write_text("id,ts,person,x,y\na,5000,2,5,5\nb,10,2,5,5\nc,noon,2,5,5\n")
    result = run(SMALL, file, lateness_ms=1_000)
    assert result.late == [(10, "b")]
    assert [(problem.line, problem.code) for problem in result.problems] == [(4, "events.bad_time")]
    assert result.events == 2


@pytest.mark.parametrize("stops", [(1,), (57, 60), (199,), (200,), (5_000,)])
def test_stopping_and_resuming_gives_the_complete_output(
    tmp_path: Path, stops: tuple[int, ...]
) -> None:
    shuffled = CHECKS / "small-policies" / "events_shuffled.csv"
    kept = {"state_directory": tmp_path / "replay", "lateness_ms": 2_000}
    resume = False
    for stop in stops:
        part = run(SMALL, shuffled, stop_after=stop, resume=resume, **kept)
        assert part.stopped == (stop <= 200)
        resume = part.stopped
    if resume:
        part = run(SMALL, shuffled, resume=True, batch=11, **kept)
    assert_small_is_exact(part)
    assert part.events == 200


def test_resuming_with_anything_changed_is_refused(tmp_path: Path) -> None:
    site_copy = tmp_path / "site"
    shutil.copytree(CHECKS / "small-policies", site_copy)
    site_copy.chmod(0o755)
    for file in site_copy.iterdir():
        file.chmod(0o644)
    kept = {"state_directory": tmp_path / "replay"}

    def resumed() -> ReplayResult:
        return run(load_site(site_copy), resume=True, **kept)  # type: ignore[arg-type]

    with pytest.raises(InvalidInput, match="no stopped replay"):
        resumed()
    run(load_site(site_copy), stop_after=50, **kept)
    assert_small_is_exact(resumed())
    for name, change in (
        (
            "or.dpl",
            lambda text: text.replace("inside Q", "within 5m of Q").replace("room Q", "person Q"),
        ),
        ("rooms.csv", lambda text: text.replace("r1,0,", "r1,1,")),
        ("events.csv", lambda text: text + "x,99999,2,1,1\n"),
    ):
        path = site_copy / name
        before = path.read_text()
        path.write_text(
            change(before).replace(" (security='public')", "")
            if name == "or.dpl"
            else change(before)
        )
        with pytest.raises(Conflict) as caught:
            resumed()
        assert caught.value.code == "replay.changed"
        path.write_text(before)
    with pytest.raises(Conflict):
        run(load_site(site_copy), resume=True, lateness_ms=1, **kept)
    (tmp_path / "replay" / "state.msgpack").write_bytes(b"\xc1")
    with pytest.raises(Corrupt):
        resumed()


def test_another_engine_is_handed_in_and_cannot_stop() -> None:
    def engine(
        plans: Sequence[Plan], pull: PullData, readings: Iterable[pa.RecordBatch]
    ) -> EngineResult:
        runner = LocalRunner(plans, pull, lateness_ms=0)
        found, events = [], 0
        for rows in readings:
            found += runner.feed(rows)
            events += len(rows)
        return EngineResult(detections=found + runner.finish(), late=[], events=events)

    assert_small_is_exact(run(SMALL, engine=engine, batch=50))
    with pytest.raises(Unsupported):
        run(SMALL, engine=engine, stop_after=3)


def test_progress_counts_events() -> None:
    seen: list[int] = []
    run(SMALL, batch=60, progress=seen.append)
    assert seen == [60, 120, 180, 200]


@pytest.mark.parametrize("options", [{"batch": 0}, {"stop_after": 0}])
def test_numbers_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        run(SMALL, **options)


def test_files_find_their_source() -> None:
    one = SMALL.ontology
    assert recordings_of(one, Path("site"))[0].path == Path("site/events.csv")
    assert recordings_of(one, Path("site"), ["other.csv"])[0].source.name == "positions"
    more = one.sources["positions"]
    second = msgspec.structs.replace(more, name="cameras", events="cameras.csv")
    two = msgspec.structs.replace(one, sources={"positions": more, "cameras": second})
    assert recordings_of(two, Path("."), ["x/cameras.csv"])[0].source.name == "cameras"
    assert recordings_of(two, Path("."), ["cameras=y.csv"])[0].path == Path("y.csv")
    with pytest.raises(InvalidInput, match="is unclear"):
        recordings_of(two, Path("."), ["y.csv"])
    with pytest.raises(UnknownName, match="camera"):
        recordings_of(two, Path("."), ["camera=y.csv"])
    silent = msgspec.structs.replace(one, sources={"p": msgspec.structs.replace(more, events="")})
    with pytest.raises(InvalidInput, match="recorded events"):
        recordings_of(silent, Path("."))


def with_period(directory: Path, period: str = "1s") -> Site:
    """The small policies, whose positions promise to come this often."""
    if not directory.exists():
        shutil.copytree(CHECKS / "small-policies", directory)
    file = directory / "site.toml"
    text = (CHECKS / "small-policies" / "site.toml").read_text()
    file.write_text(
        text.replace("[sources.positions]", f'[sources.positions]\nperiod = "{period}"')
    )
    return load_site(directory)


@pytest.mark.slow
def test_what_a_silent_source_leaves_open_is_counted_apart(tmp_path: Path) -> None:
    result = run(with_period(tmp_path / "site"), batch=17)
    everything = run(SMALL).detections
    assert result.undecided
    assert {one.silent for one in result.undecided} == {("positions",)}
    assert len(result.detections) + len(result.undecided) == len(everything)
    assert all(found in everything for found in result.detections)
    patient = run(with_period(tmp_path / "site", "1 hour"))
    assert (patient.detections, patient.undecided) == (everything, [])


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 90, 199])
def test_a_resumed_replay_knows_what_was_undecided(tmp_path: Path, stop: int) -> None:
    site, state = with_period(tmp_path / "site"), tmp_path / "state"
    run(site, stop_after=stop, state_directory=state, batch=7)
    whole = run(site)
    rest = run(site, resume=True, state_directory=state)
    assert (rest.undecided, rest.detections) == (whole.undecided, whole.detections)


@pytest.mark.parametrize(
    "other",
    [
        {"period_ms": 2_000},
        {"stale_after_ms": 1_000},
        {"uncertainty_ms": 500},
        {"value": ("y", "x")},
    ],
    ids=["period", "stale-after", "uncertainty", "columns"],
)
def test_resuming_with_another_source_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    given: Any = {"pull": SMALL.tables, "plans": [SMALL.policies["or"].plan], "lateness_ms": 0}
    given |= {"recordings": recordings_of(SMALL.ontology, SMALL.directory)}
    given |= {"state_directory": tmp_path / "state"}
    replay(SMALL.ontology, **given, stop_after=50)
    changed = msgspec.structs.replace(SMALL.ontology.sources["positions"], **other)
    ontology = msgspec.structs.replace(SMALL.ontology, sources={"positions": changed})
    with pytest.raises(Conflict, match="sources"):
        replay(ontology, **given, resume=True)
    moved = msgspec.structs.replace(SMALL.ontology.sources["positions"], events="elsewhere.csv")
    ontology = msgspec.structs.replace(SMALL.ontology, sources={"positions": moved})
    assert not replay(ontology, **given, resume=True).stopped


def test_what_an_engine_without_a_state_stopped_is_resumed_here(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run(SMALL, stop_after=50, state_directory=state)
    kept = msgspec.msgpack.decode((state / "state.msgpack").read_bytes(), type=ReplayState)
    save_state(state, msgspec.structs.replace(kept, runner=b""))  # as Spark keeps it
    part = run(SMALL, stop_after=20, resume=True, state_directory=state)
    assert (part.stopped, part.events) == (True, 70)
    assert_small_is_exact(run(SMALL, resume=True, state_directory=state))


def test_a_file_full_of_faulty_rows_is_counted_and_not_kept() -> None:
    faults = RowFaults()
    for line in range(5_000):
        faults.report(Problem(file="a.csv", line=line, code=f"events.c{line % 2}", message="no"))
    assert len(faults.problems) == 1_000
    assert [(rows.count, rows.lines) for rows in faults.by_reason()] == [
        (2_500, [0, 2, 4, 6]),
        (2_500, [1, 3, 5, 7]),
    ]
