"""The history of a back-test in pieces, and its reading in arrival order. [PI-9, PO-7]

Footers give the rows and times of a piece, such as a row group. Only pieces that can matter are
read; each row is judged late or not as if everything had been read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.errors import Problem
from rapport.pipeline.history.arrival import NEVER, clocks, is_late
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.recordings.files import merge_recordings
from rapport.policy.recordings.formats import Report

BEGIN_OF_TIME = -END_OF_TIME
BATCH = 65_536
"""Readings per step: enough that operators work on whole columns."""

Kind = Literal["recorded", "silver", "bronze"]
ReadPiece = Callable[[Report], Iterator[pa.RecordBatch]]


class Window(msgspec.Struct, frozen=True, order=True):
    """Times from `begin` up to before `end`."""

    begin: int
    end: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Readings that are read together, such as a row group; None: nobody knows without reading."""

    read: ReadPiece
    rows: int | None = None
    first: int | None = None
    last: int | None = None

    def may_hold(self, windows: Sequence[Window] | None) -> bool:
        """Whether some of its readings can lie in one of the windows; None is all of time."""
        if windows is None or self.first is None or self.last is None:
            return True
        return any(one.begin <= self.last and self.first < one.end for one in windows)


class HistoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file, for people."""

    path: Path
    feed: str
    bytes: int
    rows: int | None = None
    first: int | None = None
    last: int | None = None


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """One source, or the lake: pieces in arrival order."""

    name: str
    streams: frozenset[str]
    files: tuple[HistoryFile, ...]
    pieces: tuple[Piece, ...]
    is_judged: bool = False
    """True: what came late is marked there already, and nothing else is late."""
    source: PushSource | None = None
    """Where all files are Parquet of one source in root form: Spark's workers read these."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known without reading a row."""

    label: str
    """As it was given."""
    kind: Kind
    feeds: tuple[Feed, ...]
    lake: Path | None = None
    """Of silver and bronze."""

    def streams(self) -> frozenset[str]:
        """The `concept.attribute` streams it can have readings of."""
        return frozenset(stream for feed in self.feeds for stream in feed.streams)

    def files(self) -> list[HistoryFile]:
        return [file for feed in self.feeds for file in feed.files]

    def rows(self) -> int | None:
        """How many rows by the footers; None when some file has none."""
        counts = [piece.rows for feed in self.feeds for piece in feed.pieces]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def rows_in(self, windows: Sequence[Window] | None) -> int | None:
        """How many rows are read for these windows, by the footers."""
        pieces = [piece for feed in self.feeds for piece in feed.pieces if piece.may_hold(windows)]
        known = [piece.rows for piece in pieces if piece.rows is not None]
        return sum(known) if len(known) == len(pieces) else None

    def span(self) -> tuple[int, int] | None:
        """From when to when it goes, as far as footers tell."""
        pieces = [piece for feed in self.feeds for piece in feed.pieces]
        firsts = [piece.first for piece in pieces if piece.first is not None]
        lasts = [piece.last for piece in pieces if piece.last is not None]
        return (min(firsts), max(lasts)) if firsts and lasts else None


Flags = npt.NDArray[np.bool_]


class HistoryReader:
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
        self.reached: int | None = None
        """The largest time of all readings, those outside of the windows too."""

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
                self._note_reached(newest)
                continue
            for rows in piece.read(self._report):
                times = rows.column("time").to_numpy(zero_copy_only=False)
                clock = clocks(times, newest)
                newest = int(clock[-1])
                self._note_reached(newest)
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

    def _note_reached(self, newest: int) -> None:
        if newest > NEVER:
            self.reached = newest if self.reached is None else max(self.reached, newest)

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
