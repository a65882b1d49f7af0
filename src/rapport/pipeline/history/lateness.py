"""Which readings are late, decided row group by row group. [PI-5, PO-8]

A reading is late when it is strictly older than the largest time its series has shown before it
minus the lateness. The largest time before a row group follows from the row groups before it, so
each can be judged on its own.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.footers import RowGroup

NEVER = -(2**62)
"""The largest time before the first reading."""

Times = npt.NDArray[np.int64]


class GroupAt(msgspec.Struct, frozen=True, array_like=True):
    """A row group of a history, where it stands, and what came before it."""

    series: int
    file: int
    group: int
    row: int
    """How many rows of the file come before it."""
    position: int
    """How many rows of the series do."""
    before: int
    """The largest time of the series before it."""
    facts: RowGroup

    @property
    def first(self) -> int:
        """Its smallest time; those with no usable row lie nowhere."""
        return 2**62 if self.facts.first is None else self.facts.first

    @property
    def last(self) -> int:
        """Its largest time."""
        return NEVER if self.facts.last is None else self.facts.last


class Late(msgspec.Struct, frozen=True, array_like=True):
    """A late reading and where it stands among all arrivals."""

    clock: int
    series: int
    position: int
    time: int
    id: str


def groups_of(history: ReadingsFiles) -> tuple[GroupAt, ...]:
    """All row groups in the order of series, files and rows."""
    found: list[GroupAt] = []
    for number, series in enumerate(history.series):
        position, newest = 0, NEVER
        for place, file in enumerate(series.files):
            row = 0
            for group, facts in enumerate(file.groups):
                found.append(GroupAt(number, place, group, row, position, newest, facts))
                row += facts.rows
                position += facts.rows
                newest = newest if facts.last is None else max(newest, facts.last)
    return tuple(found)


def clocks(times: Times, before: int) -> Times:
    """The largest time shown up to and with each row."""
    found: Times = np.maximum(np.maximum.accumulate(times), before)
    return found


def is_late(times: Times, clock: Times, lateness_ms: int) -> npt.NDArray[np.bool_]:
    """Which rows are late."""
    return np.asarray(times < clock - lateness_ms, np.bool_)
