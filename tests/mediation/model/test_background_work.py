"""Work beside the loop leaves it its turns. [ME-6]"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable

import pytest

from benchmarks.mediation.update import changed_interpretations
from rapport.mediation.background_work import (
    CALLS,
    TURN_SECONDS,
    run_in_background,
    run_with_pauses,
    short_switch_interval,
)


def test_turns_are_short_while_the_work_runs_and_as_before_afterwards() -> None:
    interval = sys.getswitchinterval()
    seen = asyncio.run(run_in_background(sys.getswitchinterval))
    assert seen == pytest.approx(TURN_SECONDS, rel=0.01)
    assert sys.getswitchinterval() == interval


def test_turns_stay_short_until_the_last_work_ends() -> None:
    interval = sys.getswitchinterval()
    first, second = short_switch_interval(), short_switch_interval()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS, rel=0.01)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == interval


def test_an_exception_of_the_work_is_raised_and_the_switch_interval_restored() -> None:
    interval = sys.getswitchinterval()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_in_background(fail))
    assert sys.getswitchinterval() == interval


def test_the_thread_is_as_urgent_as_the_loop() -> None:
    """Where others want the processors, the loop waits for what the thread holds."""

    def urgency() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert asyncio.run(run_in_background(urgency)) == urgency()


def calls_in(work: Callable[[], None]) -> int:
    counted = 0

    def count(_frame: object, _event: str, _about: object) -> None:
        nonlocal counted
        counted += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("rules", [1, 10, 100])
def test_a_change_rests_after_as_many_calls_however_large_it_is(rules: int) -> None:
    change = changed_interpretations(rules)
    change()
    rests: list[None] = []
    run_with_pauses(change, lambda: rests.append(None))
    assert len(rests) == pytest.approx(calls_in(change) / CALLS, rel=0.05, abs=1)
    assert len(rests) >= rules // 10


def test_a_former_profiler_is_restored_also_after_an_exception() -> None:
    def watch(_frame: object, _event: str, _about: object) -> None:
        return None

    def fail() -> None:
        raise ValueError("no")

    sys.setprofile(watch)
    try:
        with pytest.raises(ValueError, match="no"):
            run_with_pauses(fail)
        assert sys.getprofile() is watch
    finally:
        sys.setprofile(None)


def test_at_a_start_there_are_no_rests() -> None:
    assert asyncio.run(run_in_background(sys.getprofile, resting=False)) is None
    assert asyncio.run(run_in_background(sys.getprofile)) is not None
