"""The operators of a part of a history, which switch to other tables at the times of change.
[PI-5, PO-2, PO-8]

As in `policy/table_history.py`: everything before a switch is decided by the rows of before, then
the operators are made anew with the new rows and restored from their state. A slice of time begins
with the rows that were in force where it begins to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.pipeline.history.interest import Interest, Needs
from rapport.pipeline.history.partitions import BEGIN_OF_TIME, HistoryPart
from rapport.pipeline.history.results import PolicyFailure
from rapport.pipeline.history.rows import TIME, Codes, as_readings
from rapport.pipeline.history.tables import Pull
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.detection_output import SuppressionFilter
from rapport.policy.operators.operator import OperatorContext
from rapport.policy.operators.uncertainty import SourceSilence
from rapport.policy.plan import Plan, PolicyPlan, SilentTerm
from rapport.policy.runner.deployed_plans import DeployedPlans, FailedPlan, SituationCounts
from rapport.policy.situation_plan import SituationPlan
from rapport.policy.table_history import as_pull_by_time

Found = Detection | Undecided


class SwitchingPlans:
    """Plans that take readings in event order, and the switches of tables to come.

    A switch costs a snapshot of the state of the plans.
    """

    def __init__(
        self,
        plans: Sequence[PolicyPlan],
        pull: Pull,
        silence: SourceSilence,
        sources: Mapping[str, PushSource],
        counts: SuppressionFilter,
        *,
        began: int | None,
        read_from: int,
    ) -> None:
        """`counts`: which suppressed detections are counted; `began`: see DeployedPlans."""
        by_time = as_pull_by_time(pull)
        self._silence, self._sources, self._counts = silence, sources, counts
        self._began, self._left = began, deque(by_time.switches)
        first = by_time.pull
        while self._left and self._left[0].since <= read_from:
            first = self._left.popleft().pull()
        self._running = self._made(plans, first)
        self._watermark = BEGIN_OF_TIME

    def next_switch(self, watermark: int) -> int | None:
        """The time of the next switch up to the watermark; None: there is none."""
        return self._left[0].since if self._left and self._left[0].since <= watermark else None

    def process(self, readings: pa.RecordBatch | None, watermark: int) -> list[Found]:
        """Processes readings before the watermark; no switch may lie between."""
        found: list[Found] = list(self._running.process(readings, watermark))
        self._watermark = watermark
        return found + self._running.take_undecided()

    def switch(self) -> None:
        """Switches to the next tables. Everything before them was processed."""
        before, pull = self._running, self._left.popleft().pull()
        plans = [*before.plans.values(), *before.failed_plans.values()]
        self._running = self._made(plans, pull)
        if self._watermark > BEGIN_OF_TIME:  # else there is no state yet
            state = before.state(self._watermark)
            self._running.restore(state, before.failed, self._watermark)
            self._running.given.take_over(before.given.state(self._watermark))

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was processed yet: time must not move before the first reading."""
        return self._watermark <= BEGIN_OF_TIME

    @property
    def failed(self) -> Mapping[str, FailedPlan]:
        """Plans that failed."""
        return self._running.failed

    def suppressed(self) -> dict[str, int]:
        """How many detections `at most once per` left out, by policy."""
        return self._running.suppressed()

    def situations(self) -> dict[str, SituationCounts]:
        """The open and pending situations, by policy."""
        return self._running.situations()

    def _made(self, plans: Sequence[PolicyPlan], pull: PullData) -> DeployedPlans:
        around = OperatorContext(pull, self._silence, self._sources, self._counts)
        running = DeployedPlans(around, self._began, _no_clock)
        for plan in plans:
            running.deploy(plan, BEGIN_OF_TIME)
        return running


def _no_clock() -> int:
    return 0


PORTION = 20_000
"""Readings given to operators at once: enough for columns to pay, few enough for the caches."""


