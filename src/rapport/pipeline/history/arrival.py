"""Arrival order and lateness, row group by row group. [PI-5, PO-8]

A reading is late if it is older than the largest time that its series has shown before it, minus
the lateness. The largest time before a row group follows from the footers of the row groups before
it, so row groups are judged in parallel. Footers are checked by reading: where one was wrong
(statistics of faulty rows), the run is repeated with the corrected facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, RowGroup

NEVER = -(2**62)
"""The largest time before the first reading."""

Times = npt.NDArray[np.int64]


class GroupAt(msgspec.Struct, frozen=True, array_like=True):
    """A row group of a history, its position, and the largest time before it."""

    series: int
    file: int
    group: int
    row: int
    """Rows of the file before it."""
    position: int
    """Rows of the series before it."""
    before: int
    """The largest time of the series before it."""
    facts: RowGroup

    @property
    def first(self) -> int:
        """Its smallest time; after all times if it has no usable row."""
        return 2**62 if self.facts.first is None else self.facts.first

    @property
    def last(self) -> int:
        """Its largest time."""
        return NEVER if self.facts.last is None else self.facts.last


class GroupFacts(msgspec.Struct, frozen=True, array_like=True):
    """What reading a row group, or a part of it, showed."""

    number: int
    """Of the group in the history."""
    seen: int
    """Rows read, faulty ones among them."""
    usable: int
    """Readings in the window of the history."""
    first: int | None
    last: int | None
    """The smallest and largest time of all its readings."""
    first_inside: int | None
    last_inside: int | None
    """The same of those in the window."""
    earliest: int | None
    """The smallest time of a reading that is not late."""
    late: int = 0


class Late(msgspec.Struct, frozen=True, array_like=True):
    """A late reading and its position among all arrivals."""

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
    """The largest time up to and including each row."""
    found: Times = np.maximum(np.maximum.accumulate(times), before)
    return found


def is_late(times: Times, clock: Times, lateness_ms: int) -> npt.NDArray[np.bool_]:
    return np.asarray(times < clock - lateness_ms, np.bool_)


def corrected(
    history: ReadingsFiles, groups: Sequence[GroupAt], shown: Iterable[GroupFacts]
) -> tuple[ReadingsFiles, tuple[GroupAt, ...]]:
    """The history with the facts that reading showed, and its groups with these."""
    facts: dict[tuple[int, int, int], RowGroup] = {}
    for one in shown:
        at = groups[one.number]
        facts[at.series, at.file, at.group] = RowGroup(at.facts.rows, one.first, one.last, True)

    def renewed(file: ReadingsFile, series: int, number: int) -> ReadingsFile:
        known = [facts.get((series, number, n), own) for n, own in enumerate(file.groups)]
        return msgspec.structs.replace(file, groups=tuple(known))

    series = tuple(
        msgspec.structs.replace(
            own, files=tuple(renewed(file, place, n) for n, file in enumerate(own.files))
        )
        for place, own in enumerate(history.series)
    )
    made = msgspec.structs.replace(history, series=series)
    return made, groups_of(made)


def changes_lateness(
    history: ReadingsFiles, before: Sequence[GroupAt], after: Sequence[GroupAt]
) -> bool:
    """Whether corrected facts change which readings are late."""
    return any(
        old.before != new.before and not history.series[old.series].is_judged
        for old, new in zip(before, after, strict=True)
    )
