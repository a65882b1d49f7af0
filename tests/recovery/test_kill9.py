"""kill -9 under load, twenty times: every acknowledged event is there once. [CH-13]

The reader that ran beside the publishers has neither lost nor repeated one either.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.kernel.clock import Chance, SystemClock

CHILD = Path(__file__).with_name("kill9_child.py")
PUBLISHERS = 5
ROUNDS = 20
RESENT = 6
"""How many acknowledged events each publisher sends again after a kill, as one would that lost the
answer.
"""


def load_child():
    spec = importlib.util.spec_from_file_location("kill9_child", CHILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_and_kill(directory: Path, starts: list[int], lines_before_the_kill: int) -> list[str]:
    """Every complete line the child printed before it died."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(directory), *map(str, starts)], stdout=subprocess.PIPE
    )
    with child:
        lines = [child.stdout.readline() for _ in range(lines_before_the_kill)]
        child.kill()
        lines += child.stdout.readlines()
    return [line.decode().strip() for line in lines if line.endswith(b"\n")]


async def events_in(directory: Path) -> list[str]:
    channels = open_embedded(directory, SystemClock())
    stored = await channels.channel("c").read_after(0, limit=10_000_000)
    await channels.close()
    assert [item.position for item in stored] == list(range(1, len(stored) + 1))
    return [f"{item.event.source[1:]} {item.event.id}" for item in stored]


async def finish_adding(directory: Path, child) -> tuple[int, list[int]]:
    """Lets the reader go on from its last commit; the last position and its final state."""
    channels = open_embedded(directory, SystemClock())
    subscription = await channels.subscribe("c", child.READER)
    assert subscription.position > 0
    last = channels.channel("c").last_position()
    state = subscription.state
    while subscription.position < last:
        batch = await subscription.next_batch()
        state = child.next_state(state, batch)
        await subscription.commit(batch[-1].position, state)
    await channels.close()
    return last, json.loads(state)


@pytest.mark.slow
def test_twenty_kills_under_load_lose_and_repeat_nothing_acknowledged(tmp_path):
    chance = Chance(20260302)
    acknowledged: set[str] = set()
    starts = [0] * PUBLISHERS
    for _round in range(ROUNDS):
        lines = run_and_kill(tmp_path, starts, chance.randint(20, 400))
        acknowledged.update(lines)
        for line in lines:
            publisher, number = map(int, line.split())
            starts[publisher] = max(starts[publisher], number + 1 - RESENT)
        found = asyncio.run(events_in(tmp_path))
        assert len(found) == len(set(found))
        assert acknowledged <= set(found)
    last, state = asyncio.run(finish_adding(tmp_path, load_child()))
    assert state == [last, last * (last + 1) // 2]
