"""What the Spark benchmarks have in common: the session, wall and processor time, goals. [UX-3]

Processor time is that of this process and everything it started, Spark's Java and Python workers
among them: on a machine that others use it says more than the clock on the wall.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.policy.parts import CLOCK, say
from benchmarks.results import Result, limit, rate
from rapport.pipeline.session import SparkSettings

CORES = 2
SETTINGS = SparkSettings(master=f"local[{CORES}]", memory="2g")
_PROC = Path("/proc")
_PARENT, _FIRST_TIME, _LAST_TIME = 1, 11, 15
"""Fields of /proc/PID/stat behind the name: the parent, and times of own and ended children."""

Made = TypeVar("Made")


class Took(msgspec.Struct, frozen=True):
    """What something cost, in seconds."""

    wall: float
    cpu: float

    def text(self, events: int) -> str:
        """For people."""
        return f"{events / self.wall:,.0f} events/s, {self.wall:.1f} s, processor {self.cpu:.1f} s"


class Goals(msgspec.Struct, frozen=True):
    """The issue's numbers; a quick run is too small to be judged by them."""

    is_judged: bool

    def rate(self, metric: str, value: float, unit: str, goal: float | None = None) -> Result:
        """A figure that should be high."""
        return rate(metric, value, unit, goal if self.is_judged else None)

    def limit(self, metric: str, value: float, unit: str, goal: float | None = None) -> Result:
        """A figure that should be low."""
        return limit(metric, value, unit, goal if self.is_judged else None)


def timed(work: Callable[[], Made]) -> tuple[Made, Took]:
    """What it gives, and what it took."""
    spent, began = cpu_seconds(), CLOCK.steady_ns()
    made = work()
    wall = (CLOCK.steady_ns() - began) / 1e9
    return made, Took(wall, cpu_seconds() - spent)


def told(metric: str, took: Took, events: int, goals: Goals, goal: float | None = None) -> Result:
    """A rate, told to who waits as well."""
    say(f"{metric}: {took.text(events)}")
    named = f"{metric} ({took.wall:.1f} s, processor {took.cpu:.1f} s)"
    return goals.rate(named, events / took.wall, "events/s", goal)


def require(is_same: bool, what: str) -> None:
    """No figure of a result that is not right."""
    if not is_same:
        raise RuntimeError(f"results are not the same: {what}")


def cpu_seconds() -> float:
    """Processor time of this process and all below it so far; 0 where there is no /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    spent: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        number = int(path.parent.name)
        children[int(fields[_PARENT])].append(number)
        spent[number] = sum(int(field) for field in fields[_FIRST_TIME:_LAST_TIME])
    total, left = 0, [os.getpid()]
    while left:
        number = left.pop()
        total += spent.get(number, 0)
        left += children[number]
    return total / os.sysconf("SC_CLK_TCK")
