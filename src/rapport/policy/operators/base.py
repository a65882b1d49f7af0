"""What executes plans: the operator and the runner. Both are pure: events and time are arguments.
[PO-7, PO-8]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.policy.plan import Plan
from rapport.tables.instances import Instances

END_OF_TIME = 2**62
"""A watermark past every event: everything pending is decided."""


class PullData(Protocol):
    """Where operators look instances up; wiring hands in the tables."""

    def instances(self, concept: str) -> Instances:
        """The instances of a concept, empty when no table gives any."""

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """What a looked-up function of the site gives, by one or two texts; raises UnknownName.

        A symmetric table is given in both orders.
        """


class Operator(Protocol):
    """One plan, executing. Deterministic: the same readings give the same detections however they
    are cut.
    """

    plan: Plan

    def process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        """Takes readings sorted by (time, id), none before the previous watermark and all before
        this one, and
        returns what became certain: every detection with a time below `watermark`."""

    def take_undecided(self) -> list[Undecided]:
        """What would have been detected since the last call, had a source not been silent."""

    def suppressed(self) -> int:
        """Detections left out so far because of `at most once per`."""

    def pending_until(self) -> int | None:
        """The time at which something pending will be decided even if no event comes; None when
        nothing is.
        """

    def snapshot(self) -> bytes:
        """All state, so that `restore` in another process goes on as if nothing had happened."""

    def restore(self, snapshot: bytes) -> None:
        """Takes over the state; raises Corrupt when it is not one of this plan's."""


class Runner(Protocol):
    """Plans fed with readings as they arrive; puts them in time order within the lateness."""

    late: int
    """Readings that came too late and were left out."""

    def feed(self, readings: pa.RecordBatch) -> list[Detection]:
        """Takes readings as they arrived; returns what became certain."""

    def advance(self, time_ms: int) -> list[Detection]:
        """Moves time on without an event: nothing before `time_ms - lateness` will come."""

    def finish(self) -> list[Detection]:
        """Lets time run on until everything pending is decided (the end of a recorded stream)."""

    def take_undecided(self) -> list[Undecided]:
        """What would have been detected since the last call, had a source not been silent."""

    def snapshot(self) -> bytes:
        """All state: reorder buffer, watermark, operators."""

    def restore(self, snapshot: bytes) -> None:
        """Takes over a snapshot made with the same plans; raises Corrupt otherwise."""
