"""Readings on their way to Spark's workers: written once, in arrival order. [PI-5]

For recordings that only the driver can read: other formats than Parquet, or sources that need an
interpretation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from rapport.channel.export.parquet_files import export_readings
from rapport.pipeline.history.lateness import NEVER


class Ingestion:
    """Writes readings to a file and remembers how many they are and how far time went."""

    def __init__(self, lateness_ms: int) -> None:
        self.events = 0
        self._lateness_ms = lateness_ms
        self._newest = NEVER

    def write(self, readings: Iterable[pa.RecordBatch], path: Path) -> bool:
        """Writes all readings as Parquet; False when there was no batch, and so no file."""
        stream = iter(readings)
        first = next(stream, None)
        if first is None:
            return False
        export_readings(self._counted(chain([first], stream)), path, first.schema)
        return True

    def watermark(self) -> int:
        """What lies before this time is certain; nothing older will be taken any more."""
        return self._newest - self._lateness_ms

    def _counted(self, readings: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in readings:
            if len(batch):
                self._newest = max(self._newest, int(batch.column("time").to_numpy().max()))
                self.events += len(batch)
            yield batch
