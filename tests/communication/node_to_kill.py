"""A process that raises alarms and delivers them until killed; `finish` ends the work instead.

Started by test_kill9.py. Prints the id of each detection once it is acknowledged, or, with
`messages` as the last word, of each message of an application; then outcomes are handed straight to
the engine. The medium is a file to which every sent delivery adds a line.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.communication.actions import Action
from rapport.communication.adapters.base import Sent
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.engine import CommunicationEngine
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.core.detection import Detection
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock


class FileMedium:
    """Every delivery is a line; written with one call, so a kill never tears it."""

    name = "file"

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def send(self, delivery):
        os.write(self._file, f"{delivery.key} {delivery.message} {delivery.peer}\n".encode())
        return Sent()

    async def close(self):
        os.close(self._file)


async def main(directory, round_name, finish, messages):
    clock = SystemClock()
    channels = open_embedded(directory / "log", clock)
    peers = {name: Peer(name=name, addresses=(f"file:{name}",)) for name in ("ana", "ben", "lea")}
    guards = Collective(name="guards", members=tuple(peers), delivery="to-all-members")
    alarm = Action(
        phrase="alarm", send_to=Identifier("collective", "guards"), text="{A}", done_when="sent"
    )
    medium = FileMedium(directory / "medium")
    engine = CommunicationEngine(
        channels,
        channels.records,
        clock,
        EngineParts(
            directory=SiteDirectory(peers, {"guards": guards}),
            actions={"alarm": alarm},
            phrases={"p": ("alarm",)},
            adapters=("file",),
        ),
    )
    report = engine.apply_outcomes if messages else None
    dispatch = Dispatch(
        medium, channels, channels.records, clock, report=report, is_decided=engine.is_decided
    )
    if finish:
        await engine.open()
        await dispatch.open()
        while await engine.settle() + await dispatch.settle():
            continue
        await channels.close()
        return
    work = send_messages if messages else raise_alarms
    await asyncio.gather(engine.run(), dispatch.run(), work(channels, clock, round_name))


async def raise_alarms(channels, clock, round_name):
    number = 0
    while True:
        number += 1
        detection = Detection(
            policy="p", time=clock.now_ms(), bindings={"A": f"{round_name}-{number}"}, causes=()
        )
        await channels.channel("detections").append([detection.to_event(source="policy")])
        print(detection.id(), flush=True)
        await clock.sleep(1)


async def send_messages(channels, clock, round_name):
    """Three to single peers, one to all of them, and so on."""
    number = 0
    while True:
        batch = []
        for receiver in ("peer:ana", "peer:ben", "peer:lea", "collective:guards"):
            number += 1
            message = Message(
                type="TASK",
                subtype="REQUEST",
                sender=Identifier("component", "app"),
                id=f"{round_name}-{number}",
                receiver=Identifier.parse(receiver),
                content="look",
            )
            batch.append(message.to_event(source="application", time=clock.now_ms()))
        await channels.channel("input").append(batch)
        for event in batch:
            print(event.id, flush=True)
        await clock.sleep(1)


if __name__ == "__main__":
    asyncio.run(
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[2] == "finish", "messages" in sys.argv[3:])
    )
