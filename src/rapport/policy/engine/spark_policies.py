"""Policies that run on Spark instead of the node, and whether a Spark query reports them. [PO-8,
PI-5]

Pure: reports and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.errors import Problem
from rapport.core.event import Event, content_id, make_event

CHANNEL = "pipeline"
"""Channel of the pipeline's reports."""
REPORT_TYPE = "rapport.pipeline.live"
ALL = "*"
SILENT_MS = 30_000
"""A policy without a report for this long is not running."""


class LiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """Periodic report of a live query: the versions it runs and its progress."""

    query: str
    policies: dict[str, str]
    reached: int
    """The last processed position of `events`."""
    watermark: int
    batch: int = 0
    failed: dict[str, Problem] = {}
    """Policies that were stopped because a function or table they use raised."""


def report_event(source: str, report: LiveReport, now_ms: int) -> Event:
    return make_event(
        source=source,
        id=content_id("live", report.query, str(report.batch), str(now_ms)),
        type=REPORT_TYPE,
        time=now_ms,
        data=report,
    )


class SparkPolicies:
    """The policies that a site runs on Spark, and the last report about each."""

    def __init__(self, names: Iterable[str] = (), *, since_ms: int = 0) -> None:
        """`since_ms`: time from which a report is expected."""
        self.names = frozenset(names)
        self._since_ms = since_ms
        self._reports: dict[str, tuple[int, str]] = {}
        self._failed: dict[str, Problem] = {}

    def __bool__(self) -> bool:
        return bool(self.names)

    def __contains__(self, policy: object) -> bool:
        return policy in self.names or ALL in self.names

    def begin(self, now_ms: int) -> None:
        """Expects reports from now on."""
        self._since_ms = now_ms

    def note_report(self, report: LiveReport, at_ms: int) -> None:
        """Records a report."""
        for policy, version in report.policies.items():
            self._reports[policy] = (at_ms, version)
            self._failed.pop(policy, None)
        self._failed |= report.failed

    def problem(self, policy: str, version: str, now_ms: int) -> Problem | None:
        """Why this version of a policy is not running; None when it is, or when a report may still
        come.
        """
        if policy in self._failed:
            return self._failed[policy]
        at_ms, reported = self._reports.get(policy, (self._since_ms, ""))
        silent_ms = now_ms - at_ms
        if silent_ms < SILENT_MS:
            return None
        other = f" of version {reported}" if reported and reported != version else ""
        # Without a start no time has passed that could be counted.
        silent = f"has reported for {silent_ms // 1_000} s" if at_ms else "has reported yet"
        return Problem(
            code="policy.nobody_watches",
            message=f"no Spark query{other} {silent}: the policy is not running",
            hint="start one with: rapport pipeline run",
            severity="warning",
        )

    def problems(self, policies: Mapping[str, str], now_ms: int) -> dict[str, Problem]:
        """The problems of those given policies (with their versions) that are not running."""
        found = {
            name: self.problem(name, version, now_ms)
            for name, version in policies.items()
            if name in self
        }
        return {name: problem for name, problem in found.items() if problem is not None}
