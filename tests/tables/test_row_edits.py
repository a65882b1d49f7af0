"""What changed between two lists of rows gives the second of the first. [PO-2]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Corrupt
from rapport.tables.row_history import (
    Edit,
    apply_edits,
    counts_between,
    edits_between,
    in_pieces,
    whole_edits,
)

FIELD = st.sampled_from(["", "a", "b", "ü", "\n"])
ROWS = st.lists(st.tuples(FIELD, FIELD), max_size=12)
MOST = 1_000


@given(ROWS, ROWS)
def test_the_first_rows_and_the_edits_give_the_second(before: list, after: list) -> None:
    assert apply_edits(before, edits_between(before, after), MOST) == after


@given(ROWS, ROWS, st.integers(min_value=1, max_value=200))
def test_pieces_of_any_size_say_the_same(before: list, after: list, most: int) -> None:
    pieces = list(in_pieces(edits_between(before, after), most))
    assert all(pieces)
    assert apply_edits(before, [edit for piece in pieces for edit in piece], MOST) == after


@given(ROWS, ROWS)
def test_all_rows_need_no_rows_before(before: list, after: list) -> None:
    assert apply_edits(before, whole_edits(after), MOST) == after


def test_one_changed_row_of_many_is_one_edit_and_a_few_fields() -> None:
    before = [(str(key), "guest") for key in range(1_000)]
    after = [*before[:500], ("500", "employee"), *before[501:]]
    edits = edits_between(before, after)
    assert edits == [Edit(0, 500, (("500", "employee"),)), Edit(501, 499)]
    results = counts_between(before, after, (0,))
    assert (results.added, results.changed, results.removed) == (0, 1, 0)


@given(ROWS, ROWS)
def test_counts_add_up(before: list, after: list) -> None:
    results = counts_between(before, after, (0,))
    assert len(before) + results.added - results.removed == len(after)
    assert min(results.added, results.changed, results.removed) >= 0


def test_pieces_stay_small() -> None:
    rows = [(str(key), "x" * 50) for key in range(1_000)]
    pieces = list(in_pieces(whole_edits(rows), 1_000))
    assert len(pieces) > 50
    assert all(sum(len(edit.rows) for edit in piece) <= 20 for piece in pieces)


@pytest.mark.parametrize(
    "edit",
    [Edit(-1, 1), Edit(0, -1), Edit(1, 2), Edit(0, 2, (("c",),))],
    ids=["before", "negative", "beyond", "too-many"],
)
def test_edits_that_do_not_fit_are_refused(edit: Edit) -> None:
    with pytest.raises(Corrupt):
        apply_edits([("a",), ("b",)], [edit], 2)
