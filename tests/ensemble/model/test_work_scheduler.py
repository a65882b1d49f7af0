"""Due times: offset + n x period, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.ensemble.model.work_scheduler import Schedule, next_slot


def test_things_are_due_at_offset_and_period() -> None:
    schedule = Schedule()
    schedule.add("a", 1_000, 300, 0)
    assert schedule.next_due_ms() == 300
    assert schedule.due(299) == []
    assert schedule.due(300) == ["a"]
    assert schedule.due(300) == []
    assert schedule.next_due_ms() == 1_300


def test_missed_periods_are_not_made_up_for() -> None:
    schedule = Schedule()
    schedule.add("a", 1_000, 0, 0)
    assert schedule.due(3_600_000) == ["a"]
    assert schedule.next_due_ms() == 3_601_000


def test_a_steady_clock_that_starts_again_does_not_stop_anything() -> None:
    schedule = Schedule()
    schedule.add("a", 1_000, 0, 3_600_000)
    assert schedule.due(3_601_000) == ["a"]
    assert schedule.due(5) == []
    assert schedule.next_due_ms() == 1_000


def test_what_was_removed_is_never_due() -> None:
    schedule = Schedule()
    schedule.add("a", 1_000, 0, 0)
    schedule.add("b", 2_000, 0, 0)
    schedule.remove("a")
    assert schedule.next_due_ms() == 2_000
    assert schedule.due(10_000) == ["b"]


@given(st.floats(0, 1e6), st.integers(1, 10**7), st.floats(-1e9, 1e9, allow_nan=False))
def test_the_next_slot_is_after_and_within_a_period(
    offset: float, period: int, after: float
) -> None:
    slot = next_slot(offset, period, after)
    assert after < slot <= after + period * 1.000001 + 1e-3
