"""What a bridge stores of what its broker tells again. [CH-12]"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from rapport.channel.backends.local import open_memory
from rapport.channel.mqtt.bridge import Bridge, IncomingTopic, Packet
from rapport.channel.mqtt.client import ReceivedPacket
from rapport.core.errors import ChannelUnavailable, InvalidInput
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.node.mqtt import RunningBridge


def test_a_retained_state_is_stored_when_it_is_not_what_the_topic_said_last():
    """ON is retained, OFF is heard, ON is set while the bridge is away; then nothing changes."""

    async def scenario():
        clock = ManualClock(1_000)
        channels = open_memory(clock)

        async def append(channel: str, events: Sequence[Event]):
            return await channels.channel(channel).append(list(events))

        declared = Bridge(
            name="hall",
            host="h",
            port=1883,
            incoming=(IncomingTopic(topic="lamps/#", source="lamps", channel="raw.lamps"),),
        )
        bridge = RunningBridge(declared, "", "site", channels, append, clock)
        recent = {"raw.lamps": deque(maxlen=100)}

        async def hear(*packets: Packet) -> None:
            await bridge._store([ReceivedPacket(one, 1) for one in packets], recent)

        on = Packet(topic="lamps/1", payload=b'"ON"', number=1, retained=True)
        off = Packet(topic="lamps/1", payload=b'"OFF"', number=2)
        other = Packet(topic="lamps/2", payload=b'"ON"', number=3, retained=True)
        await hear(on, other)
        await hear(off)
        await hear(on, other)
        recent["raw.lamps"] = await bridge._recent("raw.lamps")  # as after a restart
        await hear(on, other)
        await hear(off, on)  # in one batch
        stored = await channels.channel("raw.lamps").read_after(0, limit=100)
        said = [(one.event.subject, one.event.payload()) for one in stored]
        assert said == [
            ("lamps/1", "ON"),
            ("lamps/2", "ON"),
            ("lamps/1", "OFF"),
            ("lamps/1", "ON"),
            ("lamps/1", "OFF"),
            ("lamps/1", "ON"),
        ]

    asyncio.run(scenario())


def test_a_message_that_can_never_be_stored_waits_until_it_can_be_buried():
    """Else the bridge would forget what the broker gave it with this one, and neither store nor
    acknowledge it before the connection breaks.
    """

    async def scenario():
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        letters, tried = channels.channel("dead_letters"), 0
        bury_one = letters.append

        async def bury_later(events: Sequence[Event]):
            nonlocal tried
            tried += 1
            if tried == 1:
                raise ChannelUnavailable("the disk is full")
            return await bury_one(events)

        async def append(channel: str, events: Sequence[Event]):
            if any(event.data == b'"bad"' for event in events):
                raise InvalidInput("no such lamp")
            return await channels.channel(channel).append(list(events))

        letters.append = bury_later
        declared = Bridge(
            name="hall",
            host="h",
            port=1883,
            incoming=(IncomingTopic(topic="lamps/#", source="lamps", channel="raw.lamps"),),
        )
        bridge = RunningBridge(declared, "", "site", channels, append, clock)
        packets = [
            Packet(topic="lamps/1", payload=text, number=number)
            for number, text in enumerate((b'"bad"', b'"ON"'), start=1)
        ]
        recent = {"raw.lamps": deque(maxlen=100)}
        storing = asyncio.create_task(
            bridge._store([ReceivedPacket(one, 1) for one in packets], recent)
        )
        await clock.advance(5_000)
        await storing
        stored = await channels.channel("raw.lamps").read_after(0, limit=100)
        assert [one.event.payload() for one in stored] == ["ON"]
        assert (letters.last_position(), bridge.taken, bridge.refused) == (1, 1, 1)

    asyncio.run(scenario())


def test_a_packet_that_comes_again_is_stored_once_also_within_one_batch():
    """Two equal publishes are two events; each source of one topic gets the message; a declared id
    names it.
    """

    async def scenario():
        clock = ManualClock(1_000)
        channels = open_memory(clock)

        async def append(channel: str, events: Sequence[Event]):
            return await channels.channel(channel).append(list(events))

        topic = "zigbee2mqtt/{device}"
        declared = Bridge(
            name="hall",
            host="h",
            port=1883,
            incoming=(
                IncomingTopic(topic=topic, source="warm", channel="raw.warm"),
                IncomingTopic(topic="zigbee2mqtt/+", source="wet", channel="raw.wet"),
                IncomingTopic(topic="zigbee2mqtt/#", source="rest", channel="raw.rest"),
            ),
        )

        def declared_id(event: Event) -> str:
            return str(event.payload()["n"]) if event.source == "wet" else ""

        bridge = RunningBridge(declared, "", "site", channels, append, clock, declared_id)
        recent = {f"raw.{name}": deque(maxlen=100) for name in ("warm", "wet", "rest")}
        packets = [
            Packet(topic="zigbee2mqtt/k", payload=b'{"n":7}', number=1),
            Packet(topic="zigbee2mqtt/k", payload=b'{"n":7}', number=1, again=True),
            Packet(topic="zigbee2mqtt/k", payload=b'{"n":7}', number=2),
        ]
        await bridge._store([ReceivedPacket(one, 1) for one in packets], recent)
        stored = {name: await channels.channel(name).read_after(0) for name in recent}
        assert [len(found) for found in stored.values()] == [2, 1, 0]
        assert stored["raw.warm"][0].event.headers["addedfields"] == '{"device":"k"}'
        assert stored["raw.wet"][0].event.id == "7"
        assert "addedfields" not in stored["raw.wet"][0].event.headers

    asyncio.run(scenario())
