"""What the policy benchmarks have in common: the workload cut into batches, and runs over it.
[PO-8, UX-3]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.policy.building import Building, Workload
from rapport.core.detection import Detection
from rapport.kernel.clock import SystemClock
from rapport.policy.operators import make_operator
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.operators.shared_cache import StepCounts
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner, in_event_order

SEED = 20_260_302
PEOPLE, ROOMS = 200, 100
BATCH = 10_000
CLOCK = SystemClock()


class Scene(NamedTuple):
    """A building and the people in it."""

    building: Building
    work: Workload

    def part(self, events: int) -> Scene:
        """The first events."""
        return Scene(self.building, Workload(self.work.readings.slice(0, events), ""))


class Run(msgspec.Struct, frozen=True):
    """What a run over a workload came to."""

    seconds: float
    events: int
    found: int
    steps: StepCounts = StepCounts()
    """Steps of batches that all policies wanted, and those that had to be computed."""

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    @property
    def per_event(self) -> float:
        """Seconds per event."""
        return self.seconds / self.events


def say(text: str) -> None:
    """Progress, for who waits."""
    sys.stderr.write(f"{text}\n")


def cut(readings: pa.RecordBatch, size: int = BATCH) -> list[tuple[pa.RecordBatch, int]]:
    """Batches of about so many in event order, equal times together, each with its watermark."""
    times = readings.column("time").to_numpy()
    edges = [0]
    while edges[-1] < len(times):
        last = times[min(edges[-1] + size, len(times)) - 1]
        edges.append(int(np.searchsorted(times, last, side="right")))
    return [
        (in_event_order(readings.slice(low, high - low)), int(times[high - 1]) + 1)
        for low, high in pairwise(edges)
    ]


def through_operator(
    pull: PullData, readings: pa.RecordBatch, plan: Plan, *, rounds: int = 2
) -> tuple[Run, list[Detection], int]:
    """The better of some rounds, the detections, and bytes of state at the end."""
    batches, best = cut(readings), np.inf
    for _ in range(rounds):
        operator = make_operator(plan, pull)
        found: list[Detection] = []
        began = CLOCK.steady_ns()
        for batch, watermark in batches:
            found += operator.process(batch, watermark)
        best = min(best, (CLOCK.steady_ns() - began) / 1e9)
        state = len(operator.snapshot())
        found += operator.process(readings.slice(0, 0), END_OF_TIME)
    return Run(best, len(readings), len(found)), found, state


def through_runner(pull: PullData, readings: pa.RecordBatch, plans: Sequence[Plan]) -> Run:
    """Sorted batches into a runner with all the plans; detections are counted and let go, as the
    engine does once they are appended.
    """
    runner, found = LocalRunner(plans, pull, lateness_ms=0), 0
    batches = cut(readings)
    began = CLOCK.steady_ns()
    for batch, _ in batches:
        found += len(runner.feed(batch))
    seconds, counts = (CLOCK.steady_ns() - began) / 1e9, runner.steps.values()
    steps = StepCounts(sum(one.wanted for one in counts), sum(one.computed for one in counts))
    return Run(seconds, len(readings), found, steps)
