"""Where things lie in the lake: layers, partitions, and the names of files. [PI-3]

`silver/stream=<concept.attribute>/day=<event time>/<first>-<last>.parquet`; positions of the
channel in the names, so that a file says what it can hold without being opened.
`gold/grid=<experiment>/<point>.parquet`: a file for each point of a grid of experiments.
"""

from __future__ import annotations

import re
from collections.abc import Container
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rapport.channel.export.parquet_files import BRONZE, partition_name
from rapport.core.times import format_time

SILVER = "silver"
GOLD = "gold"
QUARANTINED = "quarantined"
DETECTED = "detected"
GRID = "grid"
WORK = ".work"
"""Beside the layers, so that no pattern over a layer sees what is not there yet."""
MANIFEST = "_manifest.json"
SIDECAR = "_table.json"

DAY_MS = 86_400_000
BEFORE, BEYOND = "before", "beyond"
"""Days of times that no calendar names: before the year 1, after the year 9999."""

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_RANGE = re.compile(r"(\d{20})-(\d{20})(?:\.\d+)?\.parquet\Z")
_POINT = re.compile(r"([0-9a-f]{32})\.parquet\Z")
_DAY = re.compile(r"-?\d{4}-\d\d-\d\d\Z")


def day_numbers(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Days since 1970; all times that no calendar names share a number on either side."""
    return np.clip(times // DAY_MS, _FIRST_DAY - 1, _LAST_DAY + 1)


def day_text(number: int) -> str:
    """The day's name in partitions.

    >>> day_text(0), day_text(-1), day_text(10**9)
    ('1970-01-01', '1969-12-31', 'beyond')
    """
    if number < _FIRST_DAY:
        return BEFORE
    return BEYOND if number > _LAST_DAY else format_time(number * DAY_MS)[:10]


def day_number(text: str) -> int | None:
    """The number of a day by its name in a partition; None for what is no day."""
    if text in (BEFORE, BEYOND):
        return _FIRST_DAY - 1 if text == BEFORE else _LAST_DAY + 1
    if not _DAY.match(text):
        return None
    try:
        return int(np.datetime64(text, "D").astype(np.int64))
    except ValueError:
        return None


def file_name(first: int, last: int) -> str:
    """The name of a file that holds positions `first` to `last`.

    >>> file_name(1, 400)
    '00000000000000000001-00000000000000000400.parquet'
    """
    return f"{first:020d}-{last:020d}.parquet"


def free_name(first: int, last: int, taken: Container[str]) -> str:
    """The name of a file beside others, with a number where one has it: tables of what several
    channels tell hold the same positions more than once.

    >>> free_name(1, 400, {file_name(1, 400)})
    '00000000000000000001-00000000000000000400.2.parquet'
    """
    name = file_name(first, last)
    numbered = (f"{name.removesuffix('.parquet')}.{number}.parquet" for number in count(2))
    while name in taken:
        name = next(numbered)
    return name


def position_range(path: Path) -> tuple[int, int] | None:
    """First and last position that a file's name tells; None for a name that is not ours."""
    found = _RANGE.match(path.name)
    return None if found is None else (int(found[1]), int(found[2]))


def channel_folder(lake: Path, channel: str) -> Path:
    """Where bronze keeps a channel."""
    return lake / BRONZE / partition_name("channel", channel)


def stream_folder(lake: Path, stream: str) -> Path:
    """Where silver keeps a stream."""
    return lake / SILVER / partition_name("stream", stream)


def table_folder(lake: Path, table: str) -> Path:
    """Where a table that a job keeps lies: a stream, `quarantined`, or `detected`."""
    if table == DETECTED:
        return lake / GOLD / DETECTED
    return lake / SILVER / QUARANTINED if table == QUARANTINED else stream_folder(lake, table)


def stream_folders(lake: Path) -> list[Path]:
    """The folders of all streams."""
    return sorted(path for path in (lake / SILVER).glob("stream=*") if path.is_dir())


def grid_folder(lake: Path, name: str) -> Path:
    """Where gold keeps the results of a grid of experiments."""
    return lake / GOLD / partition_name(GRID, name)


def grid_folders(lake: Path) -> list[Path]:
    """The folders of all grids."""
    return sorted(path for path in (lake / GOLD).glob(f"{GRID}=*") if path.is_dir())


def point_name(id: str) -> str:
    """The name of the file of a point of a grid."""
    return f"{id}.parquet"


def point_id(path: Path) -> str | None:
    """The point that a file of a grid holds; None for a name that is not ours."""
    found = _POINT.match(path.name)
    return None if found is None else found[1]


def day_folder(table: Path, number: int) -> Path:
    """The partition of a day in a table of silver or gold."""
    return table / partition_name("day", day_text(number))


def folder_day(folder: Path) -> str:
    """The day that a partition's folder names, empty when it names none."""
    return next((part[4:] for part in reversed(folder.parts) if part.startswith("day=")), "")


def data_files(folder: Path) -> list[Path]:
    """The Parquet files of a table or partition by name; hidden ones are not of the lake."""
    found = (path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_")))
    return sorted(found, key=lambda path: (path.name, str(path)))


def leaf_folders(table: Path) -> list[Path]:
    """The folders of a table that hold files."""
    return sorted({path.parent for path in data_files(table)})
