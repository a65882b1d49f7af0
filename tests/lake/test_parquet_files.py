"""Files of readings are whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.lake.parquet_files import export_readings


class Crash(Exception):
    """Stands for the end of the process at this point."""


def test_readings_in_tiny_batches_become_one_file_of_few_row_groups(tmp_path: Path) -> None:
    schema = pa.schema([("time", pa.int64()), ("id", pa.string())])
    batches = (pa.record_batch([[n], [f"e{n}"]], schema=schema) for n in range(500))
    path = tmp_path / "deep" / "readings.parquet"
    assert export_readings(batches, path, schema) == 500
    assert pq.ParquetFile(path).num_row_groups == 1
    assert pq.read_table(path)["time"].to_pylist() == list(range(500))


def test_a_failing_source_leaves_no_half_file(tmp_path: Path) -> None:
    schema = pa.schema([("time", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[1]], schema=schema)
        raise Crash

    with pytest.raises(Crash):
        export_readings(batches(), tmp_path / "readings.parquet", schema)
    assert list(tmp_path.iterdir()) == []
