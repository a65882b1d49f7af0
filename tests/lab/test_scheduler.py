import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport_lab.scheduler import Scheduler, SimulatedClock

TIMES = st.lists(st.floats(0, 20) | st.integers(0, 5).map(float), max_size=60)


@given(TIMES)
def test_calls_are_made_in_order_of_time_and_at_the_same_time_in_order_of_planning(times):
    scheduler, made = Scheduler(), []
    for number, time in enumerate(times):
        scheduler.at(time, lambda number: made.append((scheduler.time_ms, number)), number)
    assert len(scheduler) == len(times)
    assert scheduler.run() == len(times)
    assert made == sorted((time, number) for number, time in enumerate(times))
    assert len(scheduler) == 0


@given(TIMES, st.lists(st.floats(0, 3), min_size=1, max_size=7))
def test_what_is_planned_within_calls_takes_its_place(times, delays):
    scheduler, made = Scheduler(), []

    def call(depth):
        made.append(scheduler.time_ms)
        if depth < 3:
            scheduler.after(delays[len(made) % len(delays)], call, depth + 1)

    for time in times:
        scheduler.at(time, call, 0)
    scheduler.run()
    assert made == sorted(made)
    assert len(made) == 4 * len(times)


def test_running_until_a_time_makes_the_calls_due_at_it_and_moves_there():
    scheduler, made = Scheduler(), []
    for time in (1.0, 5.0, 5.5):
        scheduler.at(time, made.append, time)
    assert scheduler.run(5.0) == 2
    assert made == [1.0, 5.0]
    assert scheduler.time_ms == 5.0
    assert scheduler.run(5.4) == 0
    assert scheduler.time_ms == 5.4
    assert scheduler.run() == 1
    assert scheduler.time_ms == 5.5


def test_a_time_that_has_passed_means_now():
    scheduler, made = Scheduler(), []
    scheduler.run(7)
    scheduler.at(3, lambda: made.append(scheduler.time_ms))
    scheduler.run()
    assert made == [7]


def test_a_call_taken_back_is_not_made_and_is_taken_back_once():
    scheduler, made = Scheduler(), []
    first = scheduler.at(1, made.append, "first")
    second = scheduler.at(2, made.append, "second")
    assert scheduler.cancel(first)
    assert not scheduler.cancel(first)
    assert len(scheduler) == 1
    assert scheduler.next_due_ms() == 2
    assert scheduler.run() == 1
    assert not scheduler.cancel(second)
    assert made == ["second"]
    assert scheduler.next_due_ms() is None
    assert len(scheduler) == 0


def test_what_a_call_raises_ends_the_run_and_the_rest_stays_planned():
    scheduler, made = Scheduler(), []

    def fail():
        raise ValueError("broken")

    scheduler.at(1, fail)
    scheduler.at(2, made.append, "after")
    with pytest.raises(ValueError, match="broken"):
        scheduler.run()
    assert scheduler.time_ms == 1
    assert scheduler.run() == 1
    assert made == ["after"]


def test_the_wall_clock_moves_with_the_steady_time_until_it_is_set():
    scheduler = Scheduler(100.0, wall_ms=1_000)
    assert scheduler.now == (1_000, 100.0)
    scheduler.run(150.5)
    assert scheduler.now == (1_050, 150.5)
    scheduler.set_wall_ms(500)
    assert scheduler.now == (500, 150.5)
    assert scheduler.wall_ms_at(250.5) == 600


def test_asyncio_code_sleeps_on_simulated_time():
    async def scenario():
        scheduler, woken = Scheduler(wall_ms=0), []
        clock = SimulatedClock(scheduler)

        async def sleeper(name, duration_ms):
            await clock.sleep(duration_ms)
            woken.append((name, clock.now_ms()))
            await clock.sleep(duration_ms)
            woken.append((name, clock.now_ms()))

        tasks = [asyncio.create_task(sleeper(name, ms)) for name, ms in (("a", 30), ("b", 20))]
        await clock.advance(50)
        assert woken == [("b", 20), ("a", 30), ("b", 40)]
        assert clock.steady_ns() == 50_000_000
        tasks[0].cancel()
        await clock.advance(50)
        assert woken[3:] == []
        assert len(scheduler) == 0

    asyncio.run(scenario())
