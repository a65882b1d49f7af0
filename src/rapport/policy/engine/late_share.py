"""How many of each source's readings came late in the last minutes. Pure: the steady clock's
nanoseconds are arguments. [PO-7, UX-5]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.times import rough_duration
from rapport.policy.runner.local import LateCount

WINDOW_MINUTES = 10
MOST_LATE = 0.01
"""A larger share than this is a fault of the source or of the way to the node."""
UNDECLARED = "(sources without a declaration)"
_MINUTE_NS = 60_000_000_000


class LateShare(msgspec.Struct, frozen=True):
    """What a source sent in the window; `behind_ms`: how far the worst of the late readings was
    behind the time that had been reached.
    """

    read: int
    late: int
    behind_ms: int

    @property
    def share(self) -> float:
        """Of late readings among all."""
        return self.late / self.read if self.read else 0.0

    def reason(self, source: str) -> str:
        """For people."""
        percent = f"{100 * self.share:.2g} %" if self.late < self.read else "all"
        return (
            f"{self.late:,} of {self.read:,} readings of {source} in the last {WINDOW_MINUTES} min "
            f"came late ({percent}), up to {rough_duration(self.behind_ms)} behind: policies do "
            "not use them"
        )


class LateShares:
    """Counts of the last minutes by source. Sources that the site does not declare count together,
    so that nobody can fill the memory with names.
    """

    def __init__(self) -> None:
        self._minutes: dict[str, deque[tuple[int, list[int]]]] = {}
        self.late: dict[str, int] = {}
        """Late readings by source since the start."""

    def add(
        self,
        readings: pa.RecordBatch,
        late: dict[str, LateCount],
        declared: Collection[str],
        now_ns: int,
    ) -> None:
        """Takes a batch with those of its readings that were late. One pass over the batch."""
        if not len(readings):
            return
        for row in pc.value_counts(readings.column("source")).to_pylist():
            source = row["values"]
            counted = late.get(source, LateCount())
            name = source if source in declared else UNDECLARED
            minute = self._minute(name, now_ns // _MINUTE_NS)
            minute[0] += row["counts"]
            minute[1] += counted.readings
            minute[2] = max(minute[2], counted.behind_ms)
            if counted.readings:
                self.late[name] = self.late.get(name, 0) + counted.readings

    def recent(self, now_ns: int) -> dict[str, LateShare]:
        """By source that sent something in the window."""
        oldest = now_ns // _MINUTE_NS - WINDOW_MINUTES
        found: dict[str, LateShare] = {}
        for source, minutes in list(self._minutes.items()):
            while minutes and minutes[0][0] <= oldest:
                minutes.popleft()
            if not minutes:
                del self._minutes[source]
                continue
            counts = [count for _number, count in minutes]
            found[source] = LateShare(
                read=sum(count[0] for count in counts),
                late=sum(count[1] for count in counts),
                behind_ms=max(count[2] for count in counts),
            )
        return found

    def _minute(self, source: str, number: int) -> list[int]:
        minutes = self._minutes.setdefault(source, deque(maxlen=WINDOW_MINUTES + 1))
        if not minutes or minutes[-1][0] != number:
            minutes.append((number, [0, 0, 0]))
        return minutes[-1][1]
