"""What a run over history on Spark gives. [PI-5, PO-8]"""

from __future__ import annotations

import msgspec

from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import Problem
from rapport.pipeline.history.found import HistoryFound
from rapport.pipeline.history.layout import Layout
from rapport.pipeline.history.native.choose import Choice
from rapport.policy.replay.replay import FaultyRows


class SparkReplay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay on Spark found; `detections` in the order of the fixed output."""

    detections: list[Detection]
    late: list[Cause]
    """In the order of arrival."""
    events: int
    layout: Layout
    undecided: list[Undecided] = []
    late_count: int = 0
    problems: list[Problem] = []
    """Rows that could not be used, the first thousand of them, and policies that failed."""
    faulty: list[FaultyRows] = []
    """All rows that could not be used, by file and reason."""
    first: int | None = None
    last: int | None = None
    """The smallest and the largest time of a reading."""
    suppressed: dict[str, int] = {}
    """Of each policy what `at most once per` left out."""
    choices: list[Choice] = []
    """How each policy was run, and why."""

    @staticmethod
    def of(found: HistoryFound) -> SparkReplay:
        """All that was found, unpacked."""
        return SparkReplay(
            detections=found.in_order(),
            undecided=found.undecided(),
            late=found.late,
            late_count=found.late_count,
            events=found.events,
            layout=found.layout,
            problems=[*found.problems, *(one.problem for one in found.failed.values())],
            faulty=found.faulty,
            first=found.first,
            last=found.last,
            suppressed=found.suppressed,
            choices=found.choices,
        )
