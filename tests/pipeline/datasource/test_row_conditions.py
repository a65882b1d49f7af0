from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.pipeline.datasource.offsets import PositionRange
from rapport.pipeline.datasource.rows import (
    ColumnCondition,
    column_condition,
    may_hold,
    prune_ranges,
)

OPERATIONS = ("=", ">", ">=", "<", "<=")
TEXTS = st.text(st.sampled_from("aÄb\U0001f600"), max_size=4)


@given(st.sampled_from(OPERATIONS), st.booleans(), st.integers(-5, 5), st.lists(st.integers(-5, 5)))
def test_a_column_of_numbers_is_decided_as_its_values(operation, negated, value, column) -> None:
    one = ColumnCondition("time", operation, value, negated)
    mask = one.mask(pa.array(column, pa.int64())).to_pylist()
    assert mask == [one.holds(number) for number in column]


@given(
    st.sampled_from((*OPERATIONS, "starts", "ends", "contains")),
    st.booleans(),
    TEXTS,
    st.lists(TEXTS),
)
def test_a_column_of_texts_is_decided_as_its_values(operation, negated, value, column) -> None:
    one = ColumnCondition("type", operation, value, negated)
    mask = one.mask(pa.array(column, pa.string())).to_pylist()
    assert mask == [one.holds(text) for text in column]


@pytest.mark.slow
@given(st.booleans(), st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_choices_are_decided_as_values(negated, choices, column) -> None:
    one = ColumnCondition("time", "in", tuple(choices), negated)
    mask = one.mask(pa.array(column, pa.int64())).to_pylist()
    assert mask == [(number in choices) is not negated for number in column]


@given(
    st.lists(
        st.builds(
            ColumnCondition,
            st.just("position"),
            st.sampled_from(OPERATIONS),
            st.integers(0, 30),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_nothing_that_fulfils_the_conditions_is_narrowed_away(conditions) -> None:
    pieces = prune_ranges([PositionRange("a", 0, 10), PositionRange("a", 10, 25)], conditions)
    left = {n for piece in pieces for n in range(piece.after + 1, piece.through + 1)}
    assert {n for n in range(1, 26) if all(one.holds(n) for one in conditions)} <= left
    assert all(piece.after < piece.through for piece in pieces)


def test_bounds_on_positions_and_channels_leave_pieces_out() -> None:
    pieces = [PositionRange("a", 0, 10), PositionRange("a", 10, 20), PositionRange("b", 0, 20)]
    asked = [ColumnCondition("position", ">", 12), ColumnCondition("position", "<=", 15)]
    assert prune_ranges(pieces, asked) == [PositionRange("a", 12, 15), PositionRange("b", 12, 15)]
    asked.append(ColumnCondition("channel", "in", ("b", "c")))
    assert prune_ranges(pieces, asked) == [PositionRange("b", 12, 15)]
    assert prune_ranges(pieces, [ColumnCondition("position", "in", (3, 14))]) == [
        *(PositionRange("a", 2, 10), PositionRange("a", 10, 14), PositionRange("b", 2, 14))
    ]


def test_a_time_of_arrival_rules_blocks_out() -> None:
    asked = [ColumnCondition("received", ">=", 100), ColumnCondition("time", "=", 5)]
    assert may_hold(asked, 100)
    assert not may_hold(asked, 99)


@pytest.mark.parametrize(
    ("column", "operation", "value"),
    [
        ("data", "=", b"x"),
        ("headers", "=", {}),
        ("time", "=", 1.5),
        ("time", "=", True),
        ("time", "starts", "1"),
        ("time", "=", 2**63),
        ("type", "=", 5),
        ("type", "in", "abc"),
        ("type", "in", ("a", 1)),
    ],
)
def test_what_cannot_be_decided_exactly_is_left_to_spark(column, operation, value) -> None:
    assert column_condition(column, operation, value) is None


def test_null_among_choices() -> None:
    assert column_condition("type", "in", ("a", None)) == ColumnCondition("type", "in", ("a",))
    assert column_condition("type", "in", ("a", None), negated=True) is None
