"""How the work is divided, and who answers for which row group."""

from __future__ import annotations

import msgspec
import numpy as np

from rapport.pipeline.history.crowding import rows_held, times_read
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, Series
from rapport.pipeline.history.footers import RowGroup
from rapport.pipeline.history.lateness import NEVER, groups_of
from rapport.pipeline.history.layout import (
    BEGIN_OF_TIME,
    Layout,
    lay_out_history,
    slice_bounds,
    with_owners,
)
from rapport.pipeline.history.task_run import Job
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
    first, second, *slices = layout.tasks
    assert [(task.plans, task.bucket, task.buckets) for task in (first, second)] == [
        ((1,), 0, 2),
        ((1,), 1, 2),
    ]
    assert {task.read_from for task in (first, second)} == {BEGIN_OF_TIME}
    (bound,) = layout.bounds
    assert [(task.plans, task.begin, task.until) for task in slices] == [
        ((0,), BEGIN_OF_TIME, bound),
        ((0,), bound, END_OF_TIME),
    ]
    assert slices[1].read_from == bound - layout.look_back_ms
    assert set(layout.reasons) == {"within"}


def test_no_plans_need_no_tasks_and_no_rows_one(small_policies: Site) -> None:
    assert laid_out(small_policies, history((0, 9))).tasks == ()
    assert len(laid_out(small_policies, ReadingsFiles(()), "or").tasks) == 1


def test_plans_that_want_the_same_readings_run_together(small_policies: Site) -> None:
    within = plans_of(small_policies, "within")[0]
    alike = [msgspec.structs.replace(within, policy=f"p{number}") for number in range(5)]
    layout = lay_out_history(
        alike, small_policies.tables, groups_of(history((0, 9))), partitions=2, buckets=3
    )
    assert [task.plans for task in layout.tasks] == [(0, 1, 2, 3, 4)] * 3
    assert all(len(task.keys) == 5 for task in layout.tasks)


def test_one_task_answers_for_each_group(small_policies: Site) -> None:
    layout = laid_out(small_policies, history((0, 99)), "or", partitions=1)
    owned = with_owners(layout, [[0], [], [0], []], 1)
    assert [task.own for task in owned.tasks] == [(0, 2), (1, 3)]
    assert owned.tasks[1].plans == ()
    assert [task.own for task in with_owners(layout, [[0], []], 0).tasks] == [(0,)]


def test_the_largest_time_before_a_group_follows_from_those_before() -> None:
    groups = groups_of(history((5, 50), (7, 40), (60, 70)))
    assert [at.before for at in groups] == [NEVER, 50, 50]
    assert [at.position for at in groups] == [0, 100, 200]
    assert [at.row for at in groups] == [0, 100, 200]


def job_of(site: Site, of: ReadingsFiles, lateness_ms: int = 0, partitions: int = 8) -> Job:
    layout = laid_out(site, of, "or", partitions=partitions)
    return Job(
        plans=[],
        tasks=layout.tasks,
        series=of.series,
        groups=groups_of(of),
        lateness_ms=lateness_ms,
    )


def test_history_in_order_is_read_about_once_and_held_hardly(small_policies: Site) -> None:
    day = 86_400_000
    of = history(*((n * day, (n + 1) * day - 1) for n in range(64)))
    job = job_of(small_policies, of)
    assert times_read(job) <= 1
    assert rows_held(job) == 0


def test_history_without_order_is_read_again_and_again(small_policies: Site) -> None:
    of = history(*[(0, 64 * 86_400_000)] * 64, is_judged=True)
    job = job_of(small_policies, of)
    assert times_read(job) > 4
    assert rows_held(job) == 6_300
    in_arrival_order = history(*[(0, 64 * 86_400_000)] * 64)
    assert rows_held(job_of(small_policies, in_arrival_order, lateness_ms=86_400_000)) == 99
