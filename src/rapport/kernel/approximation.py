"""Approximate monitoring: a value is reported only when it leaves the interval of the last report.
[PO-14]

The idea of ASIA: a subscriber states how much imprecision it tolerates, and may change it at any
time. Values can be aggregated over time and over members so that the report of the whole stays
within one imprecision. Pure: values are arguments, reports are results.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from rapport.core.errors import InvalidInput, UnknownName


class ApproximateReport(msgspec.Struct, frozen=True):
    """Until the next report the value differs by `imprecision` at most."""

    value: float
    imprecision: float

    def allows(self, value: float) -> bool:
        return abs(value - self.value) <= self.imprecision


class ApproximateReporter:
    """Decides which values of one source to report to one subscriber.

    After every `offer` and `change` the last report allows the last value.
    """

    def __init__(self, imprecision: float) -> None:
        self._imprecision = check_imprecision(imprecision)
        self._value: float | None = None
        self._last: ApproximateReport | None = None
        self.offered = self.reported = 0
        """Numbers of values and of reports."""

    @property
    def imprecision(self) -> float:
        return self._imprecision

    @property
    def last(self) -> ApproximateReport | None:
        return self._last

    def offer(self, value: float) -> ApproximateReport | None:
        """Takes the current value; returns the report to send, None if the last one allows it."""
        if not math.isfinite(value):
            raise InvalidInput(f"{value} cannot be reported", code="load.no_number")
        self.offered += 1
        self._value = value
        return self._needed()

    def change(self, imprecision: float) -> ApproximateReport | None:
        """Changes the imprecision; returns a report if the last one is too rough for it.

        A smaller imprecision that the last value satisfies needs no report, because the subscriber
        knows the imprecision it requested.
        """
        self._imprecision = check_imprecision(imprecision)
        if self._last is not None:
            self._last = ApproximateReport(self._last.value, self._imprecision)
        return self._needed() if self._value is not None else None

    def _needed(self) -> ApproximateReport | None:
        assert self._value is not None
        if self._last is not None and self._last.allows(self._value):
            return None
        self._last = ApproximateReport(self._value, self._imprecision)
        self.reported += 1
        return self._last


def check_imprecision(imprecision: float) -> float:
    """Returns a valid imprecision; raises InvalidInput."""
    if not (math.isfinite(imprecision) and imprecision >= 0):
        raise InvalidInput(
            f"an imprecision is a number from 0 on, not {imprecision}",
            code="load.bad_imprecision",
            hint="such as 5: a report of 50 then means between 45 and 55",
        )
    return float(imprecision)


Aggregate = Literal["average", "sum", "max"]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)
_LEAST_SHARE = 0.1
"""Minimum part of an equal share, so that changes of a quiet member are noticed in time."""


class SlidingAggregate:
    """Aggregates the values of the last `span_ms`; costs O(values in the span)."""

    def __init__(self, how: Aggregate, span_ms: int) -> None:
        self._how, self._span_ms = check_aggregate(how), span_ms
        self._values: deque[tuple[int, float]] = deque()

    def add(self, time_ms: int, value: float) -> None:
        """Adds a value; times never decrease."""
        self._values.append((time_ms, value))

    def value(self, now_ms: int) -> float | None:
        """The aggregate of the values after `now_ms - span_ms`; None without values."""
        while self._values and self._values[0][0] <= now_ms - self._span_ms:
            self._values.popleft()
        return aggregate_values(self._how, [value for _time, value in self._values])


def aggregate_values(how: Aggregate, values: list[float]) -> float | None:
    """Average, sum or maximum; None without values."""
    if not values:
        return None
    if how == "max":
        return max(values)
    total = math.fsum(values)
    return total / len(values) if how == "average" else total


class ApproximateAggregate:
    """An aggregate over the approximate reports of several members (nodes, policies).

    `shares` returns the imprecision of each member, which applies it by
    `ApproximateReporter.change`. Every report states the imprecision in force, so `known` is always
    correct, and it is within the imprecision as soon as all members have applied theirs.
    """

    def __init__(self, how: Aggregate, imprecision: float) -> None:
        self._how, self._imprecision = check_aggregate(how), check_imprecision(imprecision)
        self._reports: dict[str, ApproximateReport | None] = {}
        self._changes: dict[str, float] = {}

    @property
    def imprecision(self) -> float:
        return self._imprecision

    def join(self, member: str) -> dict[str, float]:
        """Adds a member; returns the shares of all."""
        self._reports.setdefault(member, None)
        return self.shares()

    def leave(self, member: str) -> dict[str, float]:
        """Removes a member; returns the shares of the others."""
        self._reports.pop(member, None)
        self._changes.pop(member, None)
        return self.shares()

    def change(self, imprecision: float) -> dict[str, float]:
        """Changes the imprecision of the whole; returns the shares of all."""
        self._imprecision = check_imprecision(imprecision)
        return self.shares()

    def take(self, member: str, report: ApproximateReport) -> None:
        """Applies a member's report. The change of its value affects the next shares."""
        before = self._reports.get(member)
        if before is not None:
            moved = abs(report.value - before.value)
            self._changes[member] = (self._changes.get(member, moved) + moved) / 2
        self._reports[member] = report

    def agreed(self, member: str, share: float) -> None:
        """Notes that a member applied another share; its next report may be pending."""
        report = self._reports.get(member)
        if report is not None:
            self._reports[member] = ApproximateReport(report.value, share)

    def shares(self) -> dict[str, float]:
        return split_imprecision(self._imprecision, self._how, dict.fromkeys(self._reports, 1.0))

    def shares_by_need(self) -> dict[str, float]:
        """As `shares`, with larger shares for members that change more, which minimizes reports."""
        moved = {member: self._changes.get(member, 0.0) for member in self._reports}
        return split_imprecision(self._imprecision, self._how, moved)

    def known(self) -> ApproximateReport | None:
        """The aggregate of the reports so far; None before the first."""
        reports = [report for report in self._reports.values() if report is not None]
        value = aggregate_values(self._how, [report.value for report in reports])
        if value is None:
            return None
        rough = aggregate_values(self._how, [report.imprecision for report in reports])
        return ApproximateReport(value, rough or 0.0)


def split_imprecision(
    imprecision: float, how: Aggregate, moved: Mapping[str, float]
) -> dict[str, float]:
    """Divides the imprecision of the whole among the members.

    In a sum the imprecisions add up. For random walks the reports are fewest if shares are
    proportional to the power 2/3 of each member's changes. An average or maximum is never less
    precise than its members, so each member gets the whole imprecision.
    """
    if how != "sum":
        return dict.fromkeys(moved, imprecision)
    needs = {member: max(far, 0.0) ** (2 / 3) for member, far in moved.items()}
    total = math.fsum(needs.values())
    if not needs or total <= 0:
        return {member: imprecision / len(moved) for member in moved}
    floor = _LEAST_SHARE / len(needs)
    return {
        member: imprecision * (floor + (1 - _LEAST_SHARE) * need / total)
        for member, need in needs.items()
    }


def check_aggregate(how: str) -> Aggregate:
    """Returns a known aggregate; raises UnknownName."""
    for known in get_args(Aggregate):
        if how == known:
            return known  # type: ignore[no-any-return]
    raise UnknownName("way to put values together", how, AGGREGATES, code="load.unknown_way")
