"""Reading single events out of segment files, without the blocks around them. [CH-4]"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol
from zlib import crc32

from rapport.store.fields.spots import Spot
from rapport.store.files import Files, OpenFile
from rapport.store.segments.reading import PlacedBlock

_MOST_FILES = 64

PathOf = Callable[[int], Path | None]


class PlacedLogs(Protocol):
    """Logs that can say where a block stands and read a part of it."""

    def read_placed(
        self, log: str, position: int, *, max_records: int = 10_000
    ) -> list[PlacedBlock]:
        """As `LogStore.read_after`, each block with its place."""

    def read_spots(self, log: str, spots: Sequence[Spot]) -> list[bytes | None]:
        """The bytes of each spot; None where they are not what was indexed, or gone."""


class SpotFiles:
    """Segment files kept open for reading, the least recently used closed first. For any thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._guard = threading.Lock()
        self._open: OrderedDict[tuple[str, int], OpenFile] = OrderedDict()

    def read(self, log: str, spots: Sequence[Spot], path_of: PathOf) -> list[bytes | None]:
        """See PlacedLogs. One read per spot."""
        bodies: list[bytes | None] = []
        segment, file = 0, None
        with self._guard:
            for spot in spots:
                if spot.segment != segment or file is None:
                    segment, file = spot.segment, self._file(log, spot.segment, path_of)
                bodies.append(None if file is None else _sound(file, spot))
        return bodies

    def close(self, log: str | None = None) -> None:
        """Closes the files of a log, or all."""
        with self._guard, ExitStack() as closing:
            for key in [key for key in self._open if log in (None, key[0])]:
                closing.callback(self._open.pop(key).close)

    def _file(self, log: str, segment: int, path_of: PathOf) -> OpenFile | None:
        key = (log, segment)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        path = path_of(segment)
        if path is None:
            return None
        if len(self._open) >= _MOST_FILES:
            self._open.popitem(last=False)[1].close()
        try:
            self._open[key] = self._files.open_to_read(path)
        except OSError:
            return None
        return self._open[key]


def _sound(file: OpenFile, spot: Spot) -> bytes | None:
    """The bytes; None when they are not what was indexed. The caller then reads the whole block,
    which tells what is wrong.
    """
    try:
        body = file.read_at(spot.offset, spot.length)
    except OSError:
        return None
    return body if crc32(body) == spot.checksum and len(body) == spot.length else None
