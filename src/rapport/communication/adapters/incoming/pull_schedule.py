"""When a pull adapter looks: at an interval, at a deadline, on request; and later after failures.
[CO-5]

Pure: time is an argument.
"""

from __future__ import annotations

import msgspec

from rapport.core.errors import InvalidInput

FIRST_FAILURE_PAUSE_MS, LONGEST_FAILURE_PAUSE_MS = 1_000, 300_000
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
        self._paused_ms, self._pause_ms = 0, FIRST_FAILURE_PAUSE_MS
        self.found_some = False
        self.is_over = False

    def next_due_ms(self, requested_ms: int | None, now_ms: int) -> int | None:
        """When to look next, given when a request wants it; None when nothing wants a look.

        Nothing but the deadline is further away than its interval or pause: a clock that was set
        back puts no look off.
        """
        if self._next_ms is not None and self._plan.interval_ms is not None:
            self._next_ms = min(self._next_ms, now_ms + self._plan.interval_ms)
        self._not_before_ms = min(self._not_before_ms, now_ms + self._paused_ms)
        wishes = (self._next_ms, self._plan.deadline_ms, requested_ms)
        due_ms = min((moment for moment in wishes if moment is not None), default=None)
        return None if due_ms is None else max(due_ms, self._not_before_ms)

    def looked(self, began_ms: int, now_ms: int, *, found: bool) -> None:
        """A look has ended well."""
        self._pause_ms, self._paused_ms, self._not_before_ms = FIRST_FAILURE_PAUSE_MS, 0, now_ms
        self.found_some = self.found_some or found
        if self._plan.interval_ms is not None:
            self._next_ms = began_ms + self._plan.interval_ms
        is_past = self._is_past_deadline(began_ms)
        self.is_over = is_past or (found and self._plan.delete_if_successful)

    def failed(self, began_ms: int, now_ms: int, *, kept: bool) -> int:
        """A look could not be made; returns for how long there is none, ms. The last one is not
        made up for, unless something is `kept` that has to be handed in.
        """
        self._paused_ms = self._pause_ms
        self._not_before_ms = now_ms + self._paused_ms
        self._pause_ms = min(self._pause_ms * 2, LONGEST_FAILURE_PAUSE_MS)
        self.is_over = self._is_past_deadline(began_ms) and not kept
        return self._paused_ms

    def _is_past_deadline(self, began_ms: int) -> bool:
        return self._plan.deadline_ms is not None and self._plan.deadline_ms <= began_ms
