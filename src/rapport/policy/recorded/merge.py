"""Several recorded files as one stream in arrival order. [PO-7]

Files know the order of their own rows only. Between files a reading comes when its file's clock,
the largest time the file has shown so far, is the smallest; equal clocks go in the order the files
were given. So files of the same day interleave, and a reading is late exactly when its own file
says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.policy.recorded.files import in_batches

Clocks = npt.NDArray[np.int64]


class _OpenRecording:
    """Rows read ahead from one file, with the file's clock at each."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows: pa.RecordBatch | None = None
        self.clocks: Clocks = np.zeros(0, np.int64)
        self._latest = -(2**62)
        self.refill()

    def refill(self) -> None:
        """Reads on when nothing is left; `rows` is None at the end."""
        if self.rows is None or not len(self.rows):
            self.rows = next(self._batches, None)
            if self.rows is not None:
                times = self.rows.column("time").to_numpy()
                self.clocks = np.maximum(np.maximum.accumulate(times), self._latest)
                self._latest = int(self.clocks[-1])

    def take(self, count: int) -> tuple[pa.RecordBatch, Clocks]:
        """The next rows."""
        assert self.rows is not None
        taken = self.rows.slice(0, count), self.clocks[:count]
        self.rows, self.clocks = self.rows.slice(count), self.clocks[count:]
        self.refill()
        return taken


def merge_recordings(
    files: Sequence[Iterator[pa.RecordBatch]], *, batch: int
) -> Iterator[pa.RecordBatch]:
    """The rows of all files, `batch` at a time; one file passes through as it is."""
    if len(files) == 1:
        yield from files[0]
        return
    yield from in_batches(_merged([_OpenRecording(file) for file in files]), batch)


def _merged(files: list[_OpenRecording]) -> Iterator[pa.RecordBatch]:
    while files := [file for file in files if file.rows is not None]:
        # Beyond the earliest end of what was read ahead, another file might still have something.
        safe = min(int(file.clocks[-1]) for file in files)
        ending = next(place for place, file in enumerate(files) if file.clocks[-1] == safe)
        parts, clocks = [], []
        for place, file in enumerate(list(files)):
            side = "right" if place <= ending else "left"
            count = int(np.searchsorted(file.clocks, safe, side=side))  # type: ignore[call-overload]
            if count:
                rows, times = file.take(count)
                parts.append(rows)
                clocks.append(times)
        order = np.argsort(np.concatenate(clocks), kind="stable")
        yield pa.concat_batches(parts).take(pa.array(order))
