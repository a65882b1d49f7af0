"""When a source is asked again, and what became of asking it: pure, time is an argument. [PO-2]"""

from __future__ import annotations

import msgspec

from rapport.core.errors import Problem

FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 5 * 60_000


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How fresh a table is, for people."""

    table: str
    rows: int
    lifetime_ms: int
    """0: it is read once."""
    age_ms: int
    """Since the source last gave its rows, or said that they are the same."""
    changes: int
    """How often other rows came than before."""
    failures: int
    """How often in a row it failed; 0: the rows are those of the source."""
    error: Problem | None = None
    """Why it failed last."""


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """One table that is asked again when its lifetime is over. Times are of a steady clock."""

    lifetime_ms: int
    read_ms: int
    due_ms: int
    changes: int = 0
    failures: int = 0
    error: Problem | None = None

    def succeeded(self, now_ms: int, *, changed: bool) -> Freshness:
        """The source gave its rows, or said that they are the same."""
        return Freshness(
            lifetime_ms=self.lifetime_ms,
            read_ms=now_ms,
            due_ms=now_ms + self.lifetime_ms,
            changes=self.changes + changed,
        )

    def failed(self, now_ms: int, error: Problem, *, chance: float) -> Freshness:
        """It did not; asked again after a pause that doubles, up to five minutes or the lifetime.

        `chance` in [0, 1) spreads the pause, so that nodes do not all ask at once.
        """
        longest = min(LONGEST_PAUSE_MS, max(self.lifetime_ms, FIRST_PAUSE_MS))
        pause = min(FIRST_PAUSE_MS << min(self.failures, 20), longest)
        return msgspec.structs.replace(
            self,
            failures=self.failures + 1,
            error=error,
            due_ms=now_ms + pause * 3 // 4 + int(chance * pause / 2),
        )


def fresh(lifetime_ms: int, now_ms: int) -> Freshness:
    """A table that was read just now."""
    return Freshness(lifetime_ms=lifetime_ms, read_ms=now_ms, due_ms=now_ms + lifetime_ms)
