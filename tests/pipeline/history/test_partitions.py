"""How the work is divided."""

from __future__ import annotations

import msgspec
import numpy as np

from rapport.pipeline.history.arrival import NEVER, groups_of
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, RowGroup, Series
from rapport.pipeline.history.partitions import (
    BEGIN_OF_TIME,
    Layout,
    lay_out_history,
    slice_bounds,
)
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.plan import Plan
from rapport.site.site import Site


def history(*spans: tuple[int, int], rows: int = 100, is_judged: bool = False) -> ReadingsFiles:
    groups = tuple(RowGroup(rows, first, last, True) for first, last in spans)
    file = ReadingsFile("r.parquet", 1, groups)
    return ReadingsFiles((Series(files=(file,), is_judged=is_judged),))


def plans_of(site: Site, *names: str) -> list[Plan]:
    return [site.policies[name].plan for name in names]


def laid_out(site: Site, of: ReadingsFiles, *names: str, partitions: int = 4) -> Layout:
    return lay_out_history(
        plans_of(site, *names), site.tables, groups_of(of), partitions=partitions, buckets=2
    )


def test_bounds_part_the_times_about_equally() -> None:
    times = np.array([5] * 50 + list(range(100, 150)), np.int64)
    assert slice_bounds(times, 4) == (100, 125)
    assert slice_bounds(times, 1) == slice_bounds(np.empty(0, np.int64), 4) == ()


def test_whole_histories_come_first_then_slices(small_policies: Site) -> None:
    layout = laid_out(small_policies, history((0, 99), (100, 199)), "or", "within", partitions=2)
    first, second, *slices = layout.parts
    assert [(part.plans, part.bucket, part.buckets) for part in (first, second)] == [
        ((1,), 0, 2),
        ((1,), 1, 2),
    ]
    assert {part.read_from for part in (first, second)} == {BEGIN_OF_TIME}
    (bound,) = layout.bounds
    assert [(part.plans, part.begin, part.until) for part in slices] == [
        ((0,), BEGIN_OF_TIME, bound),
        ((0,), bound, END_OF_TIME),
    ]
    assert slices[1].read_from == bound - layout.look_back_ms
    assert set(layout.reasons) == {"within"}


def test_no_plans_need_no_tasks_and_no_rows_one(small_policies: Site) -> None:
    assert laid_out(small_policies, history((0, 9))).parts == ()
    assert len(laid_out(small_policies, ReadingsFiles(()), "or").parts) == 1


def test_plans_that_want_the_same_readings_run_together(small_policies: Site) -> None:
    within = plans_of(small_policies, "within")[0]
    alike = [msgspec.structs.replace(within, policy=f"p{number}") for number in range(5)]
    layout = lay_out_history(
        alike, small_policies.tables, groups_of(history((0, 9))), partitions=2, buckets=3
    )
    assert [part.plans for part in layout.parts] == [(0, 1, 2, 3, 4)] * 3
    assert all(len(part.keys) == 5 for part in layout.parts)


def test_the_largest_time_before_a_group_follows_from_those_before() -> None:
    groups = groups_of(history((5, 50), (7, 40), (60, 70)))
    assert [at.before for at in groups] == [NEVER, 50, 50]
    assert [at.position for at in groups] == [0, 100, 200]
    assert [at.row for at in groups] == [0, 100, 200]
