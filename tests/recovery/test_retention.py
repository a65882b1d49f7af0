"""A sweep cut short at any step: nothing else is lost, and the next one finishes it. [CH-14]"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.core.errors import StoreUnavailable
from rapport.kernel.clock import Chance
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk

CHILD = Path(__file__).with_name("retention_child.py")
STORE = Path("/data/store")
ROUNDS = 8


def load_child():
    spec = importlib.util.spec_from_file_location("retention_child", CHILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_and_kill(directory: Path, start: int, lines_before_the_kill: int) -> list[int]:
    """Every number the child acknowledged before it died."""
    command = [sys.executable, str(CHILD), str(directory), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        lines = [child.stdout.readline() for _ in range(lines_before_the_kill)]
        child.kill()
        lines += child.stdout.readlines()
    return [int(line) for line in lines if line.endswith(b"\n")]


async def look(directory: Path, child, acknowledged: int) -> None:
    """What is kept is a whole end of the log, with everything the reader has not had."""
    channels = child.open_small(directory)
    channel = channels.channel("c")
    subscription = await channels.subscribe("c", child.READER)
    await channels.sweeper.sweep_all()
    kept = await channel.read_after(0, limit=1_000_000)
    positions = [item.position for item in kept]
    assert positions == list(range(positions[0], channel.last_position() + 1))
    assert positions[0] <= subscription.position + 1
    assert [int(item.event.id) for item in kept] == [position - 1 for position in positions]
    assert positions[-1] > acknowledged
    for name in (directory / "logs" / "c").iterdir():
        assert int(name.name.partition(".")[0]) >= positions[0], "a leftover of a trimmed segment"
    await channels.close()


async def finish_adding(directory: Path, child) -> tuple[int, list[int]]:
    channels = child.open_small(directory)
    subscription = await channels.subscribe("c", child.READER)
    last = channels.channel("c").last_position()
    state = subscription.state
    while subscription.position < last:
        batch = await subscription.next_batch()
        state = child.next_state(state, batch)
        await subscription.commit(batch[-1].position, state)
    assert subscription.skipped == 0
    await channels.close()
    return last, json.loads(state)


@pytest.mark.slow
def test_kills_during_sweeps_lose_nothing_that_a_reader_waits_for(tmp_path):
    chance, child, acknowledged = Chance(20260302), load_child(), -1
    for _round in range(ROUNDS):
        numbers = run_and_kill(tmp_path, max(acknowledged - 9, 0), chance.randint(50, 1_500))
        acknowledged = max(acknowledged, *numbers)
        asyncio.run(look(tmp_path, child, acknowledged))
    last, state = asyncio.run(finish_adding(tmp_path, child))
    assert state == [last, last * (last + 1) // 2]


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_at_any_step_of_a_trim_leaves_a_whole_end_of_the_log(seed):
    steps, is_done = 0, False
    while not is_done:
        disk = ForgetfulDisk()
        store = SegmentLogStore(STORE, files=disk, segment_bytes=300)
        for number in range(20):
            store.append("c", [(1, b"x" * 100)], number)
        disk.steps_left = steps
        try:
            store.trim("c", 15)
            is_done = True
        except StoreUnavailable:
            steps += 1
        disk.cut_power(Chance(seed * 1_000 + steps))
        again = SegmentLogStore(STORE, files=disk, segment_bytes=300)
        first = again.first_position("c")
        kept = [block.first for block in again.read_after("c", 0)]
        assert kept == list(range(first, 21))
        assert first <= 15
        assert not [one for one in again.problems() if "missing" in one.message]
        again.trim("c", 15)
        assert again.first_position("c") > 12
        names = disk.names(STORE / "logs" / "c")
        assert min(int(name.partition(".")[0]) for name in names) == again.first_position("c")
        again.close()
    assert steps > 5


def test_what_was_put_aside_goes_with_its_segment_and_not_before(tmp_path):
    store = SegmentLogStore(tmp_path, segment_bytes=300)
    for number in range(10):
        store.append("c", [(1, b"x" * 100)], number)
    directory = tmp_path / "logs" / "c"
    segments = sorted(path for path in directory.iterdir() if path.suffix == ".log")
    for segment in (segments[0], segments[-1]):
        segment.with_suffix(".cut-7").write_bytes(b"torn")
    orphan = directory / "00000000000000000000.index-new"
    orphan.write_bytes(b"")
    store.close()
    store = SegmentLogStore(tmp_path, segment_bytes=300)
    store.trim("c", 9)
    names = {path.name for path in directory.iterdir()}
    assert segments[-1].with_suffix(".cut-7").name in names
    assert segments[0].with_suffix(".cut-7").name not in names
    assert orphan.name not in names
    store.close()
