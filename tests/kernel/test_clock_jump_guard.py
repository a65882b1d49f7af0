"""Time that jumps ahead is believed only when it stays. [CH-14]"""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.clock import CONFIRM_MS, MOST_JUMP_MS, ClockJumpGuard
from support.faults.jumping_clock import JumpingClock

START, YEAR = 1_772_442_000_000, 31_557_600_000


def pass_time(clock: JumpingClock, duration_ms: int) -> None:
    asyncio.run(clock.advance(duration_ms))


def test_time_that_passes_is_believed_however_much_of_it():
    clock = JumpingClock(START)
    time = ClockJumpGuard(clock)
    pass_time(clock, YEAR)
    assert time.now_ms() == clock.now_ms()


def test_a_jump_ahead_for_a_moment_changes_nothing():
    clock = JumpingClock(START)
    time = ClockJumpGuard(clock)
    clock.jump(73 * YEAR)
    assert time.now_ms() == START
    pass_time(clock, CONFIRM_MS - 1)
    assert time.now_ms() == START + CONFIRM_MS - 1
    clock.correct()
    assert time.now_ms() == clock.now_ms()


def test_a_jump_ahead_that_stays_is_believed_after_a_while():
    clock = JumpingClock(START)
    time = ClockJumpGuard(clock)
    clock.jump(YEAR)
    assert time.now_ms() == START
    pass_time(clock, CONFIRM_MS)
    assert time.now_ms() == START + YEAR + CONFIRM_MS


def test_a_clock_that_jumps_again_and_again_is_not_believed():
    clock = JumpingClock(START)
    time = ClockJumpGuard(clock)
    for step in range(1, 10):
        clock.jump(YEAR)
        pass_time(clock, CONFIRM_MS // 2)
        assert time.now_ms() == START + step * (CONFIRM_MS // 2)


def test_going_back_is_believed_at_once_and_small_corrections_too():
    clock = JumpingClock(START)
    time = ClockJumpGuard(clock)
    clock.jump(-YEAR)
    assert time.now_ms() == START - YEAR
    clock.jump(MOST_JUMP_MS)
    assert time.now_ms() == clock.now_ms()


@given(st.lists(st.tuples(st.integers(-2 * YEAR, 2 * YEAR), st.integers(0, 2 * CONFIRM_MS))))
def test_it_is_never_ahead_of_the_clock_nor_of_what_can_have_passed(moves):
    clock = JumpingClock(START)
    time = ClockJumpGuard(clock)
    believed, since_jump = time.now_ms(), 0
    for jump, passed in moves:
        clock.jump(jump)
        pass_time(clock, passed)
        since_jump = passed if jump > MOST_JUMP_MS else since_jump + passed
        now = time.now_ms()
        assert now <= clock.now_ms()
        assert now <= believed + passed + MOST_JUMP_MS or since_jump >= CONFIRM_MS
        believed = now
