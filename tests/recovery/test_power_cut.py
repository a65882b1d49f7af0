"""A power cut under load loses nothing that was acknowledged; and each sync is needed for that.
[CH-13]
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import ThreadWriter
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import Chance, ManualClock
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryRecordStore
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk

pytestmark = pytest.mark.slow

STORE = Path("/data/store")
PUBLISHERS = 6


def open_on(disk: ForgetfulDisk) -> LoggedChannels:
    """The embedded channels with their log on a disk that forgets."""
    return LoggedChannels(
        LogParts(
            clock=ManualClock(),
            log=SegmentLogStore(STORE, files=disk, segment_bytes=3000),
            records=MemoryRecordStore(),
            history=MemoryHistory(),
            writer=ThreadWriter(name="writer-under-test"),
            pool=ThreadPoolExecutor(1),
        )
    )


async def publish_until_dark(channels: LoggedChannels, part: str, acknowledged: set[str]) -> None:
    """Appends small batches to two channels until the disk refuses; notes what was acknowledged."""
    number = 0
    while True:
        name = "even" if number % 2 == 0 else "odd"
        batch = [
            Event("test", f"{part}-{number}-{index}", "t", "", 0, b"x" * (number * 37 % 700))
            for index in range(1 + number % 3)
        ]
        try:
            await channels.channel(name).append(batch)
        except ChannelUnavailable:
            return
        acknowledged.update(f"{name}/{event.id}" for event in batch)
        number += 1


async def one_round(disk: ForgetfulDisk, part: str, acknowledged: set[str]) -> None:
    try:
        channels = open_on(disk)
    except StoreUnavailable:
        return
    await asyncio.gather(
        *(publish_until_dark(channels, f"{part}.{one}", acknowledged) for one in range(PUBLISHERS))
    )
    with suppress(StoreUnavailable):  # unless nothing was written that is to be saved
        await channels.close()


async def read_all(disk: ForgetfulDisk) -> dict[str, list[tuple[int, str]]]:
    channels = open_on(disk)
    found = {}
    for name in channels.names():
        batch = await channels.channel(name).read_after(0, limit=1_000_000)
        found[name] = [(item.position, f"{name}/{item.event.id}") for item in batch]
    await channels.close()
    return found


def names_of(found: dict[str, list[tuple[int, str]]]) -> list[str]:
    return [name for pairs in found.values() for _position, name in pairs]


def rounds_of_power_cuts(
    disk: ForgetfulDisk, chance: Chance, rounds: int
) -> tuple[set[str], dict[str, list[tuple[int, str]]]]:
    """What was acknowledged in all rounds, and what is there after the last cut."""
    acknowledged: set[str] = set()
    for number in range(rounds):
        disk.steps_left = chance.randint(5, 250)
        asyncio.run(one_round(disk, str(number), acknowledged))
        disk.cut_power(chance)
    return acknowledged, asyncio.run(read_all(disk))


@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_power_cuts_under_load_lose_and_repeat_nothing_acknowledged(seed):
    acknowledged, found = rounds_of_power_cuts(ForgetfulDisk(), Chance(seed), 20)
    assert len(acknowledged) > 500
    for pairs in found.values():
        assert [position for position, _name in pairs] == list(range(1, len(pairs) + 1))
    names = names_of(found)
    assert len(names) == len(set(names))
    assert acknowledged <= set(names)


LOST_SYNCS = {
    "content of a segment": ("skip_sync", lambda path: path.suffix == ".log"),
    "name of a segment": ("skip_directory_sync", lambda path: path.parent.name == "logs"),
    "name of a log": ("skip_directory_sync", lambda path: path.name == "logs"),
    "name of the directory of logs": ("skip_directory_sync", lambda path: path == STORE),
    "name of the store": ("skip_directory_sync", lambda path: path == STORE.parent),
}


@pytest.mark.parametrize("sync", LOST_SYNCS)
def test_without_any_one_sync_acknowledged_events_are_lost(sync):
    for seed in range(5):
        disk = ForgetfulDisk()
        attribute, skip = LOST_SYNCS[sync]
        setattr(disk, attribute, skip)
        acknowledged, found = rounds_of_power_cuts(disk, Chance(seed), 4)
        if not acknowledged <= set(names_of(found)):
            return
    pytest.fail(f"the power cuts did not show that the sync of the {sync} is missing")
