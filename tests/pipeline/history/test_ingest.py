"""Readings are judged late by the rule of the local runner, whatever the batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from rapport.pipeline.history.ingest import Ingestion

SCHEMA = pa.schema([("time", pa.int64()), ("id", pa.string())])
EXTREMES = st.sampled_from([-(2**63), -(2**63) + 1, 2**63 - 1])
TIMES = st.lists(st.integers(-50, 50) | EXTREMES, max_size=40)


def late_by_the_rule(times: list[int], lateness_ms: int) -> list[bool]:
    """Rule 9, word for word: strictly older than the largest time seen minus the lateness."""
    verdicts, largest = [], None
    for time in times:
        verdicts.append(largest is not None and time < largest - lateness_ms)
        largest = time if largest is None else max(largest, time)
    return verdicts


@given(TIMES, st.integers(0, 60), st.integers(1, 7))
def test_late_is_judged_event_by_event(times: list[int], lateness_ms: int, batch: int) -> None:
    ingestion = Ingestion(lateness_ms)
    verdicts: list[bool] = []
    for start in range(0, len(times), batch):
        part = np.array(times[start : start + batch], np.int64)
        verdicts += ingestion.judge(part).tolist()
    assert verdicts == late_by_the_rule(times, lateness_ms)


def test_rows_are_written_with_their_arrival_and_verdict(tmp_path: Path) -> None:
    batches = [
        pa.record_batch([[10, 5], ["a", "b"]], schema=SCHEMA),
        pa.record_batch([[], []], schema=SCHEMA),
        pa.record_batch([[8, 11], ["c", "d"]], schema=SCHEMA),
    ]
    ingestion = Ingestion(2)
    assert ingestion.write(batches, tmp_path / "r.parquet") == SCHEMA
    assert pq.read_table(tmp_path / "r.parquet").to_pydict() == {
        "time": [10, 5, 8, 11],
        "id": ["a", "b", "c", "d"],
        "position": [1, 2, 3, 4],
        "late": [False, True, False, False],
    }
    assert (ingestion.events, ingestion.late) == (4, [(5, "b")])


def test_no_batch_at_all_is_no_file(tmp_path: Path) -> None:
    assert Ingestion(0).write([], tmp_path / "r.parquet") is None
    assert list(tmp_path.iterdir()) == []


def test_the_sample_of_times_stays_small_and_even(tmp_path: Path) -> None:
    batches = (
        pa.record_batch([np.arange(n, n + 999), [""] * 999], schema=SCHEMA)
        for n in range(0, 999 * 200, 999)
    )
    ingestion = Ingestion(0)
    ingestion.write(batches, tmp_path / "r.parquet")
    sample = ingestion.sampled_times()
    assert 32_768 <= len(sample) <= 65_536
    assert set(np.diff(sample)) == {4}
