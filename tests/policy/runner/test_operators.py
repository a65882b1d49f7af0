"""Operators give exactly the expected detections, however the stream is cut, saved and restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rapport.core.detection import Detection, detection_lines
from rapport.core.errors import Corrupt
from rapport.policy.operators import check_supported, make_operator
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.operator import PlanOperator
from rapport.policy.recordings.files import read_recorded
from rapport.site.site import Site, load_site

CHECKS = Path(__file__).parents[2] / "data" / "checks"
SMALL = load_site(CHECKS / "small-policies")
BUILDING = load_site(CHECKS / "secure-building")


def readings_of(site: Site, name: str = "events.csv") -> pa.RecordBatch:
    source = site.ontology.sources["positions"]
    batches = read_recorded(site.directory / name, source, site.ontology, batch=1_000_000)
    return next(iter(batches))


def cut(readings: pa.RecordBatch, size: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches of about `size` with their watermark; equal times stay together."""
    times = readings.column("time").to_pylist()
    first = 0
    while first < len(times):
        last = min(first + size, len(times))
        while last < len(times) and times[last] == times[last - 1]:
            last += 1
        yield readings.slice(first, last - first), times[last - 1] + 1
        first = last


def sorted_readings(site: Site) -> pa.RecordBatch:
    return readings_of(site).sort_by([("time", "ascending"), ("id", "ascending")])


def run(operator: PlanOperator, batches: Iterator[tuple[pa.RecordBatch, int]]) -> list[Detection]:
    found: list[Detection] = []
    empty = None
    for readings, watermark in batches:
        found += operator.process(readings, watermark)
        empty = readings.slice(0, 0)
    return found + operator.process(empty, END_OF_TIME)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("name", sorted(SMALL.policies))
def test_every_small_policy_is_exact(name: str, size: int) -> None:
    operator = make_operator(SMALL.policies[name].plan, SMALL.tables)
    found = run(operator, cut(sorted_readings(SMALL), size))
    expected = (SMALL.directory / f"{name}.expected.jsonl").read_bytes()
    assert detection_lines(found) == expected


@pytest.mark.parametrize("name", sorted(SMALL.policies))
def test_saving_and_restoring_after_every_batch_changes_nothing(name: str) -> None:
    plan = SMALL.policies[name].plan
    operator = make_operator(plan, SMALL.tables)
    found: list[Detection] = []
    for readings, watermark in cut(sorted_readings(SMALL), 5):
        found += operator.process(readings, watermark)
        saved = operator.snapshot()
        operator = make_operator(plan, SMALL.tables)
        operator.restore(saved)
        assert operator.snapshot() == saved
    found += operator.process(readings.slice(0, 0), END_OF_TIME)
    expected = (SMALL.directory / f"{name}.expected.jsonl").read_bytes()
    assert detection_lines(found) == expected


@pytest.mark.parametrize("size", [97, 10_000])
def test_secure_building_is_exact(size: int) -> None:
    plan = BUILDING.policies["secure-building"].plan
    found = run(make_operator(plan, BUILDING.tables), cut(sorted_readings(BUILDING), size))
    assert detection_lines(found) == (BUILDING.directory / "expected.jsonl").read_bytes()


@pytest.mark.slow
def test_every_detection_is_given_as_soon_as_the_watermark_reaches_it() -> None:
    for compiled in SMALL.policies.values():
        operator = make_operator(compiled.plan, SMALL.tables)
        previous = 0
        for readings, watermark in cut(sorted_readings(SMALL), 3):
            found = operator.process(readings, watermark)
            assert all(previous <= detection.time <= watermark for detection in found)
            previous = watermark


def test_pending_until_says_when_absence_is_decided() -> None:
    operator = make_operator(SMALL.policies["and-not"].plan, SMALL.tables)
    readings = sorted_readings(SMALL)
    assert operator.pending_until() is None
    operator.process(readings.slice(0, 2), 10_501)
    assert operator.pending_until() == 15_500
    assert operator.process(readings.slice(0, 0), 15_499) == []
    [found] = operator.process(readings.slice(0, 0), 15_500)
    assert found.time == 15_500
    assert operator.pending_until() is None


def test_state_is_bounded_by_the_window_not_by_the_stream() -> None:
    operator = make_operator(BUILDING.policies["secure-building"].plan, BUILDING.tables)
    readings = sorted_readings(BUILDING)
    sizes = []
    for shift in range(3):
        times = pa.array(readings.column("time").to_numpy() + shift * 200_000)
        moved = readings.set_column(0, "time", times)
        for batch, watermark in cut(moved, 500):
            operator.process(batch, watermark)
        sizes.append(len(operator.snapshot()))
    assert max(sizes) < 1.2 * min(sizes)


def test_a_snapshot_of_another_plan_is_refused() -> None:
    saved = make_operator(SMALL.policies["or"].plan, SMALL.tables).snapshot()
    other = make_operator(SMALL.policies["within"].plan, SMALL.tables)
    with pytest.raises(Corrupt, match="another version"):
        other.restore(saved)
    for broken in (b"", b"\xc1", saved[:-7], b"\x01"):
        with pytest.raises(Corrupt):
            other.restore(broken)


def test_all_checks_are_supported() -> None:
    plans = [compiled.plan for compiled in (*SMALL.policies.values(), *BUILDING.policies.values())]
    assert [check_supported(plan) for plan in plans] == [[]] * 21
