"""A back-test carried out: plans over a history, in this process or on Spark. [PI-9, PO-8]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import Problem
from rapport.pipeline.backtest.find_history import files_of
from rapport.pipeline.backtest.findings import DetectionColumns
from rapport.pipeline.backtest.pieces import BEGIN_OF_TIME, History, HistoryReader, Window
from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.partitions import look_ahead_ms, look_back_ms, why_in_one_piece
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.operators.plan_shape import longest_window_ms
from rapport.policy.plan import Plan, PolicyPlan, longest_duration_ms
from rapport.policy.replay.replay import FaultyRows, RowFaults
from rapport.policy.table_history import PullByTime, SwitchingRunner, TableHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rapport.site.site import Site

Progress = Callable[[int], None]
"""Called with the number of readings done."""


class BackTestFound(msgspec.Struct, kw_only=True):
    """What the plans found, and what there was."""

    columns: DetectionColumns
    events: int
    """Readings that were used, those before and after the period among them."""
    late: int | None
    first: int | None
    last: int | None
    """The smallest and the largest of their times."""
    ended: int | None
    """The last instant of the period that the history reaches: open situations last until then."""
    suppressed: dict[str, int] | None
    """Of each policy what `at most once per` left out; None: nobody counted."""
    faulty: list[FaultyRows] = []
    problems: list[Problem] = []
    """Policies that failed."""


class BackTestWork(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, over what."""

    ontology: Ontology
    pull: PullData
    plans: list[PolicyPlan]
    history: History
    lateness_ms: int
    period: Window | None = None
    """Only detections in it are wanted; None: all."""
    then: TableHistory | None = None
    """The rows that tables had; None: at all times those of `pull`."""

    @staticmethod
    def of(
        site: Site,
        plans: Sequence[PolicyPlan],
        history: History,
        *,
        lateness_ms: int | None = None,
        period: Window | None = None,
    ) -> BackTestWork:
        """With what a site says."""
        return BackTestWork(
            ontology=site.ontology,
            pull=site.tables,
            plans=list(plans),
            history=history,
            lateness_ms=site.lateness_ms if lateness_ms is None else lateness_ms,
            period=period,
        )

    def pull_at(self, time: int) -> PullData:
        """What readings of a time meet."""
        return self.pull if self.then is None else self.then.at(time)

    def pull_by_time(self) -> PullData | PullByTime:
        """What the plans meet."""
        return self.pull if self.then is None else self.then.pull(self.plans)

    def found_in(self) -> Window | None:
        """The times in which findings are looked for. Two versions may find the same at different
        times: to be compared, those around the period are needed, too. Episodes are compared within
        the period.
        """
        reaches = [
            longest_window_ms(plan) + longest_duration_ms(plan)
            for plan in self.plans
            if isinstance(plan, Plan)
        ]
        if self.period is None or len(reaches) < 2:
            return self.period
        margin = max(reaches)
        return Window(
            max(self.period.begin - margin, BEGIN_OF_TIME),
            min(self.period.end + margin, END_OF_TIME),
        )

    def end_of(self, reached: int | None) -> int | None:
        """The last instant of the period in a history that reaches to a time."""
        if reached is None or self.period is None:
            return reached
        return min(reached, self.period.end - 1)

    def until(self, reached: int | None) -> int | None:
        """How far recorded time runs on behind the last reading that is used."""
        window = self.window()
        return reached if reached is None or window is None else min(reached, window.end - 1)

    def window(self) -> Window | None:
        """The readings that can have a part in what is found in the period; None: all of them.

        A plan that cannot be cut into slices of time needs everything before.
        """
        wanted = self.found_in()
        if wanted is None:
            return None
        sources = self.ontology.sources
        whole = any(why_in_one_piece(plan, sources) for plan in self.plans)
        back = max(look_back_ms(plan, sources) for plan in self.plans)
        ahead = max(look_ahead_ms(plan, sources) for plan in self.plans)
        begin = BEGIN_OF_TIME if whole else max(wanted.begin - back, BEGIN_OF_TIME)
        return Window(begin, min(wanted.end + ahead, END_OF_TIME))

    def reader(self, faults: RowFaults, progress: Progress | None = None) -> HistoryReader:
        """A pass over what is needed of the history."""
        window = self.window()
        return HistoryReader(
            self.history,
            lateness_ms=self.lateness_ms,
            windows=None if window is None else (window,),
            report=faults.report,
            progress=progress,
        )


