"""The secure building as recorded Parquet files of any length, a million readings to a file. [PI-5]

Each file is a walk of its own that begins where the one before ended, so a history is a beginning
of every longer one, and nothing is ever whole in memory. Rows stand as they arrived: up to a second
and a half late, less than a back-test waits.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.policy.building import ONTOLOGY, STREAM, Building, walk
from benchmarks.policy.parts import PEOPLE, ROOMS, SEED, say
from rapport.pipeline.backtest.pieces import History
from rapport.pipeline.backtest.recorded_history import recorded_history
from rapport.policy.ontology import PushSource
from rapport.policy.replay.replay import Recording

LATENESS_MS = 2_000
PER_FILE = 1_000_000
_MOST_DELAY_MS = 1_500
_MEAN_DELAY_MS = 150.0
_ROW_GROUP = 131_072


class Recorded(NamedTuple):
    """A folder of files, how many readings are in them, and a name for exactly these."""

    folder: Path
    events: int
    digest: str


def building() -> Building:
    """The people and rooms of the workload."""
    return Building(PEOPLE, ROOMS, SEED)


def record(folder: Path, events: int, per_file: int = PER_FILE) -> Recorded:
    """Writes the files of one history; about a million readings per second."""
    folder.mkdir(parents=True)
    digest, shift = hashlib.blake2b(digest_size=8), 0
    for number, first in enumerate(range(0, events, per_file)):
        rows, name, shift = _part(number, first, min(per_file, events - first), shift)
        digest.update(name.encode())
        pq.write_table(
            rows, folder / f"{number:04}.parquet", row_group_size=_ROW_GROUP, compression="zstd"
        )
    made = Recorded(folder, events, digest.hexdigest())
    say(f"{events:,} readings recorded, seed {SEED}, digest {made.digest}")
    return made


def beginning(recorded: Recorded, folder: Path, events: int, per_file: int = PER_FILE) -> Recorded:
    """The first files of a history as one of their own, without copying."""
    folder.mkdir(parents=True)
    for file in sorted(recorded.folder.iterdir())[: -(-events // per_file)]:
        (folder / file.name).hardlink_to(file)
    return Recorded(folder, events, recorded.digest)


def history_of(folder: Path) -> History:
    """The files as a back-test reads them."""
    return recorded_history(ONTOLOGY, str(folder), folder, "positions", _never)


def _part(number: int, first: int, count: int, shift: int) -> tuple[pa.Table, str, int]:
    """The rows of a file, a name for them, and by how much the next one is later."""
    work = walk(PEOPLE, ROOMS, count, SEED + 2 * number)
    times = work.readings.column("time").to_numpy() + shift
    chance = np.random.default_rng([SEED, number])
    delays = np.minimum(chance.exponential(_MEAN_DELAY_MS, count), _MOST_DELAY_MS)
    order = np.argsort(times + delays.astype(np.int64), kind="stable")
    arrived = pa.array(order)
    ids = pa.array(np.arange(first, first + count)).cast(pa.string())
    columns = {
        "id": ids.take(arrived),
        "time": pa.array(times[order]),
        "person": work.readings.column("key").take(arrived),
        "x": work.readings.column(f"{STREAM}.x").take(arrived),
        "y": work.readings.column(f"{STREAM}.y").take(arrived),
    }
    # The next file begins with times that nothing of this one makes late.
    return pa.table(columns), work.digest, int(times[-1]) - 1_000_000 + 1


def _never(source: PushSource, file: Path) -> Recording:
    raise AssertionError(f"{source.name} has no interpretation, {file} needs none")
