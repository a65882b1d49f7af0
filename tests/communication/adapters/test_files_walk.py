"""A site whose people are reached through folders, and who answer by dropping a file."""

from __future__ import annotations

import asyncio
import json

from rapport.channel.backends.local import open_memory
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import communication_from_site
from rapport.communication.ledger import Ledger
from rapport.core.detection import Detection
from rapport.kernel.clock import SystemClock
from rapport.kernel.tasks import Tasks
from rapport.kernel.toml import TomlFile

SITE = b"""
[peers.ana]
addresses = ["folder:alarms"]
[actions."raise alarm"]
send_to = "peer:ana"
text = "Guest {A}"
done_when = "answered"
[adapters.folder.folders]
alarms = "out"
[inputs.drop]
adapter = "folder"
directory = "in"
interval = "50ms"
settle = "20ms"
"""


def test_an_alarm_in_a_folder_is_answered_by_a_file_with_its_proof(tmp_path):
    async def scenario():
        for name in ("out", "in"):
            (tmp_path / name).mkdir()
        file = TomlFile.parse(SITE, name="site.toml")
        declared, problems = communication_from_site(file, tmp_path)
        assert [one for one in problems if one.severity == "error"] == []
        clock = SystemClock()
        channels = open_memory(clock)
        room = Assembly(
            channels,
            channels.records,
            clock,
            declared,
            AssemblyOptions(phrases={"watch": ("raise alarm",)}),
        )
        tasks = Tasks(clock)
        for name, work in room.work().items():
            tasks.start(name, work)
        try:
            async with asyncio.timeout(30):
                detection = Detection(
                    policy="watch", time=clock.now_ms(), bindings={"A": "5"}, causes=((1, "e1"),)
                )
                await channels.channel("detections").append([detection.to_event(source="policy")])
                alarm = json.loads((await _first_file(channels, tmp_path / "out")).read_bytes())
                assert alarm["content"] == "Guest 5"
                answer = {
                    "type": "ANSWER",
                    "subtype": "",
                    "sender": "peer:ana",
                    "refers-to": alarm["id"],
                    "session-token": alarm["answer"],
                    "content": "coming",
                }
                (tmp_path / "in" / "answer.json").write_text(json.dumps(answer))
                await _closed(channels, alarm["id"])
        finally:
            await tasks.stop()
            await room.close()
        assert (tmp_path / "in" / "done" / "answer.json").exists()

    asyncio.run(scenario())


async def _first_file(channels, directory):
    log = channels.channel("log")
    while not (found := list(directory.glob("*.json"))):
        await log.wait_after(log.last_position(), timeout_ms=50)
    return found[0]


async def _closed(channels, message):
    log = channels.channel("log")
    while True:
        seen, ledger = log.last_position(), Ledger(channels)
        await ledger.refresh()
        if ledger.message(message).answered_by == "ana":
            return
        await log.wait_after(seen, timeout_ms=1_000)
