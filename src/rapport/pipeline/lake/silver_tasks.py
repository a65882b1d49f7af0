"""How a stretch of bronze is cut into tasks: by folder, and large folders by position. [PI-3]"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from rapport.pipeline.lake.bronze_files import bronze_files
from rapport.pipeline.lake.manifest import Unread
from rapport.pipeline.lake.places import position_range
from rapport.pipeline.lake.silver_parts import PartTask

BYTES_PER_TASK = 4 * 1024 * 1024
"""Of compressed files: some 200,000 events, a second's work and about 200 MB of a worker."""
_MOST_CUTS = 64


class Lot(msgspec.Struct, frozen=True):
    """Files of which positions after one up to another are taken."""

    files: list[Path]
    after: int
    upto: int


def lots_of(lake: Path, channel: str, after: int, upto: int) -> Iterator[Lot]:
    """The files of a channel that hold positions in (after, upto], in lots of about equal size."""
    folders: dict[Path, list[Path]] = {}
    for path in bronze_files(lake, channel, after, upto):
        folders.setdefault(path.parent, []).append(path)
    for files in folders.values():
        yield from _cut(files, after, upto)


def lots_again(lake: Path, channel: str, unread: Sequence[Unread]) -> Iterator[Lot]:
    """What could not be read before, each file alone."""
    for one in unread:
        if one.channel == channel:
            yield Lot([lake / one.file], one.after, one.upto)


def make_tasks(lots: Sequence[Lot], folder: Callable[[], Path]) -> list[PartTask]:
    """A task for each lot, with a folder of its own."""
    return [
        PartTask(
            number=number,
            files=[str(path) for path in lot.files],
            after=lot.after,
            upto=lot.upto,
            folder=str(folder()),
        )
        for number, lot in enumerate(lots)
    ]


def _cut(files: Sequence[Path], after: int, upto: int) -> Iterator[Lot]:
    ranges = [held for path in files if (held := position_range(path)) is not None]
    first = max(after, min(held[0] for held in ranges) - 1)
    last = min(upto, max(held[1] for held in ranges))
    size = sum(path.stat().st_size for path in files)
    cuts = max(1, min(-(-size // BYTES_PER_TASK), _MOST_CUTS, last - first))
    bounds = [first + (last - first) * number // cuts for number in range(cuts + 1)]
    for begin, end in pairwise(bounds):
        own = [
            path
            for path, held in zip(files, ranges, strict=True)
            if held[1] > begin and held[0] <= end
        ]
        if own:
            yield Lot(own, begin, end)
