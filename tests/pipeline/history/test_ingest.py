"""Readings that only the driver can read are written once, in arrival order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rapport.pipeline.history.replay import Ingestion

SCHEMA = pa.schema([("time", pa.int64()), ("id", pa.string())])


def test_rows_are_written_as_they_arrived(tmp_path: Path) -> None:
    batches = [
        pa.record_batch([[10, 5], ["a", "b"]], schema=SCHEMA),
        pa.record_batch([[], []], schema=SCHEMA),
        pa.record_batch([[8, 11], ["c", "d"]], schema=SCHEMA),
    ]
    ingestion = Ingestion(2)
    assert ingestion.write(batches, tmp_path / "r.parquet")
    written = pq.read_table(tmp_path / "r.parquet").to_pydict()
    assert written == {"time": [10, 5, 8, 11], "id": ["a", "b", "c", "d"]}
    assert (ingestion.events, ingestion.watermark()) == (4, 9)


def test_no_batch_at_all_is_no_file(tmp_path: Path) -> None:
    assert not Ingestion(0).write([], tmp_path / "r.parquet")
    assert list(tmp_path.iterdir()) == []
