"""Bells and back-pressure: who waits is woken, in order, from any thread. [CH-14]"""

from __future__ import annotations

import asyncio
import threading

from rapport.channel.log.writer import ByteBudget, Notifier


def test_a_bell_wakes_everyone_who_listened_before():
    async def scenario():
        bell = Notifier()
        listening = [bell.listen() for _ in range(3)]
        threading.Thread(target=bell.notify).start()
        await asyncio.gather(*listening)
        late = bell.listen()
        assert not late.done()
        late.cancel()
        bell.notify()

    asyncio.run(scenario())


def test_a_bell_rung_for_a_loop_that_has_ended_is_no_error():
    bell = Notifier()

    async def listen():
        bell.listen()

    asyncio.run(listen())
    bell.notify()


def test_listeners_who_went_away_are_not_kept():
    async def scenario():
        bell = Notifier()
        for _ in range(1000):
            bell.listen().cancel()
        assert len(bell._waiters) < 100

    asyncio.run(scenario())


def test_a_full_room_makes_guests_wait_in_order():
    async def scenario():
        room, entered = ByteBudget(100), []

        async def enter(name, size):
            await room.enter(size)
            entered.append(name)

        await room.enter(60)
        tasks = [asyncio.create_task(enter(name, 60)) for name in "abc"]
        tasks.append(asyncio.create_task(enter("small", 10)))
        await asyncio.sleep(0)
        assert entered == []
        room.leave(60)
        await asyncio.gather(tasks[0])
        assert entered == ["a"]
        room.leave(60)
        await asyncio.gather(tasks[1])
        room.leave(60)
        await asyncio.gather(*tasks)
        assert entered == ["a", "b", "c", "small"]

    asyncio.run(scenario())


def test_a_guest_larger_than_the_room_enters_when_it_is_empty():
    async def scenario():
        room = ByteBudget(10)
        await room.enter(1000)
        waiting = asyncio.create_task(room.enter(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        room.leave(1000)
        await waiting

    asyncio.run(scenario())


def test_a_guest_who_gives_up_blocks_nobody():
    async def scenario():
        room = ByteBudget(10)
        await room.enter(10)
        first = asyncio.create_task(room.enter(10))
        second = asyncio.create_task(room.enter(5))
        await asyncio.sleep(0)
        first.cancel()
        room.leave(10)
        await second
        await room.enter(5)

    asyncio.run(scenario())


def test_a_guest_let_in_at_the_moment_it_gives_up_leaves_its_place():
    async def scenario():
        room = ByteBudget(10)
        await room.enter(10)
        guest = asyncio.create_task(room.enter(10))
        await asyncio.sleep(0)
        room.leave(10)
        guest.cancel()
        await asyncio.gather(guest, return_exceptions=True)
        await asyncio.wait_for(room.enter(10), 5)

    asyncio.run(scenario())
