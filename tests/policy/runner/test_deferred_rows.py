"""Rows that wait for a question: in one piece however they came, in order, until nobody can ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.operators.deferred_terms import DeferredRows
from rapport.policy.operators.identities import StreamRows

KNOWN = 6


def rows_of(readings: list[tuple[int, int]], first: int, values: Any = None) -> StreamRows:
    """Readings (code, time); the value of each says who came when."""
    codes = np.array([code for code, _ in readings], np.int64)
    times = np.array([time for _, time in readings], np.int64)
    points = np.column_stack((codes, first + np.arange(len(codes)))).astype(float)
    ordinals = np.arange(len(codes))
    return StreamRows(codes, times, ordinals, points if values is None else values)


batches = st.lists(
    st.lists(st.tuples(st.integers(0, KNOWN - 1), st.integers(0, 3)), min_size=1, max_size=6),
    max_size=60,
)
moves = st.lists(st.integers(0, 40), max_size=60)


@given(batches, moves, st.data())
def test_rows_are_found_as_they_came_as_long_as_a_reader_may_ask(
    steps: list[list[tuple[int, int]]], floors: list[int], data: st.DataObject
) -> None:
    """Two readers, of which the second comes with the third batch."""
    kept, model, now, ordinal = DeferredRows(), [], 0, 0
    readers = [kept.readers.add()]
    for number, step in enumerate(steps):
        if number == 2:
            readers.append(kept.readers.add())
        readings = []
        for code, later in step:
            now += later
            readings.append((code, now))
        rows = rows_of(readings, ordinal)
        kept.add(rows, ordinal, number)
        kept.add(rows, ordinal, number)  # another reader brings the same batch
        model += [(*one, ordinal + place) for place, one in enumerate(readings)]
        ordinal += len(readings)
        if number < len(floors):
            reader = readers[number % len(readers)]
            kept.readers.move(reader, max(reader.before, now - floors[number]))
        # Who comes later cannot ask about what the others had done with by then.
        floor = max(min(reader.before for reader in readers), kept.floor)
        since = data.draw(st.integers(0, ordinal))
        low = data.draw(st.integers(max(floor, 0), max(floor, now) + 1))
        high = data.draw(st.integers(low, now + 2))
        codes = sorted(data.draw(st.sets(st.integers(0, KNOWN - 1))))
        expected = [one for one in model if low <= one[1] < high and one[2] >= since]
        span = kept.span(low, high, since)
        assert triples(kept, span) == expected
        places = kept.of(np.array(codes, np.int64), KNOWN, span)
        assert triples(kept, places) == [one for one in expected if one[0] in codes]
    kept.forget()
    assert len(kept) <= len(model)


def triples(kept: DeferredRows, places: Any) -> list[tuple[int, int, int]]:
    if (places.start == places.stop) if isinstance(places, slice) else not len(places):
        return []
    rows = kept.take(places)
    np.testing.assert_array_equal(rows.values, np.column_stack((rows.codes, rows.ordinals)))
    return list(zip(rows.codes.tolist(), rows.times.tolist(), rows.ordinals.tolist(), strict=True))


def test_what_every_reader_has_done_with_is_let_go_and_mostly_never_copied() -> None:
    kept = DeferredRows()
    readers = [kept.readers.add(), kept.readers.add()]
    for number in range(1_000):
        kept.add(rows_of([(0, number), (1, number)], 2 * number), 2 * number, number)
        for reader in readers:
            kept.readers.move(reader, number - 5)
    kept.forget()
    assert len(kept) == 12
    del reader, readers[1]
    kept.readers.move(readers[0], 998)
    kept.forget()
    assert len(kept) == 4
    assert triples(kept, kept.span(0, 2_000)) == [
        (0, 998, 1996), (1, 998, 1997), (0, 999, 1998), (1, 999, 1999)
    ]  # fmt: skip


def test_room_for_rows_follows_how_many_there_are_not_how_many_there_were() -> None:
    kept = DeferredRows()
    reader = kept.readers.add()
    for number in range(3_000):
        size = 5_000 if number == 10 else 10
        kept.add(rows_of([(0, number)] * size, 0), 0, number)
        kept.readers.move(reader, number - 3)
        kept.span(0, 1)
    assert len(kept.columns_at(slice(None))["end"]) < 4_096


def test_values_of_another_kind_find_room_too() -> None:
    kept = DeferredRows()
    _reader = kept.readers.add()
    numbers, texts = np.array([[1.5], [2.5]]), np.array([["a"], [None]], object)
    kept.add(rows_of([(0, 1), (1, 1)], 0, numbers), 0, 0)
    assert kept.take(kept.span(0, 9)).values.dtype == np.float64
    kept.add(rows_of([(0, 2), (1, 2)], 0, texts), 2, 1)
    assert kept.take(kept.span(0, 9)).values.tolist() == [[1.5], [2.5], ["a"], [None]]


@pytest.mark.parametrize("point", [(2.0, 2.0), (1.0, 3.0), (3.0, 1.0)])
def test_points_on_the_edge_of_a_box_lie_in_it_and_missing_ones_in_none(
    point: tuple[float, float],
) -> None:
    kept = DeferredRows()
    _reader = kept.readers.add()
    values = np.array([point, (np.nan, 2.0), (3.5, 2.0), (2.0, 0.5)])
    kept.add(rows_of([(0, 1)] * 4, 0, values), 0, 0)
    span = kept.span(0, 9)
    boxes = [(np.array([1.0, 1.0]), np.array([3.0, 3.0])), (np.array([9.0, 9.0]),) * 2]
    assert kept.in_boxes(boxes, span).tolist() == [span.start]
