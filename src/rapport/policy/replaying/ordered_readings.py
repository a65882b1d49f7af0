"""Readings put in order of time with bounded memory: sorted runs, on disk once there are many.
[PO-7, PO-8]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from rapport.policy.runners.event_order import in_event_order

_RUN_ROWS = 100_000
"""So many readings are sorted at once; a run of them takes some 15 MB."""
_PART_ROWS = 5_000
"""So many readings of each run are in memory while runs are merged."""


class OrderedReadings:
    """Takes readings in any order, then gives them in order of time, some at a time.

    Memory holds one run while readings are added, and one part of every run afterwards. `close`
    removes what is on disk.
    """

    def __init__(self, *, run_rows: int = _RUN_ROWS, part_rows: int = _PART_ROWS) -> None:
        self._run_rows, self._part_rows = run_rows, part_rows
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._files = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._runs: list[_SortedRun] = []

    def add(self, readings: pa.RecordBatch) -> None:
        """Takes readings; not after the first `take_before`."""
        if len(readings):
            self._batches.append(readings)
            self._rows += len(readings)
        if self._rows >= self._run_rows:
            self._write_run()

    def end(self) -> None:
        """Everything was added."""
        if self._batches:
            whole = in_event_order(pa.concat_batches(self._batches))
            self._runs.append(_SortedRun(self._parts(whole)))
            self._batches = []
        self._runs += [_SortedRun(_read(self._path(number))) for number in range(self._files)]

    def take_before(self, time_ms: int) -> tuple[pa.RecordBatch, int] | None:
        """The next readings before a time, and the time up to which they are all; None when there
        are none left. They are sorted within each run only.
        """
        while True:
            self._runs = [run for run in self._runs if run.fill()]
            heads = [run.head for run in self._runs]
            ends = [run.last_ms for run in self._runs if run.goes_on]
            limit = min([time_ms, *ends])
            counts = [_count_before(head, limit) for head in heads]
            if any(counts):
                parts = [run.take(n) for run, n in zip(self._runs, counts, strict=True) if n]
                return pa.concat_batches(parts), limit
            if limit == time_ms:
                return None
            # More readings of one time than a part holds: the next part belongs to them.
            for run in self._runs:
                if run.goes_on and run.last_ms == limit:
                    run.extend()

    def close(self) -> None:
        """Forgets everything; a second call is no error."""
        self._runs, self._batches = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write_run(self) -> None:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="rapport-history-")
        whole = in_event_order(pa.concat_batches(self._batches))
        path = str(self._path(self._files))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, whole.schema) as writer:
            for part in self._parts(whole):
                writer.write_batch(part)
        self._batches, self._rows = [], 0
        self._files += 1

    def _parts(self, whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(whole), self._part_rows):
            yield whole.slice(first, self._part_rows)

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"{number}.arrow"


class _SortedRun:
    """One sorted run: the part in memory, and those to come."""

    def __init__(self, parts: Iterator[pa.RecordBatch]) -> None:
        self._parts = parts
        self._next = next(parts, None)
        self.head: pa.RecordBatch | None = None

    @property
    def goes_on(self) -> bool:
        """Whether there are parts after the one in memory."""
        return self._next is not None

    @property
    def last_ms(self) -> int:
        """The newest time of the part in memory."""
        assert self.head is not None
        return int(self.head.column("time")[len(self.head) - 1].as_py())

    def fill(self) -> bool:
        """Makes sure that there is a part in memory; False at the end of the run."""
        if self.head is None or not len(self.head):
            self.head = self._advance()
        return self.head is not None

    def extend(self) -> None:
        """Takes the next part to the one in memory."""
        part = self._advance()
        if part is not None:
            self.head = pa.concat_batches([self.head, part])

    def take(self, count: int) -> pa.RecordBatch:
        """The first readings of the part."""
        assert self.head is not None
        taken, self.head = self.head.slice(0, count), self.head.slice(count)
        return taken

    def _advance(self) -> pa.RecordBatch | None:
        part, self._next = self._next, next(self._parts, None)
        return part


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
        yield from reader


def _count_before(head: pa.RecordBatch | None, limit: int) -> int:
    assert head is not None
    return int(np.searchsorted(head.column("time").to_numpy(), limit))
