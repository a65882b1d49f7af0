"""A lake read as channels: the same events at the same positions as in the log, ids found by index,
damaged files named. [CH-16, PI-3, PO-11]
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.channel.event_lookup import position_before
from rapport.core.errors import Corrupt, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent, make_event
from rapport.kernel.clock import ManualClock
from rapport.lake import channels as lake_ids
from rapport.lake.bronze import bronze_table, export_channels
from rapport.lake.channels import LakeChannels, open_lake
from rapport.lake.log_and_lake import LogAndLake
from rapport.lake.places import Lake
from rapport.lake.table import write_files

DAY_MS = 86_400_000
START = 20_000 * DAY_MS


def event(number: int, type: str) -> Event:
    return make_event(
        source="here",
        id=f"e{number:04d}",
        type=type,
        subject=f"person/{number % 3}",
        time=START - number,
        data={"value": number, "text": "ü\0"},
        headers={"cause": f"e{number - 1:04d}"} if number % 2 else {},
    )


async def filled(lake: Path, count: int = 300, rows_per_file: int = 40) -> Channels:
    """A log of two channels over three days, three types in turn, and its lake."""
    clock = ManualClock(START)
    log = open_memory(clock)
    for number in range(1, count + 1):
        clock.set_ms(START + number * 3 * DAY_MS // count)
        await log.channel("events").append([event(number, f"t{number % 3}")])
        if number % 10 == 0:
            await log.channel("detections").append([event(number, "found")])
    await export_channels(log, lake, rows_at_once=rows_per_file)
    return log


def play(story: Callable[[Path, Channels], Coroutine[Any, Any, None]], lake: Path) -> None:
    async def whole() -> None:
        log = await filled(lake)
        await story(lake, log)
        await log.close()

    asyncio.run(whole())


async def everything(channels: Channels, name: str, limit: int) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    while batch := await channels.channel(name).read_after(
        found[-1].position if found else 0, limit=limit
    ):
        found += batch
    return found


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_a_lake_has_what_the_log_had(tmp_path: Path, limit: int) -> None:
    async def story(directory: Path, log: Channels) -> None:
        lake = open_lake(directory)
        assert lake.names() == log.names()
        for name in lake.names():
            assert lake.channel(name).last_position() == log.channel(name).last_position()
            assert await everything(lake, name, limit) == await everything(log, name, 1_000)

    play(story, tmp_path)


def test_reading_begins_after_any_position(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        lake = open_lake(directory).channel("events")
        for position in (0, 1, 39, 40, 41, 155, 299, 300, 1_000):
            expected = await log.channel("events").read_after(position, limit=50)
            assert await lake.read_after(position, limit=50) == expected

    play(story, tmp_path)


def test_a_position_is_found_by_the_time_of_receiving(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        events = await everything(log, "events", 1_000)
        channel = open_lake(directory).channel("events")
        for at in range(START - DAY_MS, START + 4 * DAY_MS, DAY_MS // 7):
            before = await position_before(channel, at)
            assert all(one.position > before for one in events if one.received >= at)
            earlier = [one for one in events if one.received < at - 60_000]
            assert before == len(earlier)

    play(story, tmp_path)


@pytest.mark.parametrize("worth_indexing", [1, 100, 10_000])
def test_an_event_is_found_by_its_id(
    tmp_path: Path, worth_indexing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_ids, "_MOST_IN_PART", 60)
    monkeypatch.setattr(lake_ids, "_ROWS", 16)

    async def story(directory: Path, log: Channels) -> None:
        for _ in range(2):  # the second one finds the index made
            lake = LakeChannels(directory, worth_indexing=worth_indexing)
            for id in ("e0001", "e0010", "e0155", "e0300", "e9999", "", "zz"):
                found = await lake.find_event(id)
                assert sorted(found, key=_place) == sorted(await log.find_event(id), key=_place)
        parts = list((directory / ".index" / "ids").rglob("*.parquet"))
        assert bool(parts) == (worth_indexing <= 300)

    play(story, tmp_path)


def _place(found: tuple[str, StoredEvent]) -> tuple[str, int]:
    return found[0], found[1].position


def test_what_came_since_the_index_was_made_is_found_too(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        await LakeChannels(directory, worth_indexing=100).find_event("e0001")
        await log.channel("events").append([event(301, "t9")])
        await export_channels(log, directory)
        lake = LakeChannels(directory, worth_indexing=100)
        assert [place for _, place in map(_place, await lake.find_event("e0301"))] == [301]
        assert len(await lake.find_event("e0002")) == 1

    play(story, tmp_path)


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        await LakeChannels(directory, worth_indexing=100).find_event("e0001")
        [part] = (directory / ".index" / "ids" / "events").glob("*.parquet")
        whole = part.read_bytes()
        for damage in (b"", whole[:100] + bytes(600) + whole[700:]):
            part.write_bytes(damage)
            lake = LakeChannels(directory, worth_indexing=100)
            assert len(await lake.find_event("e0155")) == 1
            assert part.read_bytes() == whole

    play(story, tmp_path)


def test_compacted_files_give_the_same(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        lake = open_lake(directory)
        assert len(await lake.channel("events").read_after(0, limit=10)) == 10
        table = Lake.at(directory).open("bronze", "events")
        table.compact()
        assert table.vacuum(0)
        assert await everything(lake, "events", 7) == await everything(log, "events", 1_000)
        assert len(await lake.find_event("e0100")) == 2

    play(story, tmp_path)


def test_files_that_no_commit_names_are_not_there(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        await log.channel("events").append([event(301, "t")])
        rows = bronze_table(await log.channel("events").read_after(300))
        write_files(str(directory / "bronze" / "events"), rows, ["day"])
        lake = open_lake(directory)
        assert lake.channel("events").last_position() == 300
        assert len(await everything(lake, "events", 1_000)) == 300
        assert await lake.find_event("e0301") == []

    play(story, tmp_path)


def test_a_damaged_file_is_named_where_it_matters_and_nowhere_else(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        stored = await log.channel("events").read_after(99, limit=1)
        [broken] = [
            path
            for path in (directory / "bronze" / "events").rglob("*.parquet")
            if "_delta_log" not in path.parts
            and 100 in pq.read_table(path, partitioning=None).column("position").to_pylist()
        ]
        broken.write_bytes(b"PAR1 but not for long")
        lake = open_lake(directory)
        assert len(await lake.channel("events").read_after(0, limit=80)) == 80
        assert (await lake.channel("events").read_after(200, limit=5))[0].position == 201
        with pytest.raises(Corrupt, match=broken.name):
            await lake.channel("events").read_after(80, limit=80)
        with pytest.raises(Corrupt, match=broken.name) as refused:
            await lake.find_event("e0101-which-nobody-has")
        assert refused.value.code == "lake.bad_file"
        assert len(await lake.find_event("e0001")) == 1
        assert [fault.code for fault in lake.damaged()] == ["lake.bad_file"]
        assert stored[0].position == 100

    play(story, tmp_path)


def test_a_lake_refuses_what_would_write(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        lake = open_lake(directory)
        with pytest.raises(Unsupported):
            await lake.channel("events").append([event(1, "t")])
        with pytest.raises(Unsupported):
            await lake.subscribe("events", "me")
        assert not await lake.channel("events").wait_after(300)
        assert await lake.channel("nothing").read_after(0) == []
        with pytest.raises(UnknownName, match="lake"):
            open_lake(directory / "elsewhere")

    play(story, tmp_path)


def test_what_the_log_let_go_of_comes_from_the_lake(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        whole = await everything(log, "events", 1_000)
        times = (START, START + DAY_MS, START + 5 * DAY_MS // 2)
        before = [await position_before(log.channel("events"), at) for at in times]
        log.channel("events").trim(200)  # type: ignore[attr-defined]
        both = LogAndLake(log, open_lake(directory))
        assert await everything(both, "events", 33) == whole
        assert both.was_needed
        both.was_needed = False
        assert (await both.channel("events").read_after(250, limit=5))[0].position == 251
        assert not both.was_needed
        for at, expected in zip(times, before, strict=True):
            assert await position_before(both.channel("events"), at) == expected
        assert [place for _, place in map(_place, await both.find_event("e0007"))] == [7]
        assert both.was_needed

    play(story, tmp_path)


def test_a_copied_lake_is_a_lake(tmp_path: Path) -> None:
    async def story(directory: Path, log: Channels) -> None:
        copy = shutil.copytree(directory / "bronze", directory / "copy" / "bronze").parent
        assert len(await everything(open_lake(copy), "events", 1_000)) == 300

    play(story, tmp_path)
