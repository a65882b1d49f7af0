"""When a pull adapter looks: at an interval, at a deadline, on request; and later after failures.
[CO-5]

Pure: time is an argument.
"""

from __future__ import annotations

import msgspec

from rapport.core.errors import InvalidInput

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 300_000
"""After a failure; doubled with each one in a row."""


class PullPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the application wants."""

    interval_ms: int | None = None
    """Between the beginnings of two looks; None = only on request or at the deadline."""
    deadline_ms: int | None = None
    """Looks a last time at this moment (ms UTC), and is removed then."""
    delete_if_successful: bool = False
    """Removed after the first look that brought something."""

    def check(self) -> None:
        """Raises InvalidInput for an interval that is none."""
        if self.interval_ms is not None and self.interval_ms <= 0:
            raise InvalidInput(
                f"an interval of {self.interval_ms} ms cannot be",
                code="input.bad_interval",
                hint="it must be longer than nothing; leave it out to look on request only",
            )


class PullSchedule:
    """When the next look is due, by plan and by what the last ones brought."""

    def __init__(self, plan: PullPlan, now_ms: int) -> None:
        self._plan = plan
        self._next_ms = now_ms if plan.interval_ms is not None else None
        self._not_before_ms = now_ms
        self._pause_ms = FIRST_PAUSE_MS
        self.found_some = False
        self.is_over = False

    def next_due_ms(self, requested_ms: int | None) -> int | None:
        """When to look next, given when a request wants it; None when nothing wants a look."""
        wishes = (self._next_ms, self._plan.deadline_ms, requested_ms)
        due_ms = min((moment for moment in wishes if moment is not None), default=None)
        return None if due_ms is None else max(due_ms, self._not_before_ms)

    def looked(self, began_ms: int, now_ms: int, *, found: bool) -> None:
        """A look has ended well."""
        self._pause_ms, self._not_before_ms = FIRST_PAUSE_MS, now_ms
        self.found_some = self.found_some or found
        if self._plan.interval_ms is not None:
            self._next_ms = began_ms + self._plan.interval_ms
        deadline_ms = self._plan.deadline_ms
        is_past = deadline_ms is not None and deadline_ms <= began_ms
        self.is_over = is_past or (found and self._plan.delete_if_successful)

    def failed(self, now_ms: int) -> int:
        """A look could not be made; returns for how long there is none, ms."""
        pause_ms = self._pause_ms
        self._not_before_ms = now_ms + pause_ms
        self._pause_ms = min(pause_ms * 2, LONGEST_PAUSE_MS)
        return pause_ms
