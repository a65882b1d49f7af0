"""Back-pressure: a slow disk makes publishers wait, then sends them away; memory stays. [CH-14]"""

from __future__ import annotations

import asyncio
import threading

from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import ThreadWriter
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import Event
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore

QUEUE_BYTES = 64 * 1024


class SlowLogStore(MemoryLogStore):
    """A disk that takes nothing until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def append(self, log, blocks, received):
        self.go_on.wait(20)
        return super().append(log, blocks, received)


def test_behind_a_slow_disk_publishers_wait_and_then_are_sent_away(clock):
    async def scenario():
        log = SlowLogStore()
        writer = ThreadWriter(
            name="slow-writer", queue_bytes=QUEUE_BYTES, waiting_bytes=2 * QUEUE_BYTES
        )
        parts = LogParts(
            clock=clock,
            log=log,
            records=MemoryRecordStore(),
            history=MemoryHistory(),
            writer=writer,
            pool=None,
        )
        channels = LoggedChannels(parts)
        data = b'"' + b"x" * 10_000 + b'"'

        async def publish(number: int) -> bool:
            try:
                await channels.channel("c").append([Event("s", str(number), "t", "", 0, data)])
            except ChannelUnavailable as error:
                assert (error.code, error.retry_after_seconds) == ("channel.busy", 1.0)
                return False
            return True

        publishing = [asyncio.create_task(publish(number)) for number in range(500)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sent_away = [task for task in publishing if task.done()]
        held = (len(publishing) - len(sent_away)) * len(data)
        assert 2 * QUEUE_BYTES < held < 4 * QUEUE_BYTES
        log.go_on.set()
        answers = await asyncio.gather(*publishing)
        assert answers.count(True) == channels.channel("c").last_position()
        assert await publish(1_000)
        await channels.close()

    asyncio.run(scenario())
