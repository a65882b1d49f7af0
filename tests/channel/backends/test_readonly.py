import asyncio
from pathlib import Path

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.backends.readonly import open_readonly
from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent, make_event
from rapport.kernel.clock import ManualClock, SystemClock


def event(number: int) -> Event:
    return make_event(source="s", id=f"e{number}", type="t", time=number, data=number)


def test_a_second_process_sees_what_the_first_writes_while_it_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        writer = open_embedded(tmp_path, clock)
        await writer.channel("mine").append([event(1), event(2)])
        reader = open_readonly(tmp_path, clock)
        assert reader.names() == ["mine"]
        assert [s.event.id for s in await reader.channel("mine").read_after(0)] == ["e1", "e2"]
        assert [s.event.id for s in await reader.channel("mine").read_after(1)] == ["e2"]
        waiting = asyncio.create_task(reader.channel("mine").wait_after(2, timeout_ms=10_000))
        await writer.channel("mine").append([event(3)])
        assert await waiting
        (found,) = await reader.find_event("e3")
        assert (found[0], found[1].position) == ("mine", 3)
        await reader.close()
        assert (await writer.find_event("e3"))[0][1].position == 3
        await writer.close()

    asyncio.run(scenario())


def test_whatever_would_write_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        await open_embedded(tmp_path, clock).close()
        reader = open_readonly(tmp_path, clock)
        with pytest.raises(Unsupported):
            await reader.channel("mine").append([event(1)])
        with pytest.raises(Unsupported):
            await reader.subscribe("mine", "me")
        assert not await reader.channel("mine").wait_after(0, timeout_ms=10)
        await reader.close()

    asyncio.run(scenario())


def test_a_place_that_is_none_is_refused_and_not_taken_for_an_empty_channel(tmp_path: Path) -> None:
    async def scenario() -> None:
        writer = open_embedded(tmp_path, SystemClock())
        await writer.channel("mine").append([event(1)])
        reader = open_readonly(tmp_path, SystemClock())
        for channel in (writer.channel("mine"), reader.channel("mine")):
            for position, limit in ((0, 0), (0, -3), (-1, 5)):
                with pytest.raises(InvalidInput) as caught:
                    await channel.read_after(position, limit=limit)
                assert caught.value.code == "channel.bad_position"
                assert caught.value.hint
        await reader.close()
        await writer.close()

    asyncio.run(scenario())


def test_a_directory_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        open_readonly(tmp_path / "absent", SystemClock())


@pytest.mark.parametrize("by_rule", [True, False], ids=["of the channel", "of the event"])
def test_what_is_past_its_time_to_live_is_given_to_nobody_here_either(
    tmp_path: Path, by_rule: bool
) -> None:
    async def scenario() -> None:
        clock = ManualClock(1_000)
        writer = open_embedded(tmp_path, clock)
        mortal = [
            msgspec.structs.replace(event(number), headers={} if by_rule else {"ttlms": "500"})
            for number in range(1, 2_501)
        ]
        await writer.channel("mine").append(mortal)
        clock.set_ms(1_400)
        await writer.channel("mine").append([event(9_999)])
        reader = open_readonly(tmp_path, clock, lambda _name: 500 if by_rule else -1)
        mine = reader.channel("mine")
        assert len(await mine.read_after(0, limit=3_000)) == 2_501
        clock.set_ms(1_500)
        assert [one.event.id for one in await mine.read_after(0, limit=1_000)] == ["e9999"]
        assert await reader.find_event("e7") == []
        clock.set_ms(9_000)
        assert len(await mine.read_after(0)) == (0 if by_rule else 1)
        await reader.close()
        await writer.close()

    asyncio.run(scenario())


def test_what_is_past_its_time_to_live_costs_little_and_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(1_000)
        writer = open_embedded(tmp_path, clock)
        await writer.channel("mine").append([event(number) for number in range(1, 2_501)])
        reader = open_readonly(tmp_path, clock, lambda _name: 500)
        mine = reader.channel("mine")
        readings = 0
        read = mine._read

        def counted(position: int, limit: int) -> list[StoredEvent]:
            nonlocal readings
            readings += 1
            return read(position, limit)

        mine._read = counted  # type: ignore[method-assign]
        clock.set_ms(9_000)
        assert await mine.wait_after(0, timeout_ms=0)
        assert await mine.read_after(0, limit=1) == []
        assert readings < 10
        assert not await mine.wait_after(0, timeout_ms=0)
        assert not await mine.wait_after(1_234, timeout_ms=0)
        await writer.channel("mine").append([event(9_998), event(9_999)])
        assert await mine.wait_after(0, timeout_ms=0)
        assert [one.event.id for one in await mine.read_after(0, limit=1)] == ["e9998"]
        await reader.close()
        await writer.close()

    asyncio.run(scenario())
