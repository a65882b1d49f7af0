"""A real process, really killed while it sends in batches."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.kernel.clock import Chance, SystemClock

CHILD = Path(__file__).with_name("dispatch_to_kill.py")
TOTAL, ROUNDS, PEERS = 4_000, 6, 7


def run_and_kill(directory, lines):
    command = [sys.executable, str(CHILD), str(directory), str(TOTAL), "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for number, _line in enumerate(child.stdout):
            if number == lines:
                child.kill()


async def outcomes(directory):
    channels = open_embedded(directory / "log", SystemClock())
    try:
        queued = channels.channel("output.file").last_position()
        stored = await channels.channel("control").read_after(0, limit=100_000)
        return queued, [one.event.payload() for one in stored]
    finally:
        await channels.close()


@pytest.mark.slow
def test_killing_it_again_and_again_loses_nothing_and_says_every_repetition(tmp_path):
    chance = Chance(3)
    for _ in range(ROUNDS):
        run_and_kill(tmp_path, chance.randint(1, 15))
    command = [sys.executable, str(CHILD), str(tmp_path), str(TOTAL), "finish"]
    subprocess.run(command, check=True, timeout=60)

    queued, told = asyncio.run(outcomes(tmp_path))
    assert queued > 0
    handed = Counter(one["message"] for one in told if one["state"] == "handed")
    assert handed == Counter({f"m{n}": 1 for n in range(queued)})
    unknown = Counter(one["message"] for one in told if one["state"] == "unknown")
    sent = [line.split() for line in (tmp_path / "medium").read_text().splitlines()]
    times = Counter(message for _peer, message in sent)
    assert set(times) == set(handed)
    assert all(count - 1 <= unknown[message] for message, count in times.items())
    for number in range(PEERS):
        mine = [int(message[1:]) for peer, message in sent if peer == f"p{number}"]
        first_times = list(dict.fromkeys(mine))
        assert first_times == sorted(first_times)
