"""Reading a part of history judges lateness as reading all of it. [PI-9, PO-7]"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Problem
from rapport.pipeline.backtest.pieces import Feed, History, HistoryReader, Piece, Window
from rapport.policy.recordings.formats import Report

LATENESS = 3


def no_problem(problem: Problem) -> None:
    raise AssertionError(problem)


def piece(times: list[int], start: int, *, known: bool) -> Piece:
    def read(_report: Report) -> Iterator[pa.RecordBatch]:
        if times:
            ids = [f"{start + place}" for place in range(len(times))]
            yield pa.record_batch({"time": pa.array(times, pa.int64()), "id": ids})

    if not known or not times:
        return Piece(read=read)
    return Piece(read=read, rows=len(times), first=min(times), last=max(times))


def history(pieces: list[list[int]], *, known: bool) -> History:
    made, start = [], 0
    for times in pieces:
        made.append(piece(times, start, known=known))
        start += len(times)
    feed = Feed(name="s", streams=frozenset({"a.b"}), files=(), pieces=tuple(made))
    return History(label="h", kind="recorded", feeds=(feed,))


def standing(times: list[int]) -> list[tuple[int, str]]:
    """The rule, row by row."""
    newest, kept = -(10**9), []
    for place, time in enumerate(times):
        if time >= newest - LATENESS:
            kept.append((time, str(place)))
        newest = max(newest, time)
    return kept


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=8),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=2),
    st.booleans(),
)
def test_rows_of_a_window_are_those_that_would_stand_in_the_whole(
    pieces: list[list[int]], ends: list[tuple[int, int]], known: bool
) -> None:
    windows = [Window(min(pair), max(pair)) for pair in ends]
    reader = HistoryReader(
        history(pieces, known=known),
        lateness_ms=LATENESS,
        windows=windows,
        report=no_problem,
    )
    found = [
        row
        for batch in reader.batches()
        for row in zip(
            batch.column("time").to_pylist(), batch.column("id").to_pylist(), strict=True
        )
    ]
    every = standing([time for times in pieces for time in times])
    assert found == [row for row in every if any(w.begin <= row[0] < w.end for w in windows)]


def test_only_what_lies_in_the_windows_is_counted() -> None:
    reader = HistoryReader(
        history([[1, 2], [9, 3, 10], [30]], known=True),
        lateness_ms=LATENESS,
        windows=[Window(2, 20)],
        report=no_problem,
    )
    rows = sum(len(batch) for batch in reader.batches())
    assert rows == 3
    assert (reader.done, reader.events, reader.late) == (5, 4, 1)
    assert (reader.first, reader.last) == (2, 10)
