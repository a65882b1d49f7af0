"""Power cuts in the midst of publishers, readers, sweeps and rolls: nothing acknowledged is lost or
doubled, in the log, for exactly-once readers, and for whoever holds a token. [CH-3, CH-6, CH-9,
CH-13, CH-14]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.consumers import Effect, Emit, serve_with
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.channel.log.writer import ThreadWriter
from rapport.channel.requests.request import Request
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Chance, ManualClock
from rapport.store.history_index import MemoryHistory
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk
from support.faults.forgetful_records import ForgetfulRecords
from support.faults.rounds import check_once, few_or_many
from support.numbered_events import stamped

STORE = Path("/data/store")
KEPT, SWEPT, RESULTS = "kept", "swept", "results"
READER = "adder"
RULES = ChannelsConfig(rules=(ChannelRules(pattern=SWEPT, keep_bytes=8_000),))
ALL = 1_000_000


class Device:
    """A publisher whose memory outlives the cuts: sends again what got no answer."""

    def __init__(self, name: str, channel: str, *, counts: bool) -> None:
        self.name, self.channel, self._counts = name, channel, counts
        self.acknowledged: list[str] = []
        self._batches = self._made()
        self._waiting = next(self._batches)

    async def publish_until_dark(self, channels: LoggedChannels) -> None:
        while True:
            try:
                await channels.channel(self.channel).append(self._waiting)
            except ChannelUnavailable:
                return
            self.acknowledged += [event.id for event in self._waiting]
            self._waiting = next(self._batches)

    def _made(self) -> Iterator[list[Event]]:
        number = 0
        while True:
            size = 1 + number % 3
            batch = [self._event(number + n) for n in range(size)]
            yield counted_in(self.channel, batch) if self._counts else batch
            number += size

    def _event(self, number: int) -> Event:
        headers = stamped({}, SequenceStamp(self.name, 1, number + 1)) if self._counts else {}
        data = b'"' + b"x" * (number * 37 % 700) + b'"'
        return Event(self.name, f"{self.name}-{number}", "t", "", 0, data, headers)


class World:
    """A disk and the records on it, the devices, and what a reader by token holds."""

    def __init__(self, chance: Chance) -> None:
        self.disk, self.chance = ForgetfulDisk(), chance
        self.records = ForgetfulRecords(self.disk)
        self.devices = [Device(f"d{n}", KEPT if n % 2 else SWEPT, counts=n < 3) for n in range(6)]
        self.sets: dict[str, list[str]] = {}
        self.next_token = ""

    def acknowledged(self, channel: str) -> list[str]:
        devices = [device for device in self.devices if device.channel == channel]
        return [id for device in devices for id in device.acknowledged]

    def open(self) -> LoggedChannels:
        channels = LoggedChannels(
            LogParts(
                clock=ManualClock(),
                log=SegmentLogStore(STORE, files=self.disk, segment_bytes=3_000),
                records=self.records,
                history=MemoryHistory(),
                writer=ThreadWriter(name="writer-under-test"),
                pool=ThreadPoolExecutor(2),
                dedupe_window=500,
            )
        )
        channels.use_rules(RULES)
        return channels

    def cut_power(self) -> None:
        self.disk.cut_power(self.chance)
        self.records.cut_power(self.chance)


async def add_up(stored: StoredEvent, state: bytes) -> Effect:
    number, total = json.loads(state or b"[0, 0]")
    emit = Emit(channel=RESULTS, type="added", data=stored.event.id)
    return Effect(state=json.dumps([number + 1, total + stored.position]).encode(), emits=(emit,))


async def read_by_token(world: World, channels: LoggedChannels) -> None:
    """Set after set, each remembered with its token as a careful reader does."""
    request = Request(token=world.next_token) if world.next_token else Request(query={})
    while True:
        batch = await channels.source.request(KEPT, request, identity="r")
        if batch.events:
            world.sets.setdefault(batch.current_token, [one.event.id for one in batch.events])
        if batch.next_token is None:
            request = Request(token=batch.current_token, seen=True)
            await channels.channel(KEPT).wait_after(world_reach(world))
            continue
        world.next_token = batch.next_token
        request = Request(token=batch.next_token)


def world_reach(world: World) -> int:
    return sum(map(len, world.sets.values()))


async def sweep(channels: LoggedChannels) -> None:
    while True:
        await channels.sweeper.sweep_all()
        await asyncio.sleep(0)


async def one_round(world: World) -> None:
    """Everybody works until the power fails."""
    try:
        channels = world.open()
    except StoreUnavailable:
        return
    clock = channels.parts.clock
    beside = [
        asyncio.ensure_future(work)
        for work in (
            serve_with("exactly-once", channels, KEPT, READER, add_up, clock, limit=20),
            serve_with("exactly-once", channels, SWEPT, READER, add_up, clock, limit=20),
            read_by_token(world, channels),
            sweep(channels),
        )
    ]
    await asyncio.gather(*(device.publish_until_dark(channels) for device in world.devices))
    for task in beside:
        task.cancel()
    for ended in await asyncio.gather(*beside, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError | ChannelUnavailable), repr(ended)
    try:
        await channels.close()
    except StoreUnavailable as error:
        assert error.code == "store.disk_failed"


async def look(world: World) -> None:
    """With the power back: everything promised is kept."""
    channels = world.open()
    kept = await channels.channel(KEPT).read_after(0, limit=ALL)
    assert [one.position for one in kept] == list(range(1, len(kept) + 1))
    check_once([one.event.id for one in kept], world.acknowledged(KEPT))
    for name in (KEPT, SWEPT):
        await check_reader(channels, name)
    await check_swept(world, channels)
    for token, ids in world.sets.items():
        batch = await channels.source.request(KEPT, Request(token=token), identity="r")
        assert [one.event.id for one in batch.events] == ids
    await channels.close()


async def check_reader(channels: LoggedChannels, name: str) -> None:
    """State and cursor say the same: no event was passed over or added twice."""
    subscription = await channels.subscribe(name, READER)
    position = subscription.position
    assert position <= channels.channel(name).last_position()
    assert json.loads(subscription.state or b"[0, 0]") == [position, position * (position + 1) // 2]
    assert subscription.skipped == 0


async def check_swept(world: World, channels: LoggedChannels) -> None:
    """What is left is a whole end of the log, with all that the reader has not had; each event that
    went had its one result.
    """
    left = await channels.channel(SWEPT).read_after(0, limit=ALL)
    first = channels.channel(SWEPT).first_position()
    assert [one.position for one in left] == list(range(first, first + len(left)))
    subscription = await channels.subscribe(SWEPT, READER)
    assert first <= subscription.position + 1
    results = await channels.channel(RESULTS).read_after(0, limit=ALL)
    ids = [one.event.payload() for one in results]
    check_once(ids, ())
    unread = [one.event.id for one in left if one.position > subscription.position]
    check_once(set(ids) | set(unread), world.acknowledged(SWEPT))


async def first_left(world: World) -> int:
    channels = world.open()
    first = channels.channel(SWEPT).first_position()
    await channels.close()
    return first


@pytest.mark.slow
@pytest.mark.parametrize("rounds", few_or_many(4))
def test_power_cuts_under_load_lose_and_double_nothing_for_anybody(rounds: int) -> None:
    world = World(Chance(20261115 + rounds))
    for number in range(rounds):
        world.disk.steps_left = world.chance.randint(5, 400)
        asyncio.run(one_round(world))
        world.cut_power()
        if number % 2 == 0:  # a look ends with a clean close, which hides what cuts leave behind
            asyncio.run(look(world))
    asyncio.run(look(world))
    assert len(world.acknowledged(KEPT)) > 10 * rounds
    assert len(world.sets) > rounds / 2
    assert asyncio.run(first_left(world)) > rounds, "nothing was swept"
