"""Readings given to a runner a few at a time, and what it found of one policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rapport.core.detection import Detection
from rapport.policy.runner.local import LocalRunner
from support.judge.occurrences import Reading
from support.varied.worlds import readings_batch


def fed(runner: LocalRunner, readings: Sequence[Reading], size: int = 10) -> list[Detection]:
    """What the runner gives out while it is fed, so many readings at a time."""
    found: list[Detection] = []
    for first in range(0, len(readings), size):
        found += runner.feed(readings_batch(readings[first : first + size]))
    return found


def of(policy: str, found: Iterable[Detection]) -> list[Detection]:
    """What was found of one policy."""
    return [item for item in found if item.policy == policy]
