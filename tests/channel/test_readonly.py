import asyncio
from pathlib import Path

import pytest

from rapport.channel.backends.embedded import open_embedded
from rapport.channel.backends.readonly import open_readonly
from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.core.event import Event, make_event
from rapport.kernel.clock import SystemClock


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
