"""The interfaces of operators and their tables. Operators are pure: events and time are arguments.
[PO-7, PO-8]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.policy.plan import Plan
from rapport.tables.instances import Instances

END_OF_TIME = 2**62
"""A watermark after every event: everything pending is decided."""
BEGIN_OF_TIME = -END_OF_TIME


class PullData(Protocol):
    """The tables in which operators look up instances."""

    def instances(self, concept: str) -> Instances:
        """The instances of a concept, empty if no table has any."""

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """The values of a looked-up site function by one or two texts; raises UnknownName.

        A symmetric table contains both orders.
        """


class Operator(Protocol):
    """Executes one plan. Deterministic: batch boundaries do not affect the detections."""

    plan: Plan

    def process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        """Takes readings sorted by (time, id), none before the previous watermark and all before
        this one; returns every detection with a time below `watermark`."""

    def take_undecided(self) -> list[Undecided]:
        """Detections since the last call that a silent source id_filters uncertain."""

    def suppressed(self) -> int:
        """Detections dropped so far because of `at most once per`."""

    def pending_until(self) -> int | None:
        """The time at which something pending is decided without an event; None if nothing is."""

    def snapshot(self) -> bytes:
        """All state; `restore` in another process continues from it."""

    def restore(self, snapshot: bytes) -> None:
        """Restores a snapshot; raises Corrupt if it is of another plan."""
