"""Values put together, over time and over members, so that what is reported of the whole keeps
within one imprecision. [PO-14]
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Literal, get_args

from rapport.core.errors import UnknownName
from rapport.kernel.approximate import Report, check_imprecision

How = Literal["average", "sum", "max"]
HOWS: tuple[str, ...] = get_args(How)
_LEAST_SHARE = 0.1
"""Of an equal share; nobody gets less, so that who was quiet can be heard in time."""


class Recent:
    """The values of the last `span_ms` put together; costs O(values in the span)."""

    def __init__(self, how: How, span_ms: int) -> None:
        self._how, self._span_ms = check_how(how), span_ms
        self._values: deque[tuple[int, float]] = deque()

    def add(self, time_ms: int, value: float) -> None:
        """A value of this time; times never go back."""
        self._values.append((time_ms, value))

    def value(self, now_ms: int) -> float | None:
        """Of the values after `now_ms - span_ms`; None when there is none."""
        while self._values and self._values[0][0] <= now_ms - self._span_ms:
            self._values.popleft()
        return together(self._how, [value for _time, value in self._values])


def together(how: How, values: list[float]) -> float | None:
    """Average, sum or largest; None of nothing."""
    if not values:
        return None
    if how == "max":
        return max(values)
    total = math.fsum(values)
    return total / len(values) if how == "average" else total


class Combined:
    """A value made of those of several members (nodes, policies), each of which reports its own
    approximately.

    `shares` says which imprecision each member may have; members take it over by
    `Approximate.change`, and every report says the one in force, so `known` is right at all times
    and within the imprecision as soon as all have taken theirs over.
    """

    def __init__(self, how: How, imprecision: float) -> None:
        self._how, self._imprecision = check_how(how), check_imprecision(imprecision)
        self._reports: dict[str, Report | None] = {}
        self._changes: dict[str, float] = {}

    @property
    def imprecision(self) -> float:
        """What is tolerated of the whole."""
        return self._imprecision

    def join(self, member: str) -> dict[str, float]:
        """One more member; gives the shares of all."""
        self._reports.setdefault(member, None)
        return self.shares()

    def leave(self, member: str) -> dict[str, float]:
        """One member less; gives the shares of the others."""
        self._reports.pop(member, None)
        self._changes.pop(member, None)
        return self.shares()

    def change(self, imprecision: float) -> dict[str, float]:
        """From now on another imprecision of the whole; gives the shares of all."""
        self._imprecision = check_imprecision(imprecision)
        return self.shares()

    def take(self, member: str, report: Report) -> None:
        """What a member reported. How far it moved decides its part of the next shares."""
        before = self._reports.get(member)
        if before is not None:
            moved = abs(report.value - before.value)
            self._changes[member] = (self._changes.get(member, moved) + moved) / 2
        self._reports[member] = report

    def agreed(self, member: str, share: float) -> None:
        """A member keeps another share from now on; what it then has to report is under way."""
        report = self._reports.get(member)
        if report is not None:
            self._reports[member] = Report(report.value, share)

    def shares(self) -> dict[str, float]:
        """The imprecision of each member."""
        return split(self._imprecision, self._how, dict.fromkeys(self._reports, 1.0))

    def shares_by_need(self) -> dict[str, float]:
        """The same, with more for those that move more: then all of them report less often."""
        moved = {member: self._changes.get(member, 0.0) for member in self._reports}
        return split(self._imprecision, self._how, moved)

    def known(self) -> Report | None:
        """The whole as far as members reported; None before the first."""
        reports = [report for report in self._reports.values() if report is not None]
        value = together(self._how, [report.value for report in reports])
        if value is None:
            return None
        rough = together(self._how, [report.imprecision for report in reports])
        return Report(value, rough or 0.0)


def split(imprecision: float, how: How, moved: Mapping[str, float]) -> dict[str, float]:
    """The imprecision of each member so that the whole keeps within one.

    In a sum the parts add up, so they get shares: for values that wander, reports are fewest when
    shares go with the power 2/3 of how far each moves. An average and a largest value are never
    further off than the members are, so each gets all of it.
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


def check_how(how: str) -> How:
    """The way itself; raises UnknownName."""
    for known in get_args(How):
        if how == known:
            return known  # type: ignore[no-any-return]
    raise UnknownName("way to put values together", how, HOWS, code="load.unknown_way")
