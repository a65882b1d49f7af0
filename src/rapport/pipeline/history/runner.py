"""Policies over a history in Parquet files: from plans to what was found. [PI-5, PO-8]

The driver reads footers, divides the work and gives one job to an engine; scanning, judging,
sorting and the operators run in Spark's executors, which write the detections. Footers are trusted
first: if reading shows that one was wrong and another row is late therefore (the statistics of
faulty rows), the job is run again with the corrected facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from rapport.core.errors import InvalidInput, Unavailable
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.history.arrival import (
    GroupAt,
    GroupFacts,
    changes_lateness,
    corrected,
    groups_of,
)
from rapport.pipeline.history.exchange import Job
from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.interest import Needs
from rapport.pipeline.history.keys import choose_key
from rapport.pipeline.history.partitions import (
    Layout,
    explain_partitioning,
    lay_out_history,
    why_in_one_piece,
)
from rapport.pipeline.history.reading_filter import (
    counts_silence,
    describe_wanted,
    interest_of,
    leaves_out,
)
from rapport.pipeline.history.results import HistoryFound, OutputFiles, found_of
from rapport.pipeline.history.rows import rows_schema
from rapport.pipeline.history.scan import FileAt, SparkEngine, default_parallelism
from rapport.pipeline.history.tables import Pull, first_of, is_changing, tables_for_workers
from rapport.pipeline.worker_tables import WorkerTables
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import PolicyPlan, encode_plan
from rapport.policy.runner.deployed_plans import check_plan
from rapport.policy.situation_plan import SituationPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PARTITIONS = 10_000
_ROWS_PER_SLICE = 4_000_000
_SLICES_PER_CORE = 3
_MOST_RUNS = 3
_WORTH_LEAVING_OUT = 0.1
_PYTHON_STEPS = (
    "MapInArrow spread_rows is Python: which rows are usable, late or needed is decided by the "
    "node's own code, in arrival order within a row group",
    "MapInArrow run_parts is Python: the operators are those of the node, so results are the same "
    "bytes",
)


class Engine(Protocol):
    """Runs a job over the files of a history, or over some of them."""

    def run(
        self, job: Job, history: ReadingsFiles, chosen: Collection[FileAt] | None = None
    ) -> OutputFiles: ...


class PartCounts(msgspec.Struct, frozen=True):
    """Into how many parts the work is divided."""

    slices: int
    buckets: int


def find_in_history(
    spark: SparkSession,
    plans: Sequence[PolicyPlan],
    pull: Pull,
    history: ReadingsFiles,
    *,
    lateness_ms: int,
    partitions: int | None = None,
    sources: Mapping[str, PushSource] | None = None,
    progress: Callable[[int], None] | None = None,
    most_late: int | None = None,
    output: str | None = None,
    until_ms: int | None = None,
) -> HistoryFound:
    """What `LocalRunner` finds in the readings of `history` in arrival order, byte for byte.

    Detections stay in the files that executors wrote below `output` (None: a temporary directory
    that lives as long as the result).

    Args:
        pull: tables, or what they were at each time; if they change, plans run in slices of time
            or in one piece, and no reading is left out beforehand.
        partitions: how many parts; None: as fits rows and cores. The result does not depend on it.
        sources: those of the site: periods, clock uncertainties and staleness matter.
        progress: called with the number of readings read so far, whenever a task ends.
        most_late: keep about so many late readings (all are counted); None: all of them.
        until_ms: for situations recorded time runs on to it, included.

    Raises what `check_plan` raises, SiteError for files that cannot be read, and RapportErrors
    for everything that goes wrong on Spark.
    """
    check_plans(plans, pull, sources)
    with spark_errors("running policies over history"):
        counts = part_counts(partitions, history.rows, default_parallelism(spark))
        told = _Progress(history.rows, progress)
        found = evaluate_history(
            plans,
            pull,
            history,
            SparkEngine(spark, tables_for_workers(plans, pull), output, told.add),
            lateness_ms=lateness_ms,
            parts=counts,
            sources=sources,
            most_late=most_late,
            until_ms=until_ms,
        )
        told.finish()
        return found


def explain_history(
    spark: SparkSession,
    plans: Sequence[PolicyPlan],
    pull: Pull,
    history: ReadingsFiles,
    *,
    lateness_ms: int,
    partitions: int | None = None,
    sources: Mapping[str, PushSource] | None = None,
) -> str:
    """The physical plan that `find_in_history` runs, and why each Python step is Python."""
    with spark_errors("explaining a run over history"):
        counts = part_counts(partitions, history.rows, default_parallelism(spark))
        job, _ = plan_job(
            plans,
            pull,
            history,
            groups_of(history),
            lateness_ms=lateness_ms,
            parts=counts,
            sources=dict(sources or {}),
        )
        engine = SparkEngine(spark, tables_for_workers(plans, pull))
        return "\n".join([engine.explain(job, history).rstrip(), "", *_PYTHON_STEPS, ""])


def evaluate_history(
    plans: Sequence[PolicyPlan],
    pull: Pull,
    history: ReadingsFiles,
    engine: Engine,
    *,
    lateness_ms: int,
    parts: PartCounts,
    sources: Mapping[str, PushSource] | None = None,
    most_late: int | None = None,
    until_ms: int | None = None,
) -> HistoryFound:
    """Runs plans over a history on any engine; see `find_in_history`."""
    known = dict(sources or {})
    groups = groups_of(history)
    situations = [plan.policy for plan in plans if isinstance(plan, SituationPlan)]
    unknown = {
        (at.series, at.file)
        for at in groups
        if not at.facts.is_known and (situations or not history.series[at.series].is_judged)
    }
    if unknown:
        shown = _survey(history, groups, engine, lateness_ms, unknown)
        history, groups = corrected(history, groups, shown)
    first_groups = groups
    for _ in range(_MOST_RUNS):
        job, layout = plan_job(
            plans,
            pull,
            history,
            groups,
            lateness_ms=lateness_ms,
            parts=parts,
            sources=known,
            most_late=most_late,
        )
        if any(counts_silence(plan, known) for plan in plans):
            began = _first_reading(history, groups, engine, lateness_ms)
            job = msgspec.structs.replace(job, began=began)
        if situations:
            ended = _end_of_record(history, groups, first_groups, until_ms)
            job = msgspec.structs.replace(job, ended=ended)
        output = engine.run(job, history)
        reports = output.reports()
        before, history, groups = groups, *corrected(history, groups, reports.of(GroupFacts))
        ended = _end_of_record(history, groups, first_groups, until_ms)
        is_final = not situations or job.ended == ended
        if is_final and not changes_lateness(history, before, groups):
            names = [plan.policy for plan in plans]
            return found_of(output, reports, layout, history, names, situations, ended)
    # What reading shows depends on the bytes alone: these were not the same twice.
    raise Unavailable(
        "the files of the history change while they are read",
        code="history.changed",
        hint="run again when nobody writes to them",
    )


def plan_job(
    plans: Sequence[PolicyPlan],
    pull: Pull,
    history: ReadingsFiles,
    groups: tuple[GroupAt, ...],
    *,
    lateness_ms: int,
    parts: PartCounts,
    sources: dict[str, PushSource],
    most_late: int | None = None,
) -> tuple[Job, Layout]:
    """The job, and how its parts were laid out."""
    needs = Needs.of(plans, sources)
    layout = lay_out_history(
        plans,
        None if is_changing(pull) else first_of(pull),
        [at for at in groups if needs.wants(history.series[at.series])],
        partitions=parts.slices,
        buckets=parts.buckets,
        sources=sources,
    )
    job = Job(
        plans=[encode_plan(plan) for plan in plans],
        parts=layout.parts,
        series=tuple(msgspec.structs.replace(one, files=()) for one in history.series),
        groups=groups,
        schema=rows_schema(history.series, needs.streams),
        lateness_ms=lateness_ms,
        sources=sources,
        most_late=most_late,
        window=history.window,
    )
    return job, layout


def _survey(
    history: ReadingsFiles,
    groups: tuple[GroupAt, ...],
    engine: Engine,
    lateness_ms: int,
    chosen: Collection[FileAt],
) -> list[GroupFacts]:
    """Reads some files without running any plan."""
    job, _ = plan_job(
        [],
        WorkerTables({}, {}),
        history,
        groups,
        lateness_ms=lateness_ms,
        parts=PartCounts(1, 1),
        sources={},
        most_late=0,
    )
    return list(engine.run(job, history, chosen).reports().of(GroupFacts))


def _first_reading(
    history: ReadingsFiles, groups: tuple[GroupAt, ...], engine: Engine, lateness_ms: int
) -> int | None:
    """The time of the first reading that is not late. Reads the files that may have it, mostly
    one.
    """
    found: int | None = None
    read: set[FileAt] = set()
    for at in sorted(groups, key=lambda one: one.first):
        if at.facts.first is None or (found is not None and at.first >= found):
            break
        if (at.series, at.file) not in read:
            read.add((at.series, at.file))
            shown = _survey(history, groups, engine, lateness_ms, {(at.series, at.file)})
            times = [one.earliest for one in shown if one.earliest is not None]
            found = min([*times, *([] if found is None else [found])], default=None)
    return found


def _end_of_record(
    history: ReadingsFiles,
    groups: Sequence[GroupAt],
    by_footers: Sequence[GroupAt],
    until_ms: int | None,
) -> int | None:
    """When recorded time ends: at the last reading, which is never late, or at `until_ms` if that
    is later; where a window ends before, at its end. Without readings there is no recorded time.
    """
    # Of judged series only rows in the window are read, which do not show where the record ends.
    shown = [
        footer if history.window is not None and history.series[at.series].is_judged else at
        for at, footer in zip(groups, by_footers, strict=True)
    ]
    ends = [at.facts.last for at in shown if at.facts.last is not None]
    if not ends:
        return None
    ended = max(*ends, ends[0] if until_ms is None else until_ms)
    return ended if history.window is None else min(ended, history.window[1] - 1)


def check_plans(
    plans: Sequence[PolicyPlan], pull: Pull, sources: Mapping[str, PushSource] | None
) -> None:
    """Refuses a plan that cannot run anywhere; raises what `check_plan` raises."""
    for plan in plans:
        check_plan(plan, first_of(pull), sources)


def part_counts(partitions: int | None, rows: int, cores: int) -> PartCounts:
    """How many slices and buckets: as given, or as fits the rows and the cores."""
    if partitions is None:
        slices = max(rows // _ROWS_PER_SLICE, _SLICES_PER_CORE * cores)
        return PartCounts(min(slices, MOST_PARTITIONS), cores)
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidInput(
            f"{partitions} is not a number of partitions",
            code="spark.bad_partitions",
            hint=f"choose 1 to {MOST_PARTITIONS}",
        )
    return PartCounts(partitions, partitions)


class _Progress:
    """Adds up rows and reports the sum, never more than there are: a task that runs again after a
    failure counts twice.
    """

    def __init__(self, rows: int, report: Callable[[int], None] | None) -> None:
        self._rows, self._report = rows, report
        self._done = 0

    def add(self, rows: int) -> None:
        self._done = min(self._done + rows, self._rows)
        if self._report is not None and rows:
            self._report(self._done)

    def finish(self) -> None:
        self.add(self._rows - self._done)


def explain_run(
    plan: PolicyPlan, pull: PullData, sources: Mapping[str, PushSource] | None = None
) -> list[str]:
    """Sentences: how a plan is divided and why, and which readings its operators are given. Looks
    at the plan and the tables only, not at readings.
    """
    known = sources or {}
    wanted = interest_of([plan], pull, known)
    is_filtered = leaves_out(wanted, plan, pull) >= _WORTH_LEAVING_OUT
    given = describe_wanted(wanted, pull)
    filtered = "filter while scanning" if is_filtered else "hardly anything to leave out"
    return [
        f"{plan.policy}: {'filter + ' if is_filtered else ''}{_cut(plan, pull, known)}",
        explain_partitioning(plan, known, pull),
        f"{plan.policy}: {filtered}: operators are given {given}",
    ]


def _cut(plan: PolicyPlan, pull: PullData, sources: Mapping[str, PushSource]) -> str:
    if not why_in_one_piece(plan, sources):
        return "slices"
    key = choose_key(plan, pull, sources)
    return "one piece" if isinstance(key, str) else f"buckets by alias {key.alias}"
