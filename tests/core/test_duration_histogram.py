"""Durations counted by steps say what they say they do: how many, the longest, and each to a
thirty-second. [PI-6]
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.core.times import DurationCounts, DurationHistogram, bucket_of

SOME = st.lists(st.one_of(st.integers(0, 200), st.integers(0, 2**53 - 1)), max_size=60)


def counted(values: list[int]) -> DurationCounts:
    durations = DurationHistogram()
    for value in values:
        durations.add(value)
    assert len(durations) == len(values)
    return durations.take()


@given(SOME)
def test_steps_are_what_was_added_less_a_thirty_second_at_most(values: list[int]) -> None:
    found = counted(values)
    assert (found.count, found.longest) == (len(values), max(values, default=0))
    told = [step for step, times in found.steps for _ in range(times)]
    for step, value in zip(told, sorted(values), strict=True):
        assert value - value / 32 <= step <= value


@given(SOME, SOME)
def test_counts_of_two_stretches_add_up(some: list[int], others: list[int]) -> None:
    whole = dict(counted(some + others).steps)
    for step, times in (*counted(some).steps, *counted(others).steps):
        whole[step] -= times
    assert set(whole.values()) <= {0}


def test_what_was_taken_is_not_told_again() -> None:
    durations = DurationHistogram()
    durations.add(7)
    assert durations.take() == DurationCounts(1, 7, ((7, 1),))
    assert durations.take() == DurationCounts()


def test_clocks_set_back_and_absurd_ones_do_no_harm() -> None:
    assert counted([-5, 2**80]) == DurationCounts(2, 2**53 - 1, ((0, 1), (bucket_of(2**53 - 1), 1)))


def test_memory_is_bounded_whatever_is_added() -> None:
    durations = DurationHistogram()
    for power in range(54):
        for part in range(1_000):
            durations.add(2**power + part * 2**power // 1_000)
    assert len(durations.take().steps) < 1_600