class PlanRun:
    """Runs the plans of a part; keeps only what the part owns."""

    def __init__(
        self,
        plans: Sequence[PolicyPlan],
        pull: Pull,
        part: HistoryPart,
        sources: Mapping[str, PushSource],
        began: int | None,
        ended: int | None = None,
    ) -> None:
        """`began` and `ended`: when recorded time begins and ends for silence and situations."""
        self.codes = Codes.none()
        self.failed: dict[str, PolicyFailure] = {}
        self._part, self._plans = part, plans
        needs = Needs.of(plans, sources)
        heard = {name: sources[name] for name in sorted(needs.sources)}
        self._silence = SourceSilence(heard, began=began)
        self._running = SwitchingPlans(
            plans,
            pull,
            self._silence,
            sources,
            self._owns,
            began=began,
            read_from=part.read_from,
        )
        self._interest = Interest(plans, part.keys, part.buckets, pull, sources, self.codes)
        self._keys = dict(zip((plan.policy for plan in plans), part.keys, strict=False))
        conditions = [plan for plan in plans if isinstance(plan, Plan)]
        silent = any(isinstance(term, SilentTerm) for plan in conditions for term in plan.terms)
        situations = any(isinstance(plan, SituationPlan) for plan in plans)
        self._began = began if silent else None
        self._starts = began if any(plan.conditions() for plan in plans) else self._began
        self._ended = ended if situations else None
        self._watermark = BEGIN_OF_TIME

    @property
    def read_until(self) -> int:
        """The part decides up to before this time."""
        return self._part.read_until

    def take(self, rows: pa.RecordBatch, watermark: int) -> list[Found]:
        """Runs the operators over rows in event order, in portions that never cut a moment."""
        times = rows.column(TIME).to_numpy()
        found: list[Found] = []
        first = 0
        while first < len(rows):
            until = first + PORTION
            if until >= len(rows):
                part, limit = rows.slice(first), watermark
                until = len(rows)
            else:
                limit = int(times[until])
                until = int(np.searchsorted(times, limit))
                if until <= first:  # more than a portion at one moment
                    until = int(np.searchsorted(times, limit, side="right"))
                    limit = int(times[until]) if until < len(rows) else watermark
                part = rows.slice(first, until - first)
            found += self._process(part, limit)
            first = until
        return found

    def finish(self) -> list[Found]:
        """Decides everything up to where the part reads; no rows follow."""
        if not self._plans or self._watermark >= self._part.read_until:
            return []
        return self._process(None, self._part.read_until)

    def suppressed(self) -> dict[str, int]:
        """How many detections of the part `at most once per` left out, by policy."""
        return self._running.suppressed()

    def situations(self) -> dict[str, SituationCounts]:
        """The situations of the part that are open or pending when recorded time ends."""
        return self._running.situations()

    def _process(self, rows: pa.RecordBatch | None, watermark: int) -> list[Found]:
        """Stops where recorded time ends: situations that are due by then are told, others are not,
        and tables from after the end do not count. No row is later.
        """
        if self._ended is None or not self._watermark <= self._ended < watermark - 1:
            return self._process_switching(rows, watermark)
        found = self._process_switching(rows, self._ended + 1)
        return found + self._process_part(None, watermark)

    def _process_switching(self, rows: pa.RecordBatch | None, watermark: int) -> list[Found]:
        """Processes up to each switch by the tables before it, then by the new ones."""
        found: list[Found] = []
        while (since := self._running.next_switch(watermark)) is not None:
            before = None
            if rows is not None:
                cut = int(np.searchsorted(rows.column(TIME).to_numpy(), since))
                before, rows = rows.slice(0, cut) if cut else None, rows.slice(cut)
            if before is not None or self._has_begun(since):
                found += self._process_part(before, since)
            self._running.switch()
        rows = None if rows is not None and not len(rows) else rows
        if rows is not None or self._watermark < watermark:
            found += self._process_part(rows, watermark)
        return found

    def _has_begun(self, time: int) -> bool:
        """Whether time runs already; it starts with the first reading of any source."""
        return not self._running.is_untouched or (self._starts is not None and self._starts < time)

    def _process_part(self, rows: pa.RecordBatch | None, watermark: int) -> list[Found]:
        readings = None if rows is None else as_readings(rows, self.codes)
        if readings is not None:
            self._silence.take(readings)
            mine = self._interest.for_operators(rows, self._part.bucket)
            if mine is not None:
                readings = readings.filter(pa.array(mine)) if mine.any() else None
        if self._began is not None:
            readings, self._began = _with_begin(readings, self._began), None
        found = self._running.process(readings, watermark)
        self._note_failed()
        self._watermark = watermark
        return [item for item in found if self._owns(item)]

    def _owns(self, item: Found) -> bool:
        part = self._part
        if part.keys:
            return self._keys[item.policy].owns(item, part.bucket, part.buckets)
        return part.begin <= item.time < part.until

    def _note_failed(self) -> None:
        for name, failed in self._running.failed.items():
            if name not in self.failed:
                self.failed[name] = PolicyFailure(name, self._watermark, failed.problem)


def _with_begin(readings: pa.RecordBatch | None, began: int) -> pa.RecordBatch:
    """Puts a reading of no stream first: time starts with the first reading of any source."""
    names = ("id", "stream", "source", "key")
    begin = {"time": pa.array([began])} | {name: pa.array([""]) for name in names}
    if readings is None:
        return pa.RecordBatch.from_pydict(begin)
    columns = []
    for field, column in zip(readings.schema, readings.columns, strict=True):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        own = begin.get(field.name)
        one = pa.nulls(1, kind) if own is None else own
        columns.append(pa.concat_arrays([one, column.cast(kind)]))
    return pa.RecordBatch.from_arrays(columns, names=readings.schema.names)
