"""Locations of single events in segment files, and reading them without the blocks around. [CH-4]

The matches of a query lie far apart. Reading and checking the whole block around each match would
cost a hundred times what the event does, so every location has a checksum of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

import msgspec

from rapport.store.files import Files, OpenFile

LOCATION_BYTES = 24
"""Bytes of one packed location, see `location_files.py`."""
_MOST_FILES = 64

PathOf = Callable[[int], Path | None]
"""From the first position of a segment to its file; None when the segment is gone."""


class EventLocation(msgspec.Struct, frozen=True, gc=False):
    """The bytes of one event: segment (by its first position), offset in its file, length."""

    position: int
    segment: int
    received: int
    offset: int
    length: int
    checksum: int


class PackedLocations(msgspec.Struct, frozen=True):
    """Locations of consecutive events from position `first` on."""

    first: int
    packed: bytes

    @property
    def last(self) -> int:
        return self.first + len(self.packed) // LOCATION_BYTES - 1


class EventReader:
    """Segment files kept open for reading, the least recently used closed first. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._guard = threading.Lock()
        self._open: OrderedDict[tuple[str, int], OpenFile] = OrderedDict()

    def read(
        self, log: str, locations: Sequence[EventLocation], path_of: PathOf
    ) -> list[bytes | None]:
        """The bytes at each location; None where they are gone, or not those that were indexed."""
        bodies: list[bytes | None] = []
        segment, file = 0, None
        with self._guard:
            for location in locations:
                if location.segment != segment or file is None:
                    segment, file = location.segment, self._file(log, location.segment, path_of)
                bodies.append(None if file is None else _read_checked(file, location))
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


def _read_checked(file: OpenFile, location: EventLocation) -> bytes | None:
    """None for bytes that fail the checksum: reading the whole block reports the damage."""
    try:
        body = file.read_at(location.offset, location.length)
    except OSError:
        return None
    is_sound = crc32(body) == location.checksum and len(body) == location.length
    return body if is_sound else None
