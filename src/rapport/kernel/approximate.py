"""Approximate monitoring: a value is reported only when it leaves what the last report allows.
[PO-14]

The idea of ASIA: a subscriber says how much imprecision it tolerates, and may say another at any
time. Pure: values are arguments, reports are results.
"""

from __future__ import annotations

import math

import msgspec

from rapport.core.errors import InvalidInput


class Report(msgspec.Struct, frozen=True):
    """The true value lies between `value - imprecision` and `value + imprecision`, until the next
    report.
    """

    value: float
    imprecision: float

    def allows(self, value: float) -> bool:
        """Whether the true value may be this one."""
        return abs(value - self.value) <= self.imprecision


class Approximate:
    """What one subscriber was told of one value, and what it must be told next.

    After every `offer` and `change` the last report allows the value offered last.
    """

    def __init__(self, imprecision: float) -> None:
        self._imprecision = check_imprecision(imprecision)
        self._value: float | None = None
        self._last: Report | None = None
        self.offered = self.reported = 0
        """Values seen, and reports made of them."""

    @property
    def imprecision(self) -> float:
        """What the subscriber tolerates now."""
        return self._imprecision

    @property
    def last(self) -> Report | None:
        """What the subscriber knows."""
        return self._last

    def offer(self, value: float) -> Report | None:
        """The true value of now; gives the report to send, None when the last one allows it."""
        if not math.isfinite(value):
            raise InvalidInput(f"{value} cannot be reported", code="load.no_number")
        self.offered += 1
        self._value = value
        return self._needed()

    def change(self, imprecision: float) -> Report | None:
        """From now on another imprecision; gives a report when the last one is too rough for it.

        A smaller imprecision that the last value happens to satisfy needs no report: the subscriber
        knows what it asked for, and the value is within it.
        """
        self._imprecision = check_imprecision(imprecision)
        if self._last is not None:
            self._last = Report(self._last.value, self._imprecision)
        return self._needed() if self._value is not None else None

    def _needed(self) -> Report | None:
        assert self._value is not None
        if self._last is not None and self._last.allows(self._value):
            return None
        self._last = Report(self._value, self._imprecision)
        self.reported += 1
        return self._last


def check_imprecision(imprecision: float) -> float:
    """The imprecision itself; raises InvalidInput for what is none."""
    if not (math.isfinite(imprecision) and imprecision >= 0):
        raise InvalidInput(
            f"an imprecision is a number from 0 on, not {imprecision}",
            code="load.bad_imprecision",
            hint="such as 5: a report of 50 then means between 45 and 55",
        )
    return float(imprecision)
