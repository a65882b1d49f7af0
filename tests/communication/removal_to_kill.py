"""Sends messages by a medium that takes its time, removes it, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rapport.communication.api import (
    Delivery,
    Identifier,
    Message,
    Outcome,
    Peer,
    adapter,
    open_communication,
)

COUNT = 20
PEERS = [Peer(name=f"p{n}", addresses=(f"note:{n}",)) for n in range(COUNT)]


def task(number: int) -> Message:
    """A message to one of the peers."""
    return Message(
        type="TASK",
        subtype="REQUEST",
        sender=Identifier("component", "app"),
        receiver=Identifier("peer", f"p{number}"),
        content=f"text {number}",
        id=f"m{number}",
    )


@adapter("note")
class Slow:
    """Takes nothing."""

    async def send(self, delivery: Delivery) -> Outcome | None:
        await asyncio.Event().wait()
        return None

    async def close(self) -> None:
        """Nothing to let go of."""


async def main(directory: Path) -> None:
    """Prints a line once the removal has begun."""
    async with open_communication(directory, peers=PEERS, outputs=[Slow]) as communication:
        for number in range(COUNT):
            await communication.send(task(number))
        removing = asyncio.create_task(communication.remove_output_adapter("note"))
        await asyncio.sleep(0.2)
        print("removing", flush=True)
        await removing


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
