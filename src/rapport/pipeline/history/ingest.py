"""Readings on their way into Spark: written once, in arrival order, judged late or not. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.channel.export_files import export_readings
from rapport.core.detection import Cause

POSITION, LATE = "position", "late"

_SAMPLE = 65_536
_NEVER = -(2**63)


class Ingestion:
    """Judges readings as they arrive and remembers what the job needs to know about them.

    An event is late when it is strictly older than the largest time seen before it minus the
    lateness: the same rule, event by event, as the local runner's, whatever the batches.
    """

    def __init__(self, lateness_ms: int) -> None:
        self.events = 0
        self.late: list[Cause] = []
        self.first: int | None = None
        """The smallest time of a reading that is not late."""
        self._lateness_ms = lateness_ms
        self._newest = _NEVER
        self._stride = 1
        self._sample: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def write(self, readings: Iterable[pa.RecordBatch], path: Path) -> pa.Schema | None:
        """Writes the readings as Parquet and returns their schema; None when there was no batch."""
        stream = iter(readings)
        first = next(stream, None)
        if first is None:
            return None
        schema = first.schema.append(pa.field(POSITION, pa.int64()))
        schema = schema.append(pa.field(LATE, pa.bool_()))
        export_readings(self._judged(first, stream, schema), path, schema)
        return first.schema

    def sampled_times(self) -> npt.NDArray[np.int64]:
        """Times of evenly spaced arrivals, few enough to keep: to cut history into equal parts."""
        return self._sample

    def watermark(self) -> int:
        """What lies before this time is certain; nothing older will be taken any more."""
        return max(self._newest, _NEVER + self._lateness_ms) - self._lateness_ms

    def judge(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the next arrivals are late."""
        newest = np.maximum.accumulate(np.concatenate(([self._newest], times)))
        # The watermark before each event; times near the smallest number must not wrap around.
        floor = _NEVER + self._lateness_ms
        watermark = np.maximum(newest[:-1], floor) - self._lateness_ms
        self._newest = int(newest[-1])
        return np.asarray(times < watermark, np.bool_)

    def _judged(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            times = batch.column("time").to_numpy(zero_copy_only=False)
            late = self.judge(times)
            self._remember(batch, times, late)
            positions = np.arange(self.events + 1, self.events + 1 + batch.num_rows)
            columns = [*batch.columns, pa.array(positions), pa.array(late)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            self.events += batch.num_rows
            batch = next(rest, None)

    def _remember(
        self, batch: pa.RecordBatch, times: npt.NDArray[np.int64], late: npt.NDArray[np.bool_]
    ) -> None:
        if len(times) and not late.all():
            earliest = int(times[~late].min())
            self.first = earliest if self.first is None else min(self.first, earliest)
        if late.any():
            left_out = batch.filter(pa.array(late))
            ids = left_out.column("id").to_pylist()
            self.late += zip(left_out.column("time").to_pylist(), ids, strict=True)
        self._sample = np.concatenate(
            (self._sample, times[(-self.events) % self._stride :: self._stride])
        )
        while len(self._sample) > _SAMPLE:
            self._sample = self._sample[::2]
            self._stride *= 2
