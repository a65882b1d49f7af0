"""Reading history in arrival order: only the pieces that can matter, each row judged late or not as
if everything had been read. [PI-9, PO-7]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.errors import Problem
from rapport.pipeline.backtest.history import BATCH, Feed, History, Window
from rapport.pipeline.history.arrival import NEVER, clocks, is_late
from rapport.policy.recordings.files import merge_recordings

Flags = npt.NDArray[np.bool_]


class Reader:
    """One pass over a history; afterwards it says what there was."""

    def __init__(
        self,
        history: History,
        *,
        lateness_ms: int,
        windows: Sequence[Window] | None = None,
        report: Callable[[Problem], None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`windows`: only readings in these times are given and counted; None: all."""
        self._history, self._lateness_ms, self._windows = history, lateness_ms, windows
        self._report, self._progress = report, progress
        self.done = 0
        """Rows read so far."""
        self.events = 0
        self.late = 0
        self.first: int | None = None
        self.last: int | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Readings that are not late, in arrival order, several feeds as one."""
        feeds = [self._feed(feed) for feed in self._history.feeds]
        return merge_recordings(feeds, batch=BATCH) if feeds else iter(())

    def _feed(self, feed: Feed) -> Iterator[pa.RecordBatch]:
        newest = NEVER
        for piece in feed.pieces:
            if not piece.may_hold(self._windows):
                # What it says of the readings after it.
                newest = newest if piece.last is None else max(newest, piece.last)
                continue
            for rows in piece.read(self._report):
                times = rows.column("time").to_numpy(zero_copy_only=False)
                clock = clocks(times, newest)
                newest = int(clock[-1])
                late = is_late(times, clock, self._lateness_ms) & (not feed.is_judged)
                self.done += len(rows)
                if self._progress is not None:
                    self._progress(self.done)
                inside = self._within(times)
                self._count(times[inside], late[inside])
                chosen = inside & ~late
                if chosen.all():
                    yield rows
                elif chosen.any():
                    yield rows.filter(pa.array(chosen))

    def _within(self, times: npt.NDArray[np.int64]) -> Flags:
        if self._windows is None:
            return np.ones(len(times), np.bool_)
        inside = np.zeros(len(times), np.bool_)
        for window in self._windows:
            inside |= (times >= window.begin) & (times < window.end)
        return inside

    def _count(self, times: npt.NDArray[np.int64], late: Flags) -> None:
        if not len(times):
            return
        self.events += len(times)
        self.late += int(late.sum())
        first, last = int(times.min()), int(times.max())
        self.first = first if self.first is None else min(first, self.first)
        self.last = last if self.last is None else max(last, self.last)
