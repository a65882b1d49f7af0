"""Deliveries handed to the share of their peer: when they go on, and what the next holder finds.
[CO-17]
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec

from rapport.channel.backends.local import open_memory
from rapport.communication import cluster_order as handing_file
from rapport.communication.adapters.base import Delivery
from rapport.communication.cluster_channels import (
    HANDED,
    ShareChannels,
    SharedReader,
    ShareRecords,
    place_of,
)
from rapport.communication.cluster_leases import LEASES, HeldShare, Lease, ShareSettings, share_of
from rapport.communication.cluster_order import REACHED, ClusterProgress, OrderedHandoff
from rapport.communication.transaction import OUTBOX, TABLE, Outgoing
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from rapport.store.base import Put

SETTINGS = ShareSettings(count=4, lease_ms=300)
PEER = "ana"
THEIRS = share_of(f"peer:{PEER}", 4)
CREW = next(f"c{n}" for n in range(99) if share_of(f"collective:c{n}", 4) != THEIRS)
OTHER = share_of(f"collective:{CREW}", 4)


class World:
    """Channels and records in common; every share works in a process of its own."""

    def __init__(self):
        self.clock = SystemClock()
        self.channels = open_memory(self.clock)
        self.records = self.channels.records

    @asynccontextmanager
    async def share(self, number, epoch=1):
        held = HeldShare(number, Lease(f"process-{number}", epoch), lambda: 1_000)
        self.records.put(LEASES, held.name, held.guard.expected)
        reading = SharedReader(self.channels, self.records, SETTINGS.count)
        progress = ClusterProgress(reading, self.records, self.clock, SETTINGS.count)
        channels = ShareChannels(reading, ShareRecords(self.records, held), held)
        view = ShareRecords(self.records, held)
        made = OrderedHandoff(reading, progress, view, held, self.clock, SETTINGS)
        channels.handoff = made
        place = await channels.subscribe("input", "communication")
        running = asyncio.create_task(made.run(channels))
        try:
            yield Working(channels, made, place.position)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def send(self, *receivers):
        events = []
        for number, receiver in enumerate(receivers, 1):
            app, to = Identifier("component", "app"), Identifier.parse(receiver)
            said = Message(type="T", subtype="X", sender=app, id=f"m{number}", receiver=to)
            events.append(said.to_event(source="application", time=1))
        await self.channels.channel("input").append(events)

    async def told(self, name="output.mail"):
        return [stored.event.subject for stored in await self.channels.channel(name).read_after(0)]

    async def until_told(self, *expected):
        async with asyncio.timeout(10):
            while await self.told() != [*expected]:
                await self.clock.sleep(10)


class Working:
    """A share, and what its engine does: reads, decides, appends."""

    def __init__(self, channels, handing, position):
        self.channels, self.handing, self.position = channels, handing, position

    async def read(self):
        batch = await self.channels.channel("input").read_after(self.position)
        self.position = batch[-1].position if batch else self.position
        return [stored.event.id for stored in batch]

    async def decide(self, message):
        await self.channels.channel("output.mail").append([delivery(message)])


def delivery(message, attempt=1):
    made = Delivery(message=message, peer=PEER, address="mail:a", attempt=attempt, text="x")
    return made.to_event()


def test_what_another_share_decides_later_goes_before_what_was_sent_after_it():
    async def scenario():
        world = World()
        await world.send(f"collective:{CREW}", f"peer:{PEER}")
        async with world.share(THEIRS) as theirs, world.share(OTHER) as other:
            assert await theirs.read() == ["m2"]
            await theirs.decide("m2")
            await theirs.read()
            await world.clock.sleep(100)
            assert await world.told() == []
            assert await other.read() == ["m1"]
            await other.decide("m1")
            await world.clock.sleep(100)
            # It may have more to say until it reads on.
            assert await world.told() == ["m1"]
            await other.read()
            await world.until_told("m1", "m2")
        await world.channels.close()

    asyncio.run(scenario())


def test_what_another_share_decides_early_waits_for_what_was_sent_before_it():
    async def scenario():
        world = World()
        await world.send(f"peer:{PEER}", f"collective:{CREW}")
        async with world.share(THEIRS) as theirs, world.share(OTHER) as other:
            await other.read()
            await other.decide("m2")
            await other.read()
            await world.clock.sleep(100)
            assert await world.told() == []
            assert await theirs.read() == ["m1"]
            await theirs.decide("m1")
            await theirs.read()
            await world.until_told("m1", "m2")
        await world.channels.close()

    asyncio.run(scenario())


def test_without_messages_that_cross_nothing_is_handed_over():
    async def scenario():
        world = World()
        await world.send(f"peer:{PEER}", f"peer:{PEER}")
        async with world.share(THEIRS) as theirs:
            await world.clock.sleep(50)
            assert await theirs.read() == ["m1", "m2"]
            await theirs.decide("m1")
            await theirs.decide("m2")
            assert await world.told() == ["m1", "m2"]
            assert await world.told(HANDED) == [""]
            assert (
                "place"
                not in (await world.channels.channel("output.mail").read_after(0))[0].event.headers
            )
        await world.channels.close()

    asyncio.run(scenario())


def test_the_next_holder_goes_on_with_what_waits_and_doubles_nothing():
    async def scenario():
        world = World()
        await world.send(f"collective:{CREW}", f"peer:{PEER}")
        async with world.share(THEIRS) as theirs:
            await theirs.read()
            await theirs.decide("m2")
        async with world.share(OTHER) as other:
            await other.read()
            await other.decide("m1")
        async with world.share(OTHER, epoch=2) as other:
            await other.read()
            await other.decide("m1")
            await other.read()
            async with world.share(THEIRS, epoch=2) as theirs:
                await theirs.read()
                await theirs.decide("m2")
                await theirs.read()
                await world.until_told("m1", "m2")
        assert world.records.get(REACHED, f"{OTHER:03d}") is not None
        await world.channels.close()

    asyncio.run(scenario())


def test_the_next_holder_lets_nothing_go_before_it_knows_who_is_to_be_waited_for():
    """It hears how far its share had come, and has not seen the messages before that."""

    async def scenario():
        world = World()
        await world.send(f"collective:{CREW}", f"peer:{PEER}")
        async with world.share(THEIRS) as theirs:
            await theirs.read()
            await theirs.decide("m2")
            await theirs.read()
            async with asyncio.timeout(10):
                while world.records.get(REACHED, f"{THEIRS:03d}") is None:
                    await world.clock.sleep(10)
        async with world.share(THEIRS, epoch=2), world.share(OTHER) as other:
            await world.clock.sleep(100)
            assert await world.told() == []
            await other.read()
            await other.decide("m1")
            await other.read()
            await world.until_told("m1", "m2")
        await world.channels.close()

    asyncio.run(scenario())


def test_a_share_that_never_goes_on_does_not_keep_everybody_silent(monkeypatch):
    monkeypatch.setattr(handing_file, "_PATIENCE_MS", 50)
    monkeypatch.setattr(handing_file, "_PATIENCE_LEASES", 0)

    async def scenario():
        world = World()
        await world.send(f"collective:{CREW}", f"peer:{PEER}")
        async with world.share(THEIRS) as theirs:
            await theirs.read()
            await theirs.decide("m2")
            await theirs.read()
            await world.until_told("m2")
        await world.channels.close()

    asyncio.run(scenario())


def test_a_kept_outbox_says_where_its_messages_stand():
    async def scenario():
        world = World()
        await world.send(f"collective:{CREW}")
        async with world.share(OTHER) as other:
            await other.read()
            held = HeldShare(OTHER, Lease(f"process-{OTHER}", 1), lambda: 1_000)
            records = ShareRecords(world.records, held, with_places=other.handing.with_place)
            outgoing = {"output.mail": [delivery("m1"), delivery("old")], "log": [delivery("m1")]}
            records.apply([Put(TABLE, OUTBOX, msgspec.msgpack.encode(outgoing))])
            kept = msgspec.msgpack.decode(records.get(TABLE, OUTBOX), type=Outgoing)
            assert [place_of(event) for event in kept["output.mail"]] == [1, 0]
            assert kept["log"] == [delivery("m1")]
        await world.channels.close()

    asyncio.run(scenario())
