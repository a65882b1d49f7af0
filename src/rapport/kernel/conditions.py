"""Conditions that degrade a node while it works on: each with a name, a reason and its beginning.
[UX-5]

A part of the node that notices a fault begins a condition, and ends it when the fault is gone.
`/readyz`, the overview, the page and the metrics show all conditions that hold.
"""

from __future__ import annotations

import msgspec

from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class Condition(msgspec.Struct, frozen=True):
    """One fault of a node that still does its work."""

    name: str
    """Stable and unique, the kind of the fault first: `policy.late.positions`."""
    reason: str
    since: int
    """When it began, in milliseconds by the node's clock."""


class Conditions:
    """The conditions that hold now. Writes a warning when one begins and when it ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current: dict[str, Condition] = {}

    def begin(self, name: str, reason: str) -> None:
        """Begins a condition. One that holds already keeps its beginning and gets the new
        reason, without another warning.
        """
        before = self._current.get(name)
        if before is None:
            _log.warning("degraded", condition=name, reason=reason)
        since = self._clock.now_ms() if before is None else before.since
        self._current[name] = Condition(name, reason, since)

    def end(self, name: str) -> None:
        """Ends a condition; does nothing when it does not hold."""
        ended = self._current.pop(name, None)
        if ended is not None:
            lasted_ms = max(self._clock.now_ms() - ended.since, 0)
            _log.warning("no longer degraded", condition=name, lasted_ms=lasted_ms)

    def current(self) -> list[Condition]:
        """All that hold, the oldest first."""
        return sorted(self._current.values(), key=lambda one: (one.since, one.name))