def run_here(work: BackTestWork, progress: Progress | None = None) -> BackTestFound:
    """Runs the plans in this process; memory does not grow with the history."""
    faults = RowFaults()
    reader = work.reader(faults, progress)
    sources = work.ontology.sources
    pull = work.pull_by_time()
    switching = SwitchingRunner(work.plans, pull, lateness_ms=work.lateness_ms, sources=sources)
    columns = DetectionColumns()
    for rows in reader.batches():
        columns.add(switching.feed(rows))
        columns.add(switching.take_undecided())
    columns.add(switching.finish(work.until(reader.reached)))
    columns.add(switching.take_undecided())
    runner = switching.runner
    return BackTestFound(
        columns=columns,
        events=reader.events,
        late=reader.late,
        first=reader.first,
        last=reader.last,
        ended=work.end_of(reader.reached),
        # In a part of history what was left out before it would be counted, too.
        suppressed=runner.suppressed() if work.period is None else None,
        faulty=faults.by_reason(),
        problems=list(runner.failed().values()),
    )


def run_on_spark(
    spark: SparkSession,
    work: BackTestWork,
    *,
    partitions: int | None = None,
    progress: Progress | None = None,
) -> BackTestFound:
    """Runs the plans on Spark, with the same result. Spark scans Parquet files; other formats are
    read by this process first.
    """
    files = scannable_files(work)
    if files is None:
        return _through_here(spark, work, partitions, progress)
    from rapport.pipeline.history.runner import find_in_history

    made = find_in_history(
        spark,
        work.plans,
        work.pull_by_time(),
        files,
        lateness_ms=work.lateness_ms,
        partitions=partitions,
        sources=work.ontology.sources,
        progress=progress,
        most_late=0,
    )
    columns = DetectionColumns()
    columns.add_columns(made.columns())
    return BackTestFound(
        columns=columns,
        events=made.events,
        late=made.late_count,
        first=made.first,
        last=made.last,
        ended=work.end_of(made.ended),
        suppressed=made.suppressed if work.period is None else None,
        faulty=made.faulty,
        problems=[one.problem for one in made.failed.values()],
    )


def scannable_files(work: BackTestWork) -> ReadingsFiles | None:
    """The files that Spark scans for a back-test; None if it cannot read all of them."""
    from rapport.pipeline.history.scan import why_not_scanned

    files = files_of(work.history, work.ontology, work.window())
    if files is None or why_not_scanned(files, streams_of(work.plans)):
        return None
    return files


def _through_here(
    spark: SparkSession, work: BackTestWork, partitions: int | None, progress: Progress | None
) -> BackTestFound:
    from rapport.pipeline.history.replay import replay_spark

    faults = RowFaults()
    reader = work.reader(faults, progress)
    made = replay_spark(
        spark,
        work.plans,
        work.pull_by_time(),
        reader.batches(),
        lateness_ms=work.lateness_ms,
        partitions=partitions,
        sources=work.ontology.sources,
        until=lambda: work.until(reader.reached),
    )
    columns = DetectionColumns()
    columns.add(made.detections)
    columns.add(made.undecided)
    return BackTestFound(
        columns=columns,
        events=reader.events,
        late=reader.late,
        first=reader.first,
        last=reader.last,
        ended=work.end_of(reader.reached),
        suppressed=made.suppressed if work.period is None else None,
        faulty=faults.by_reason(),
        problems=made.problems,
    )


def total_rows(work: BackTestWork) -> int | None:
    """How many rows will be read; None when footers do not tell."""
    window = work.window()
    return work.history.rows_in(None if window is None else (window,))


def streams_of(plans: Sequence[PolicyPlan]) -> list[str]:
    """All streams that the plans read, sorted."""
    return sorted({stream for plan in plans for stream in plan.streams()})
