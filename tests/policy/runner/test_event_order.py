"""Event order: by time, then id by code points, then stream and key; what is in order stays."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.runner.local import in_event_order

IDS = st.sampled_from(["e1", "e10", "e2", "E", "é", "\U0001f600", "\uffff"])
ROWS = st.tuples(st.integers(0, 60), IDS, st.sampled_from("st"), st.sampled_from("kl"))


def batch_of(rows: list[tuple[int, str, str, str]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    types = (pa.int64(), pa.string(), pa.string(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    places = pa.array(range(len(rows)), pa.int64())
    return pa.record_batch([*arrays, places], ["time", "id", "stream", "key", "place"])


@given(st.lists(ROWS, max_size=30), st.booleans())
def test_readings_come_in_event_order(rows: list[tuple[int, str, str, str]], by_time: bool) -> None:
    if by_time:
        rows = sorted(rows, key=lambda row: row[0])
    found = in_event_order(batch_of(rows))
    expected = sorted(range(len(rows)), key=lambda place: rows[place])
    assert found.column("place").to_pylist() == expected


@pytest.mark.parametrize("times", [(1, 2, 3, 4, 5, 6), (1, 2, 2, 4, 5, 6)])
def test_what_is_in_order_is_not_copied(times: tuple[int, ...]) -> None:
    batch = batch_of([(time, f"e{place}", "s", "k") for place, time in enumerate(times)])
    assert in_event_order(batch) is batch
