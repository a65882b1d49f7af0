"""Kills while segments go to the lake and then from the log: each event is in the lake once, and
nothing went from the log that was not there. [CH-16]
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from rapport.kernel.clock import Chance
from rapport.lake.bronze import export_channels, exported_position
from rapport.lake.places import Lake

CHILD = Path(__file__).with_name("export_child.py")
ROUNDS = 6


def load_child():
    spec = importlib.util.spec_from_file_location("export_child", CHILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_and_kill(directory: Path, start: int, lines_before_the_kill: int) -> int:
    """The last number the child acknowledged before it died."""
    command = [sys.executable, str(CHILD), str(directory), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        lines = [child.stdout.readline() for _ in range(lines_before_the_kill)]
        child.kill()
        lines += child.stdout.readlines()
    return max(int(line) for line in lines if line.endswith(b"\n"))


def rows_of(lake: Path) -> list[tuple[int, str]]:
    frame = pl.read_delta(str(lake / "bronze" / "c"))
    return sorted(frame.select("position", "id").iter_rows())


async def look(child, directory: Path) -> tuple[int, int]:
    """First and last position of the log, which begins no later than the lake ends."""
    channels = child.open_small(directory)
    channel = channels.channel("c")
    first, last = channel.first_position(), channel.last_position()
    assert first <= exported_position(Lake.at(directory / "lake"), "c") + 1
    await channels.close()
    return first, last


async def finish(child, directory: Path) -> None:
    channels = child.open_small(directory)
    await export_channels(channels, directory / "lake")
    await channels.close()


@pytest.mark.slow
def test_a_killed_exporter_gives_each_event_once(tmp_path: Path) -> None:
    chance, child, acknowledged, first = Chance(20261115), load_child(), -1, 0
    for _round in range(ROUNDS):
        wanted = chance.randint(100, 2_500)
        acknowledged = run_and_kill(tmp_path, acknowledged + 1, wanted)
        first, last = asyncio.run(look(child, tmp_path))
        # What was durable when the child died, but not acknowledged, is published again and known.
        assert last > acknowledged
    asyncio.run(finish(child, tmp_path))
    rows = rows_of(tmp_path / "lake")
    assert first > 1, "nothing was let go of: the test shows less than it should"
    assert [position for position, _id in rows] == list(range(1, last + 1))
    assert [int(number) for _position, number in rows] == list(range(last))
