"""Readings come out in order of time, whatever order they went in and however little fits into
memory.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.replay.history_runner import OrderedReadings

TIMES = st.lists(st.lists(st.integers(0, 60), max_size=20), max_size=8)


def batch(times: list[int], first: int) -> pa.RecordBatch:
    count = len(times)
    return pa.RecordBatch.from_pydict(
        {
            "time": pa.array(times, pa.int64()),
            "id": pa.array([f"e{first + number}" for number in range(count)], pa.string()),
            "stream": pa.array(["s"] * count, pa.string()),
            "key": pa.array(["k"] * count, pa.string()),
        }
    )


@given(TIMES, st.lists(st.integers(0, 70), max_size=5), st.integers(1, 30), st.integers(1, 5))
def test_every_reading_comes_once_before_the_requested_time(
    batches: list[list[int]], asked: list[int], run_rows: int, part_rows: int
) -> None:
    ordered = OrderedReadings(run_rows=run_rows, part_rows=part_rows)
    first = 0
    for times in batches:
        ordered.add(batch(times, first))
        first += len(times)
    ordered.end()
    reached, found = -1, list[str]()
    for limit in [*sorted(asked), 1_000]:
        while (taken := ordered.take_before(limit)) is not None:
            readings, until = taken
            times = readings.column("time").to_pylist()
            assert times
            assert all(reached <= time < until <= limit for time in times)
            reached = until
            found += readings.column("id").to_pylist()
    ordered.close()
    assert sorted(found) == sorted(f"e{number}" for number in range(first))


def test_what_was_on_disk_is_gone_after_closing() -> None:
    before = set(Path(gettempdir()).glob("rapport-history-*"))
    ordered = OrderedReadings(run_rows=2, part_rows=1)
    ordered.add(batch([3, 1, 2], 0))
    ordered.end()
    assert set(Path(gettempdir()).glob("rapport-history-*")) > before
    assert ordered.take_before(2) is not None
    ordered.close()
    ordered.close()
    assert set(Path(gettempdir()).glob("rapport-history-*")) <= before
