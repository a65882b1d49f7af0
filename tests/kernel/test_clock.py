import asyncio

import pytest

from rapport.kernel.clock import Chance, Ids, ManualClock, SystemClock


def test_sleepers_wake_in_order_and_at_their_time() -> None:
    async def scenario() -> list[tuple[str, int]]:
        clock = ManualClock(0)
        woken: list[tuple[str, int]] = []

        async def sleeper(name: str, duration_ms: int) -> None:
            await clock.sleep(duration_ms)
            woken.append((name, clock.now_ms()))

        tasks = [asyncio.create_task(sleeper("late", 50)), asyncio.create_task(sleeper("soon", 10))]
        await asyncio.sleep(0)
        await clock.advance(100)
        await asyncio.gather(*tasks)
        return woken

    assert asyncio.run(scenario()) == [("soon", 10), ("late", 50)]


def test_the_system_clock_tells_a_time_of_this_century_and_never_steps_back() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_600_000_000_000
    assert clock.steady_ns() <= clock.steady_ns()


@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_many_ids_are_as_good_as_single_ones(count) -> None:
    clock = ManualClock(1000)
    ids = Ids(clock, Chance(1))
    before, many = ids.new(), ids.many(count)
    clock.set_ms(10)
    again = ids.many(count)
    assert len({before, *many, *again}) == 1 + 2 * count
    assert {one[:13] for one in (*many, *again)} <= {before[:13]}
    clock.set_ms(2000)
    assert all(later > earlier for later in ids.many(count) for earlier in many)


def test_ids_are_unique_and_sorted_even_when_the_clock_goes_back() -> None:
    clock = ManualClock(1000)
    ids = Ids(clock, Chance(1))
    first = ids.new()
    clock.set_ms(10)
    second = ids.new()
    assert first[:13] == second[:13]
    assert first != second
