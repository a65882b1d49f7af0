"""What a live query finds, appended: each micro-batch into the channels, each event once.
[PI-2, PI-5]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from rapport.core.codec import decode_block
from rapport.core.detection import DETECTED, UNDECIDED
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.faults import told_briefly
from rapport.pipeline.live.decoding import DETECTIONS
from rapport.pipeline.live.working import QUARANTINE, Report
from rapport.pipeline.sources.appending import Target, in_requests
from rapport.pipeline.sources.place import Place
from rapport.pipeline.sources.writing import opened_to_write
from rapport.policy.engine.spark_policies import CHANNEL, LiveReport, report_event
from rapport.policy.engine.stream_steps import LATE_TYPE, QUARANTINED_TYPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPORT_EVERY_MS = 5_000
_log = get_logger(__name__)
Append = Callable[[str, list[Event]], None]


class LiveCounts(msgspec.Struct):
    """What a query did since it started."""

    batches: int = 0
    reached: int = 0
    """The last position of `events` that all buckets have taken."""
    watermark: int = 0
    detections: int = 0
    undecided: int = 0
    late: int = 0
    quarantined: int = 0


class Appending:
    """Takes micro-batches; called by Spark one after the other."""

    def __init__(
        self, name: str, append: Append, clock: Clock, *, query: str, policies: dict[str, str]
    ) -> None:
        """`name`: of the site. `query`, `policies`: what reports say of the query."""
        self._name, self._append, self._clock = name, append, clock
        self._query, self._policies = query, policies
        self._reported_ns: int | None = None
        self._failed: set[str] = set()
        self.counts = LiveCounts()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Appends what a micro-batch found. A batch that comes again has the same events, which
        the channels know by their ids.
        """
        with told_briefly():
            rows = frame.toArrow().to_pylist()
        reports = [
            msgspec.json.decode(row["block"], type=Report) for row in rows if not row["channel"]
        ]
        for channel in (QUARANTINE, DETECTIONS):
            blocks = [row["block"] for row in rows if row["channel"] == channel]
            events = _each_once(event for raw in blocks for event in decode_block(raw))
            if events:
                self._append(channel, events)
                self._count(events)
        if reports:
            self._note(reports)
            self._report(reports, batch)

    def _count(self, events: list[Event]) -> None:
        kinds, counts = Counter(event.type for event in events), self.counts
        counts.detections += kinds[DETECTED]
        counts.undecided += kinds[UNDECIDED]
        counts.late += kinds[LATE_TYPE]
        counts.quarantined += kinds[QUARANTINED_TYPE]

    def _note(self, reports: list[Report]) -> None:
        self.counts.batches += 1
        self.counts.reached = min(report.reached for report in reports)
        self.counts.watermark = min(report.watermark for report in reports)
        anew = sorted({name for report in reports for name in report.anew})
        if anew:
            _log.info("policies begin anew", policies=anew)

    def _report(self, reports: list[Report], batch: int) -> None:
        """Tells now and then that somebody watches; failures at once."""
        failed = {name: one for report in reports for name, one in report.failed.items()}
        for name in sorted(failed.keys() - self._failed):
            _log.error("policy set aside", policy=name, reason=failed[name].message)
        now_ns = self._clock.steady_ns()
        is_due = (
            self._reported_ns is None
            or now_ns - self._reported_ns >= REPORT_EVERY_MS * 1_000_000
            or failed.keys() != self._failed
        )
        self._failed = set(failed)
        if not is_due:
            return
        self._reported_ns = now_ns
        report = LiveReport(
            query=self._query,
            policies=self._policies,
            reached=self.counts.reached,
            watermark=self.counts.watermark,
            batch=batch,
            failed=failed,
        )
        self._append(CHANNEL, [report_event(self._name, report, self._clock.now_ms())])


def append_at(place: Place, patience_ms: int) -> Append:
    """Appends to the channels of a place, through its node when one runs."""

    def append(channel: str, events: list[Event]) -> None:
        with opened_to_write(Target(place, channel, patience_ms)) as into:
            for portion in in_requests(events):
                into(portion)

    return append


def _each_once(events: Iterable[Event]) -> list[Event]:
    """Several buckets may know of the same late reading."""
    return list({(event.source, event.id): event for event in events}.values())
