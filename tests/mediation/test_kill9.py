"""Killed at any moment, mediation neither loses a raw event nor gives it a meaning twice."""

import asyncio
import os
import random
import signal
import subprocess
import sys

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.kernel.clock import ManualClock

ROUNDS, EVENTS = 5, 8_000
CHILD = """
import asyncio, sys
from pathlib import Path
from rapport.channel.backends.local import open_embedded
from rapport.kernel.clock import SystemClock
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.reader import MediationReader
from rapport.mediation.interpretations.repository import Repository

async def main():
    clock = SystemClock()
    channels = open_embedded(Path(sys.argv[1]), clock)
    plain = SourceBinding(source="plain", concept="person", attribute="position", type="point")
    lane = MediationReader(channels, [plain], Repository(), clock).lane("plain")
    print("ready", flush=True)
    while await lane.step(timeout_ms=0):
        print(lane.counts.read, flush=True)
    await channels.close()
    print("done", flush=True)

asyncio.run(main())
"""


async def publish(directory, make):
    channels = open_embedded(directory, ManualClock())
    raw = [make(number) for number in range(EVENTS)]
    await channels.channel("raw.plain").append(raw)
    await channels.close()


async def ids_in(directory, channel):
    channels = open_embedded(directory, ManualClock())
    stored = await channels.channel(channel).read_after(0, limit=100_000)
    await channels.close()
    return [one.event.headers["cause"] for one in stored]


def run_child(directory, kill_after):
    """Mediates until all is done, or until killed after so many lines; True when done."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for number, line in enumerate(child.stdout, start=1):
            if line == "done\n":
                return True
            if number == kill_after:
                os.kill(child.pid, signal.SIGKILL)
    return False


@pytest.mark.slow
def test_every_raw_event_is_a_reading_or_a_rejection_exactly_once(tmp_path, event):
    def make(number):
        bad = number % 10 == 0
        return event({"key": "k", "x": "no" if bad else 1, "y": 2}, id=f"e{number}")

    chance = random.Random(7)
    asyncio.run(publish(tmp_path, make))
    for _round in range(ROUNDS):
        run_child(tmp_path, kill_after=chance.randint(1, 3))
    assert run_child(tmp_path, kill_after=None)
    events = asyncio.run(ids_in(tmp_path, "events"))
    held = asyncio.run(ids_in(tmp_path, "quarantine"))
    assert len(events) == len(set(events)) == EVENTS * 9 // 10
    assert sorted(events + held) == sorted(f"e{number}" for number in range(EVENTS))
