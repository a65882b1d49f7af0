"""Nothing is taken twice, and what is in the window is not refused. [CX-9]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.transport.sealed_datagrams import KEPT_BLOCKS, ReplayWindow


def take(window: ReplayWindow, number: int) -> bool:
    is_new = window.is_new(number)
    if is_new:
        window.take(number)
    return is_new


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 20_000)), max_size=400))
def test_no_number_is_taken_twice(numbers: list[int]) -> None:
    window = ReplayWindow()
    taken = [number for number in numbers if take(window, number)]
    assert len(taken) == len(set(taken))
    assert len(window._blocks) <= 2 * KEPT_BLOCKS


@given(st.lists(st.integers(1, 3), max_size=400), st.randoms(use_true_random=False))
def test_numbers_that_come_close_to_their_order_are_all_taken(steps, chance) -> None:
    numbers, last = [], 0
    for step in steps:
        last += step
        numbers.append(last)
    shuffled = sorted(numbers, key=lambda number: number + chance.randrange(600))
    window = ReplayWindow()
    assert all(take(window, number) for number in shuffled)
    assert not any(take(window, number) for number in shuffled)


def test_a_sender_that_talks_to_many_may_be_out_of_order_too() -> None:
    window = ReplayWindow()
    numbers = [number * 1_000 for number in range(500)]
    for pair in zip(numbers[1::2], numbers[::2], strict=True):
        assert all(take(window, number) for number in pair)


def test_what_is_far_behind_is_refused() -> None:
    window = ReplayWindow()
    for number in range(64 * 64 + 1):
        assert take(window, number)
    assert not window.is_new(0)
    assert window.is_new(64 * 64 + 1)
