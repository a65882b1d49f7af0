"""The plans of a task under way, going over to other tables where live did. [PI-5, PO-2, PO-8]

As `policy/table_history.py` has it: everything before a switch is decided by the rows of before,
then the steps are made anew with the new rows and given what they knew. A slice of time begins with
the rows that were in force where it begins to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Unsupported
from rapport.pipeline.history.layout import BEGIN_OF_TIME
from rapport.pipeline.worker_tables import WorkerTables, tables_asked
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.detection_output import SuppressionFilter
from rapport.policy.operators.uncertainty import SourceSilence
from rapport.policy.plan import Plan
from rapport.policy.runner.deployed_plans import DeployedPlans, FailedPlan
from rapport.policy.runner.families import OperatorContext
from rapport.policy.table_history import PullByTime, TableSwitch, as_pull_by_time
from rapport.tables.instances import Instances

Found = Detection | Undecided
Pull = PullData | PullByTime
MOST_ROWS_SENT = 10_000_000
"""Instances of all versions together that travel to workers; some 100 bytes each."""


def is_changing(pull: Pull) -> bool:
    """Whether rows change in the history: then no reading can be left out, or sent to one bucket
    only, by what tables say.
    """
    return isinstance(pull, PullByTime) and bool(pull.switches)


def first_of(pull: Pull) -> PullData:
    """What the first readings meet."""
    return as_pull_by_time(pull).pull


def tables_for_workers(plans: Sequence[Plan], pull: Pull) -> Pull:
    """What plans look at, as plain data that travels; rows that did not change travel once. Raises
    Unsupported when there are too many.
    """
    by_time, sent = as_pull_by_time(pull), dict[int, Instances]()

    def plain(tables: PullData) -> WorkerTables:
        made = tables_asked(plans, tables)
        sent.update((id(one), one) for one in made.held())
        count = sum(len(one) for one in sent.values())
        if count > MOST_ROWS_SENT and by_time.switches:
            raise Unsupported(
                f"{count:,} rows of then, all versions together,",
                "Spark",
                hint="choose a shorter period, use --tables now, or leave out --engine spark",
            )
        return made

    first = plain(by_time.pull)
    switches = tuple(
        TableSwitch(one.since, partial(_itself, plain(one.pull()))) for one in by_time.switches
    )
    return PullByTime(pull=first, switches=switches) if switches else first


def _itself(tables: PullData) -> PullData:
    return tables


class SwitchingPlans:
    """Plans that take readings in event order; holds what runs, and the switches to come.

    A switch costs a snapshot of what the plans know.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        pull: Pull,
        silence: SourceSilence,
        sources: Mapping[str, PushSource],
        counts: SuppressionFilter,
        *,
        began: int | None,
        read_from: int,
    ) -> None:
        """`counts`: which of those left out are counted; `began`: see RunningPlans."""
        by_time = as_pull_by_time(pull)
        self._silence, self._sources, self._counts = silence, sources, counts
        self._began, self._left = began, deque(by_time.switches)
        first = by_time.pull
        while self._left and self._left[0].since <= read_from:
            first = self._left.popleft().pull()
        self._running = self._made(plans, first)
        self._watermark = BEGIN_OF_TIME

    def next_switch(self, watermark: int) -> int | None:
        """Where rows change before time gets to the watermark, first of all; None: they do not."""
        return self._left[0].since if self._left and self._left[0].since <= watermark else None

    def process(self, readings: pa.RecordBatch | None, watermark: int) -> list[Found]:
        """Takes what lies before the watermark; no switch may lie between."""
        found: list[Found] = list(self._running.process(readings, watermark))
        self._watermark = watermark
        return found + self._running.take_undecided()

    def switch(self) -> None:
        """Goes over to the next rows. Everything before them was taken."""
        before, pull = self._running, self._left.popleft().pull()
        plans = [*before.plans.values(), *before.failed_plans.values()]
        self._running = self._made(plans, pull)
        if self._watermark > BEGIN_OF_TIME:  # else nobody knows anything yet
            state = before.state(self._watermark)
            self._running.restore(state, before.failed, self._watermark)
            self._running.given.take_over(before.given.state(self._watermark))

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was taken yet: then time must not move before the first reading."""
        return self._watermark <= BEGIN_OF_TIME

    @property
    def failed(self) -> Mapping[str, FailedPlan]:
        """Plans that were set aside."""
        return self._running.failed

    def suppressed(self) -> dict[str, int]:
        """By policy what `at most once per` left out."""
        return self._running.suppressed()

    def _made(self, plans: Sequence[Plan], pull: PullData) -> DeployedPlans:
        around = OperatorContext(pull, self._silence, self._sources, self._counts)
        running = DeployedPlans(around, self._began, _no_clock)
        for plan in plans:
            running.deploy(plan, BEGIN_OF_TIME)
        return running


def _no_clock() -> int:
    return 0
