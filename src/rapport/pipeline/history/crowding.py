"""How much tasks would read and hold if they read row groups themselves, by what footers tell.
[PI-5]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapport.pipeline.history.lateness import GroupAt
from rapport.pipeline.history.layout import BEGIN_OF_TIME
from rapport.pipeline.history.task_run import Job
from rapport.policy.operators.base import END_OF_TIME


def times_read(job: Job) -> float:
    """How often each row would be read by slices of time, on average; 1 when all is in order."""
    slices = [
        task
        for task in job.tasks
        if task.plans and (task.begin > BEGIN_OF_TIME or task.until < END_OF_TIME)
    ]
    rows = sum(at.facts.rows for at in job.groups)
    if not slices or not rows:
        return 0.0
    firsts, lasts = (np.array([getattr(at, end) for at in job.groups]) for end in ("first", "last"))
    sizes = np.array([at.facts.rows for at in job.groups])
    # Two row groups lie at the ends of every slice, however well all is in order.
    ends = 2 * int(sizes.max())
    read = 0
    for task in slices:
        touched = int(sizes[(firsts < task.read_until) & (lasts >= task.read_from)].sum())
        read += max(touched - ends, 0)
    return read / rows


def rows_held(job: Job) -> int:
    """About how many rows a task must hold at most until it is sure of their order."""
    return sum(
        _held(
            [at for at in job.groups if at.series == number],
            None if series.is_judged else job.lateness_ms,
        )
        for number, series in enumerate(job.series)
    )


def _held(groups: Sequence[GroupAt], lateness_ms: int | None) -> int:
    """Of one series: rows of groups that overlap, or those that arrive within the lateness."""
    known = [at for at in groups if at.facts.first is not None]
    if not known:
        return 0
    overlapping = _most_at_once(known)
    if lateness_ms is None:
        return overlapping
    span = max(at.last for at in known) - min(at.first for at in known) + 1
    arriving = sum(at.facts.rows for at in known) * min(lateness_ms / span, 1.0)
    return min(overlapping, int(arriving))


def _most_at_once(groups: Sequence[GroupAt]) -> int:
    """The most rows of groups that have a moment in common; the largest group counts for nothing:
    it is read bit by bit.
    """
    starts = sorted((at.first, at.facts.rows) for at in groups)
    ends = sorted((at.last, at.facts.rows) for at in groups)
    most = now = place = 0
    for first, rows in starts:
        while ends[place][0] < first:
            now -= ends[place][1]
            place += 1
        now += rows
        most = max(most, now)
    return most - max(at.facts.rows for at in groups)
