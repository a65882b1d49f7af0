"""A run over history from plan to result; who executes the tasks is an argument. [PI-5, PO-8]

Footers are believed first. Who reads a row group tells what is in it; where that changes what is
late or which slice a row belongs to (faulty rows, wrong footers), everything is run once more with
what is known now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.errors import Unavailable
from rapport.pipeline.history.crowding import rows_held, times_read
from rapport.pipeline.history.feeds import GroupFacts
from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.found import HistoryFound, accepted, found_of
from rapport.pipeline.history.interest import Needs
from rapport.pipeline.history.lateness import GroupAt, groups_of, is_late
from rapport.pipeline.history.layout import Layout, Task, lay_out_history, with_owners
from rapport.pipeline.history.outcome import unpacked
from rapport.pipeline.history.reading import Reader
from rapport.pipeline.history.rows import CLOCK, TIME, Codes, rows_schema
from rapport.pipeline.history.shown_facts import corrected, matters
from rapport.pipeline.history.switching import Pull, first_of, is_changing
from rapport.pipeline.history.task_run import Job
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import Plan, SilentTerm, encode_plan

_MOST_RUNS = 3
_MOST_TIMES_READ = 4.0


class Engine(Protocol):
    """Who runs the tasks of a job; both ways give what they told (`outcome.py`)."""

    def reading(self, job: Job) -> pa.Table:
        """Each task reads its row groups itself."""

    def shuffled(self, job: Job) -> pa.Table:
        """Row groups are read once and sent to the tasks; nobody answers for groups."""


class Parts(msgspec.Struct, frozen=True):
    """Into how many parts the work is cut, and how many rows a task may hold."""

    slices: int
    buckets: int
    most_held: int = 4_000_000


def drive(
    plans: Sequence[Plan],
    pull: Pull,
    history: ReadingsFiles,
    engine: Engine,
    *,
    lateness_ms: int,
    parts: Parts,
    sources: Mapping[str, PushSource] | None = None,
    end: int = END_OF_TIME,
    most_late: int | None = None,
    needed_only: bool = False,
    beside: Sequence[Plan] = (),
) -> HistoryFound:
    """Runs plans over a history; see `run.run_history`. The readings of the plans `beside` are
    judged, but who decides these is not here.
    """
    known = dict(sources or {})
    groups = groups_of(history)
    if not all(at.facts.is_known for at in groups):
        history, groups = _surveyed(history, groups, engine, lateness_ms, parts)
    for _ in range(_MOST_RUNS):
        job, layout = plan_job(
            plans,
            pull,
            history,
            groups,
            lateness_ms=lateness_ms,
            parts=parts,
            sources=known,
            end=end,
            most_late=most_late,
            needed_only=needed_only,
            beside=beside,
        )
        is_shuffled = _is_crowded(job, parts)
        told = accepted(engine.reading(_judging(job, parts) if is_shuffled else job))
        shown = list(unpacked(told, GroupFacts))
        seen, history, groups = groups, *corrected(history, groups, shown)
        if not matters(seen, groups):
            if is_shuffled:
                told = pa.concat_tables([told, accepted(engine.shuffled(job))])
            found = found_of(told, layout, history, shown)
            counted = {one.policy: 0 for one in (*plans, *beside)} | found.suppressed
            for policy in found.failed:
                counted.pop(policy, None)
            return msgspec.structs.replace(found, suppressed=counted)
    # What a row group shows depends on its bytes alone: these were not the same twice.
    raise Unavailable(
        "the files of the history change while they are read",
        code="history.changed",
        hint="run again when nobody writes to them",
    )


def plan_job(
    plans: Sequence[Plan],
    pull: Pull,
    history: ReadingsFiles,
    groups: tuple[GroupAt, ...],
    *,
    lateness_ms: int,
    parts: Parts,
    sources: dict[str, PushSource],
    end: int = END_OF_TIME,
    most_late: int | None = None,
    needed_only: bool = False,
    beside: Sequence[Plan] = (),
) -> tuple[Job, Layout]:
    """The job, and how its tasks were laid out."""
    needs = Needs.of(plans, sources)
    layout = lay_out_history(
        plans,
        None if is_changing(pull) else first_of(pull),
        [at for at in groups if needs.wants(history.series[at.series])],
        partitions=parts.slices,
        buckets=parts.buckets,
        sources=sources,
        end=end,
    )
    readers = _readers(plans, sources, history, groups, layout.tasks)
    others = Needs.of(beside, sources)
    unread = {
        number
        for number, at in enumerate(groups)
        if needed_only and not others.wants(history.series[at.series])
    }
    layout = with_owners(layout, readers, parts.slices, unread)
    job = Job(
        plans=[encode_plan(plan) for plan in plans],
        tasks=layout.tasks,
        series=history.series,
        groups=groups,
        lateness_ms=lateness_ms,
        sources=sources,
        began=_began(plans, sources, history, groups, lateness_ms),
        most_late=most_late,
    )
    return job, layout


def _is_crowded(job: Job, parts: Parts) -> bool:
    """Whether tasks would read row groups again and again, or hold too many rows to sort them."""
    if not any(task.own for task in job.tasks if task.plans):
        return False
    return times_read(job) > _MOST_TIMES_READ or rows_held(job) > parts.most_held


def _judging(job: Job, parts: Parts) -> Job:
    """The job without its plans: somebody answers for each group."""
    numbers = sorted(number for task in job.tasks for number in task.own)
    split = np.array_split(numbers, min(parts.slices, len(numbers)))
    tasks = tuple(Task(own=tuple(int(number) for number in part)) for part in split)
    return msgspec.structs.replace(job, tasks=tasks)


def _readers(
    plans: Sequence[Plan],
    sources: Mapping[str, PushSource],
    history: ReadingsFiles,
    groups: Sequence[GroupAt],
    tasks: Sequence[Task],
) -> list[list[int]]:
    """For each group the tasks that read rows of it."""
    needs = [Needs.of([plans[index] for index in task.plans], sources) for task in tasks]
    wants = [[need.wants(series) for series in history.series] for need in needs]
    return [
        [n for n, task in enumerate(tasks) if wants[n][at.series] and task.reads(at)]
        for at in groups
    ]


def _began(
    plans: Sequence[Plan],
    sources: Mapping[str, PushSource],
    history: ReadingsFiles,
    groups: Sequence[GroupAt],
    lateness_ms: int,
) -> int | None:
    """The time of the first reading that is not late, where a plan asks for it. Reads the groups
    that may have it, mostly one of each series.
    """
    asked = any(
        watched_sources(plan, sources) or any(isinstance(t, SilentTerm) for t in plan.terms)
        for plan in plans
    )
    if not asked:
        return None
    reader = Reader(history.series, rows_schema(history.series, ()), Codes.none())
    found: int | None = None
    for at in sorted(groups, key=lambda one: one.first):
        if at.facts.first is None or (found is not None and at.first >= found):
            break
        for rows in reader.read(at, lambda problem: None):
            times = rows.column(TIME).to_numpy()
            if not history.series[at.series].is_judged:
                times = times[~is_late(times, rows.column(CLOCK).to_numpy(), lateness_ms)]
            if len(times):
                least = int(times.min())
                found = least if found is None else min(found, least)
    return found


def _surveyed(
    history: ReadingsFiles,
    groups: tuple[GroupAt, ...],
    engine: Engine,
    lateness_ms: int,
    parts: Parts,
) -> tuple[ReadingsFiles, tuple[GroupAt, ...]]:
    """Reads the groups of which footers tell too little."""
    unknown = [number for number, at in enumerate(groups) if not at.facts.is_known]
    split = np.array_split(unknown, min(parts.slices, len(unknown)))
    tasks = tuple(Task(own=tuple(int(number) for number in part)) for part in split)
    job = Job(
        plans=[],
        tasks=tasks,
        series=history.series,
        groups=groups,
        lateness_ms=lateness_ms,
        most_late=0,
    )
    return corrected(history, groups, unpacked(accepted(engine.reading(job)), GroupFacts))
