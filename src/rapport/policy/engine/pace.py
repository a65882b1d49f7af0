"""When the engine commits, and when the clock may move time on. Pure: the clock's nanoseconds are
arguments. [PO-7, PO-8]
"""

from __future__ import annotations

_LONGEST_WAIT_MS = 1_000
_GATHER_MS = 2_000
"""Readings of history that come within so long of each other are evaluated together."""
_BELIEVED_AFTER_MS = 600_000
"""A clock that stands so long behind the time that was reached is believed without a reading, as
`kernel/believed_time.py` does: one that is set right after a start costs no policy what it knows.
"""


class EngineSchedule:
    """How long ago events came and what was taken was committed."""

    def __init__(
        self, now_ns: int, *, quiet_ms: int, commit_every_ms: int, commit_every_events: int
    ) -> None:
        self._quiet_ms = quiet_ms
        self._commit_every_ms, self._commit_every_events = commit_every_ms, commit_every_events
        self._committed_ns = now_ns
        self._quiet_since_ns = now_ns - quiet_ms * 1_000_000
        self._uncommitted = 0
        self._history_ns = now_ns
        self.is_dirty = False
        """Whether there is something to commit."""
        self._behind_since_ns: int | None = None

    def took(self, events: int) -> None:
        """Events were taken."""
        self._uncommitted += events
        self.is_dirty = True

    def heard(self, now_ns: int) -> None:
        """Events came just now."""
        self._quiet_since_ns = now_ns

    def took_history(self, now_ns: int) -> None:
        """Readings of history came just now."""
        self._history_ns = now_ns

    def history_is_gathered(self, now_ns: int) -> bool:
        """Whether no reading of history came for so long that the import has paused or ended."""
        return now_ns - self._history_ns >= _GATHER_MS * 1_000_000

    def committed(self, now_ns: int) -> None:
        """Everything is committed."""
        self._uncommitted, self.is_dirty = 0, False
        self._committed_ns = now_ns

    def commit_is_due(self, now_ns: int) -> bool:
        """Whether it is time to commit."""
        if not self.is_dirty:
            return False
        many = self._uncommitted >= self._commit_every_events
        return many or self._since_commit_ms(now_ns) >= self._commit_every_ms

    def quiet_left_ms(self, now_ns: int) -> int:
        """How much longer no event must come before the clock may move time on."""
        return self._quiet_ms - (now_ns - self._quiet_since_ns) // 1_000_000

    def wait_ms(self, now_ns: int, due_in_ms: int | None) -> int:
        """Until something is due by the clock, or a commit is; a second at most."""
        wait = _LONGEST_WAIT_MS
        if due_in_ms is not None:
            wait = min(wait, max(due_in_ms, self.quiet_left_ms(now_ns)))
        if self.is_dirty:
            wait = min(wait, self._commit_every_ms - self._since_commit_ms(now_ns))
        return max(wait, 0)

    def clock_is_believed(self, now_ns: int, *, is_behind: bool) -> bool:
        """Whether the clock has stood behind the time that was reached for long enough; to be told
        at each look whether it does.
        """
        if not is_behind:
            self._behind_since_ns = None
        elif self._behind_since_ns is None:
            self._behind_since_ns = now_ns
        since_ns = self._behind_since_ns
        return since_ns is not None and now_ns - since_ns >= _BELIEVED_AFTER_MS * 1_000_000

    def _since_commit_ms(self, now_ns: int) -> int:
        return (now_ns - self._committed_ns) // 1_000_000
