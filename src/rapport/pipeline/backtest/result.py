"""What a back-test found, counted by columns: per day, by hour and weekday, by who, and what only
one of two versions found. Pure. [PI-9]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Detection
from rapport.core.errors import Problem
from rapport.pipeline.backtest.columns import Findings, by_identity
from rapport.pipeline.drawing.calendar import Calendar
from rapport.policy.explain.answer import Explanation, WhyNotAnswer

FoundBy = Literal["first", "second"]
Flags = npt.NDArray[np.bool_]
MOST_IDENTITIES = 10
_APART = "\x1f"


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """Who stands most often under an alias."""

    alias: str
    top: list[tuple[str, int]]
    others: int
    """How many more identities there are."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What one version found."""

    label: str
    version: str
    detections: int
    days: dict[str, int]
    """Days of the calendar with at least one."""
    hours: list[list[int]]
    """Monday to Sunday, 24 hours each."""
    who: list[Who]
    first: list[Detection]
    undecided: int = 0
    silent: list[str] = []
    """Sources whose silence left something undecided."""
    suppressed: int | None = 0
    """Left out by `at most once per`; None: not counted by this engine or in a part of history."""
    once_per_ms: int | None = None
    text: str = ""
    """Of the policy."""


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding that is shown: perhaps of one version only, perhaps explained."""

    detection: Detection
    found_by: FoundBy = "first"
    why: Explanation | None = None
    """The conditions that held, by the version that found it."""
    why_not: WhyNotAnswer | None = None
    """How the other version stood."""
    command: str = ""
    """What to type to see it explained."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two versions over the same history. Two findings are the same when they are about the same
    identities and rest on the same readings or have the same time: a longer window finds the same
    later.
    """

    by: list[str]
    """The aliases that both speak of."""
    both: int
    """How many of the first's the second found, too."""
    only_first: int
    only_second: int
    days: dict[str, tuple[int, int, int]]
    """Per day: both, only the first, only the second."""
    examples: list[Example]


class BackTest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is told of a back-test."""

    policy: str
    history: str
    engine: str
    zone: str
    events: int
    """Readings used, those around the period among them."""
    first: int | None
    last: int | None
    """The smallest and the largest of their times."""
    begin: int | None
    end: int | None
    """The period asked for; None: from the first, to the last."""
    late: int | None
    tallies: list[Tally]
    """Of the policy, then of the one it is compared with."""
    examples: list[Example]
    comparison: Comparison | None = None
    problems: list[Problem] = []
    seconds: float = 0.0

    @property
    def span(self) -> tuple[int, int] | None:
        """From when to when the calendar goes: as far as there is history in the period."""
        if self.first is None or self.last is None:
            return None
        begin = self.first if self.begin is None else max(self.begin, self.first)
        end = self.last if self.end is None else min(self.end - 1, self.last)
        return begin, max(begin, end)


def tally(
    findings: Findings,
    calendar: Calendar,
    *,
    label: str,
    version: str,
    show: int,
    suppressed: int | None = 0,
    once_per_ms: int | None = None,
    text: str = "",
) -> Tally:
    """Counts what one version found; the first `show` are kept as they are."""
    times = findings.times()
    return Tally(
        label=label,
        version=version,
        detections=len(findings),
        days=calendar.per_day(times),
        hours=calendar.by_hour(times),
        who=[_who(findings, alias) for alias in findings.aliases()],
        first=findings.first(show),
        undecided=int(findings.undecided.num_rows),
        silent=findings.silent(),
        suppressed=suppressed,
        once_per_ms=once_per_ms,
        text=text,
    )


def compare(
    first: Findings,
    second: Findings,
    only: tuple[Flags, Flags],
    by: Sequence[str],
    calendar: Calendar,
    show: int,
) -> Comparison:
    """What two versions found, parted as `only_one` says into what both did and what only one did;
    up to `show` examples of each side.
    """
    times = first.times()
    days = [
        calendar.per_day(times[~only[0]]),
        calendar.per_day(times[only[0]]),
        calendar.per_day(second.times()[only[1]]),
    ]
    every = sorted(set().union(*days))
    examples = [
        Example(detection=detection, found_by=cast(FoundBy, side))
        for side, findings, alone in (("first", first, only[0]), ("second", second, only[1]))
        for detection in findings.at(np.flatnonzero(alone)[:show].tolist())
    ]
    return Comparison(
        by=list(by),
        both=len(first) - int(only[0].sum()),
        only_first=int(only[0].sum()),
        only_second=int(only[1].sum()),
        days={
            day: (days[0].get(day, 0), days[1].get(day, 0), days[2].get(day, 0)) for day in every
        },
        examples=examples,
    )


def only_one(first: Findings, second: Findings, by: Sequence[str]) -> tuple[Flags, Flags]:
    """Of either side which rows the other does not have."""
    ours, theirs = np.ones(len(first), np.bool_), np.ones(len(second), np.bool_)
    for what in (_by_causes, _by_time):
        keys = [_keys(findings, by, what(findings)) for findings in (first, second)]
        # Numbers instead of texts: equal keys have equal numbers on both sides.
        numbers = pc.dictionary_encode(pa.concat_arrays(keys)).indices.to_numpy()
        here, there = numbers[: len(first)], numbers[len(first) :]
        ours &= ~np.isin(here, there)
        theirs &= ~np.isin(there, here)
    return ours, theirs


def _keys(findings: Findings, by: Sequence[str], about: pa.ChunkedArray) -> pa.Array:
    identities = [pc.fill_null(findings.identities(alias), "") for alias in by]
    joined = pc.binary_join_element_wise(*identities, about, _APART)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _by_causes(findings: Findings) -> pa.ChunkedArray:
    return pc.binary_join(findings.rows.column("cause_ids"), _APART)


def _by_time(findings: Findings) -> pa.ChunkedArray:
    return findings.rows.column("time").cast(pa.string())


def _who(findings: Findings, alias: str) -> Who:
    counts = pc.value_counts(findings.identities(alias).drop_null()).to_pylist()
    ranked = sorted(((one["values"], one["counts"]) for one in counts), key=by_identity)
    top = ranked[:MOST_IDENTITIES]
    return Who(alias=alias, top=top, others=len(ranked) - len(top))
