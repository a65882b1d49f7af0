"""What was found in a history: packed detections, late readings, faults. [PI-5, PO-8]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause, Detection, Undecided, detection_order, unique_undecided
from rapport.core.errors import Problem, SiteError
from rapport.pipeline.history.detection_columns import detections_from, joined
from rapport.pipeline.history.feeds import GroupFacts
from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.lateness import Late
from rapport.pipeline.history.layout import Layout
from rapport.pipeline.history.native.choose import Choice
from rapport.pipeline.history.outcome import (
    Failed,
    Faulty,
    LateCount,
    Refused,
    Suppressed,
    unpacked,
    unpacked_columns,
)
from rapport.policy.replay.replay import FaultyRows

_MOST_PROBLEMS = 1_000
_MOST_LINES = 4
_AT_ONCE = 8_192


class HistoryFound(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a history. Detections stay packed until they are asked for."""

    told: pa.Table
    layout: Layout
    events: int
    late: list[Cause]
    """As they arrived; of many perhaps the first only."""
    late_count: int
    problems: list[Problem]
    faulty: list[FaultyRows]
    failed: dict[str, Failed]
    first: int | None
    last: int | None
    """The smallest and the largest time of a reading."""
    suppressed: dict[str, int] = {}
    """What `at most once per` left out, of policies of which it left out any."""
    native: pa.Table | None = None
    """Detections that Spark made by itself, as `detection_columns.py` has them."""
    choices: list[Choice] = []
    """How each policy was run, and why."""

    def columns(self) -> pa.Table:
        """All detections as `detection_columns.SCHEMA`; in the order of the output within each
        part.
        """
        native = [] if self.native is None else [self.native]
        return joined([*native, *self._counted()])

    def detections(self) -> Iterator[Detection]:
        """All of them as structs, read part by part."""
        native = [] if self.native is None else [self.native]
        for table in chain(native, self._counted()):
            for batch in table.to_batches(max_chunksize=_AT_ONCE):
                yield from detections_from(pa.Table.from_batches([batch]))

    def _counted(self) -> Iterator[pa.Table]:
        """What tasks found, part by part, without what failed policies found after they failed."""
        for table in unpacked_columns(self.told):
            for policy, failed in self.failed.items():
                before = pc.less(table.column("time"), failed.since)
                table = table.filter(pc.or_(before, pc.not_equal(table.column("policy"), policy)))
            yield table

    def in_order(self) -> list[Detection]:
        """All of them in the order of the output."""
        return in_output_order(list(self.detections()))

    def undecided(self) -> list[Undecided]:
        """What silent sources left open, each once."""
        return unique_undecided(unpacked(self.told, Undecided))


def accepted(told: pa.Table) -> pa.Table:
    """What was told, if every task could be done; raises SiteError with the reasons otherwise."""
    reasons = {
        (one.problem.code, one.problem.message): one.problem for one in unpacked(told, Refused)
    }
    if reasons:
        raise SiteError(list(reasons.values()))
    return told


def in_output_order(found: list[Detection]) -> list[Detection]:
    """Detections as every runner gives them out; most differ in time or policy, and that is
    compared quickly.
    """
    times = np.fromiter((item.time for item in found), np.int64, len(found))
    ranks = {name: rank for rank, name in enumerate(sorted({item.policy for item in found}))}
    policies = np.fromiter((ranks[item.policy] for item in found), np.int64, len(found))
    order = np.lexsort((policies, times))
    changes = np.diff(times[order]).astype(np.bool_) | np.diff(policies[order]).astype(np.bool_)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(found)]
    ordered = [found[place] for place in order.tolist()]
    for first, end in pairwise(edges):
        if end - first > 1:
            ordered[first:end] = sorted(ordered[first:end], key=detection_order)
    return ordered


def found_of(
    told: pa.Table,
    layout: Layout,
    history: ReadingsFiles,
    shown: Sequence[GroupFacts],
) -> HistoryFound:
    """What tasks told, put together; `shown` are the facts of row groups among it."""
    late = sorted(unpacked(told, Late), key=lambda one: (one.clock, one.series, one.position))
    faulty = list(unpacked(told, Faulty))
    failed: dict[str, Failed] = {}
    for one in unpacked(told, Failed):
        known = failed.get(one.policy)
        if known is None or one.since < known.since:
            failed[one.policy] = one
    suppressed: Counter[str] = Counter()
    for left_out in unpacked(told, Suppressed):
        suppressed[left_out.policy] += left_out.count
    spans = [one.facts for one in shown if one.facts.first is not None]
    return HistoryFound(
        told=told,
        layout=layout,
        events=sum(one.usable for one in shown),
        late=[(one.time, one.id) for one in late],
        late_count=sum(one.count for one in unpacked(told, LateCount)),
        problems=_in_place(history, faulty),
        faulty=_joined(faulty),
        failed=failed,
        suppressed=dict(suppressed),
        first=min((one.first for one in spans if one.first is not None), default=None),
        last=max((one.last for one in spans if one.last is not None), default=None),
    )


def _in_place(history: ReadingsFiles, faulty: Sequence[Faulty]) -> list[Problem]:
    """The first problems in the order of files and rows."""
    files = [file.path.rpartition("/")[2] for one in history.series for file in one.files]
    places = {name: place for place, name in reversed(list(enumerate(files)))}
    problems = [problem for one in faulty for problem in one.problems]
    problems.sort(key=lambda one: (places.get(one.file, 0), one.line))
    return problems[:_MOST_PROBLEMS]


def _joined(faulty: Sequence[Faulty]) -> list[FaultyRows]:
    """Rows of one file with one reason as one."""
    found: dict[tuple[str, str], list[FaultyRows]] = {}
    for rows in (rows for one in faulty for rows in one.by_reason):
        found.setdefault((rows.first.file, rows.first.code), []).append(rows)
    return [
        FaultyRows(
            first=min(own, key=lambda rows: rows.first.line).first,
            lines=sorted(line for rows in own for line in rows.lines)[:_MOST_LINES],
            count=sum(rows.count for rows in own),
        )
        for own in found.values()
    ]
