"""A process that carries deliveries in batches until it is killed; started by a test."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.communication.adapters.base import Delivery, Sent
from rapport.communication.adapters.dispatch import Dispatch, DispatchSettings
from rapport.kernel.clock import SystemClock

PEERS = 7


class FileMedium:
    """A batch is written with one call, so a kill never tears it."""

    name = "file"
    keeps_order = True

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def send(self, delivery):
        return (await self.send_many([delivery]))[0]

    async def send_many(self, deliveries):
        os.write(self._file, "".join(f"{d.peer} {d.message}\n" for d in deliveries).encode())
        return [Sent()] * len(deliveries)

    async def close(self):
        os.close(self._file)


def delivery(number):
    peer = f"p{number % PEERS}"
    return Delivery(message=f"m{number}", peer=peer, address=f"file:{peer}", attempt=1, text="x")


async def main(directory, total, finish):
    clock = SystemClock()
    channels = open_embedded(directory / "log", clock)
    output = channels.channel("output.file")
    dispatch = Dispatch(
        FileMedium(directory / "medium"),
        channels,
        channels.records,
        clock,
        settings=DispatchSettings(batch=50, in_flight=200),
    )
    if finish:
        await dispatch.open()
        await dispatch.settle()
        await channels.close()
        return
    running = asyncio.create_task(dispatch.run())
    for start in range(output.last_position(), total, 25):
        await output.append([delivery(n).to_event() for n in range(start, min(start + 25, total))])
        print(start, flush=True)
    await running


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "finish"))
