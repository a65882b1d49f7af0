"""The load of a running node: measured every second, reported on request, and followed with a
tolerated imprecision. [PO-14]
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import msgspec

from rapport.core.errors import UnknownName
from rapport.kernel.approximation import (
    Aggregate,
    ApproximateReport,
    ApproximateReporter,
    SlidingAggregate,
    check_aggregate,
)
from rapport.kernel.clock import Clock, Ids
from rapport.kernel.tasks import first_of
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.metrics import SPAN_MS, LoadMeter, LoadReport, LoadSample

EVERY_MS = 1_000
Measured = Literal["busy", "events", "behind"]
"""Percent of the time at work, events per second, events that wait."""
Values = dict[Measured, float]


class LoadUpdate(msgspec.Struct, frozen=True):
    """A report to a follower, with the name by which it can change its imprecision."""

    follower: str
    of: Measured
    how: Aggregate
    value: float
    imprecision: float
    offered: int
    """Values measured since it follows; without approximation each were a report."""
    reported: int


class LoadFollower:
    """Follows one value."""

    def __init__(self, name: str, of: Measured, how: Aggregate, imprecision: float) -> None:
        self.name, self._of, self._how = name, of, how
        self._recent = SlidingAggregate(how, SPAN_MS)
        self._approximate = ApproximateReporter(imprecision)
        self._waiting: ApproximateReport | None = None
        self._is_there = asyncio.Event()

    def begin(self, before: Sequence[tuple[int, Values]]) -> None:
        """What was measured before it followed, oldest first; then the first report waits."""
        for at_ms, values in before[:-1]:
            self._recent.add(at_ms, values[self._of])
        for at_ms, values in before[-1:]:
            self.measured(at_ms, values)

    def measured(self, at_ms: int, values: Values) -> None:
        """Values of now; a report waits when one is needed."""
        self._recent.add(at_ms, values[self._of])
        value = self._recent.value(at_ms)
        if value is not None:
            self._report(self._approximate.offer(value))

    def change(self, imprecision: float) -> None:
        """Another imprecision from now on; a rougher last report is renewed at once."""
        self._report(self._approximate.change(imprecision))

    def _report(self, report: ApproximateReport | None) -> None:
        if report is not None:
            self._waiting = report  # an older one that was not taken yet says nothing any more
            self._is_there.set()

    async def next(self, wait_ms: float, clock: Clock, closing: asyncio.Event) -> LoadUpdate | None:
        """The next report; None when there is none within the time, or `closing` is set."""
        await first_of(self._is_there.wait(), clock.sleep(wait_ms), closing.wait())
        self._is_there.clear()
        report, self._waiting = self._waiting, None
        if report is None:
            return None
        known = self._approximate
        return LoadUpdate(
            follower=self.name,
            of=self._of,
            how=self._how,
            value=round(report.value, 3),
            imprecision=report.imprecision,
            offered=known.offered,
            reported=known.reported,
        )


class LoadWatch:
    """Measures the policy engine; all calls belong to one event loop."""

    def __init__(self, engine: PolicyEngine, clock: Clock, ids: Ids) -> None:
        self._engine, self._clock, self._ids = engine, clock, ids
        self._meter = LoadMeter()
        self._minute: deque[tuple[int, Values]] = deque()
        self._followers: dict[str, LoadFollower] = {}

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            self.measure()
            await self._clock.sleep(EVERY_MS)

    def measure(self) -> None:
        """Takes one sample and reports it to the followers."""
        at_ms, engine = self._clock.steady_ns() / 1e6, self._engine
        sample = LoadSample(at_ms, engine.busy_ns / 1e6, engine.counts.read, engine.behind())
        self._meter.take(sample, engine.counts_by_policy())
        values: Values = {
            "busy": 100 * self._meter.last_busy(),
            "events": self._meter.last_rate(),
            "behind": float(sample.behind),
        }
        self._minute.append((int(at_ms), values))
        while self._minute[0][0] <= at_ms - SPAN_MS:
            self._minute.popleft()
        for follower in self._followers.values():
            follower.measured(int(at_ms), values)

    def report(self) -> LoadReport:
        return self._meter.report(self._engine.counts_by_policy())

    def follower(self, imprecision: float, of: str, how: str) -> LoadFollower:
        """One that can follow; raises InvalidInput or UnknownName."""
        return LoadFollower(self._ids.new(), _check_measured(of), check_aggregate(how), imprecision)

    @contextmanager
    def following(self, follower: LoadFollower) -> Iterator[None]:
        """Reports samples to the follower while the block runs."""
        self._followers[follower.name] = follower
        follower.begin(list(self._minute))
        try:
            yield
        finally:
            del self._followers[follower.name]

    def change(self, follower: str, imprecision: float) -> None:
        """Changes the imprecision of a follower; raises UnknownName."""
        if follower not in self._followers:
            raise UnknownName("follower of the load", follower, code="load.unknown_follower")
        self._followers[follower].change(imprecision)


def _check_measured(of: str) -> Measured:
    for known in get_args(Measured):
        if of == known:
            return known  # type: ignore[no-any-return]
    raise UnknownName("load to follow", of, get_args(Measured), code="load.unknown_value")
