"""Files of event locations: one record per position, so that finding one is arithmetic. [CH-4]

They stand in a directory beside the field index, a million positions per file, mapped into memory.
A query needs a hundred locations at once, and descending a tree for each would cost more than
reading the events. Locations are written and synced before the index records how far they reach.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from rapport.kernel.files import sync_path
from rapport.store.event_locations import LOCATION_BYTES, EventLocation, PackedLocations
from rapport.store.files import disk_error

FILE_BITS = 20
_FILE_POSITIONS = 1 << FILE_BITS
_MOST_MAPPED = 256
"""Files mapped at once; a mapping costs addresses, not memory."""
_LOCATION = np.dtype(
    [
        ("received", "<i8"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("checksum", "<u4"),
        ("back", "<u4"),
    ]
)
"""`back` is the distance from the first position of the segment. A length of 0 marks an unknown
location: no event is empty.
"""
assert _LOCATION.itemsize == LOCATION_BYTES


def pack_locations(
    first: int, segment: int, received: int, offset: int, bodies: Sequence[bytes | memoryview]
) -> PackedLocations:
    """Locations of the events of one block, whose bytes follow each other from `offset` on."""
    locations = np.empty(len(bodies), _LOCATION)
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    locations["received"] = received
    locations["offset"] = offset + np.cumsum(lengths) - lengths
    locations["length"] = lengths
    locations["checksum"] = [crc32(body) for body in bodies]
    locations["back"] = np.arange(first - segment, first - segment + len(bodies))
    return PackedLocations(first, locations.tobytes())


class LocationFiles:
    """The locations of all logs of an index, by the log's number. Thread-safe.

    A file is never cut while it may be mapped, only removed. Methods raise StoreUnavailable.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._guard = threading.Lock()
        self._mapped: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()

    def write(self, log: int, fresh: Sequence[PackedLocations]) -> None:
        """Writes locations, durably when it returns; one write per run of neighbours."""
        by_file: dict[int, list[tuple[int, bytes]]] = {}
        for locations in fresh:
            for position, packed in _split_by_file(locations):
                by_file.setdefault(position >> FILE_BITS, []).append((position, packed))
        try:
            for number, parts in by_file.items():
                self._write(self._path(log, number), parts)
        except OSError as error:
            raise disk_error("cannot write event locations", error) from error

    def find(self, log: int, positions: Sequence[int]) -> list[EventLocation]:
        """The known locations of positions; those of one file stand together."""
        wanted = np.asarray(positions, np.int64)
        numbers = wanted >> FILE_BITS
        found: list[EventLocation] = []
        for number in np.unique(numbers).tolist():
            locations = self._map(log, number)
            if locations is not None:
                here = wanted[numbers == number]
                rows = locations[here & (_FILE_POSITIONS - 1)].tolist()
                found += [
                    EventLocation(position, position - back, received, offset, length, checksum)
                    for position, (received, offset, length, checksum, back) in zip(
                        here.tolist(), rows, strict=True
                    )
                    if length
                ]
        return found

    def drop(self, log: int, *, before: int | None = None) -> None:
        """Removes the files of a log that end before a position; None: all of them."""
        try:
            for path in sorted(self._directory.glob(f"{log}-*")):
                number = int(path.name.partition("-")[2])
                if before is None or (number + 1) << FILE_BITS <= before:
                    with self._guard:
                        self._mapped.pop((log, number), None)
                        path.unlink()
        except OSError as error:
            raise disk_error("cannot remove event locations", error) from error

    def close(self) -> None:
        with self._guard:
            self._mapped.clear()

    def _path(self, log: int, number: int) -> Path:
        return self._directory / f"{log}-{number:09d}"

    def _write(self, path: Path, parts: Sequence[tuple[int, bytes]]) -> None:
        if not self._directory.exists():
            self._directory.mkdir(mode=0o700)
            sync_path(self._directory.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_new = os.fstat(descriptor).st_size == 0
            if is_new:
                os.ftruncate(descriptor, _FILE_POSITIONS * LOCATION_BYTES)  # sparse zeros
            for position, packed in parts:
                offset = (position & (_FILE_POSITIONS - 1)) * LOCATION_BYTES
                while packed:
                    written = os.pwrite(descriptor, packed, offset)
                    offset, packed = offset + written, packed[written:]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_path(self._directory)

    def _map(self, log: int, number: int) -> np.ndarray | None:
        key, path = (log, number), self._path(log, number)
        with self._guard:
            if key in self._mapped:
                self._mapped.move_to_end(key)
                return self._mapped[key]
            try:
                if path.stat().st_size != _FILE_POSITIONS * LOCATION_BYTES:
                    return None  # just being created, or a file of another program
                mapped = np.memmap(path, _LOCATION, "r").view(np.ndarray)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise disk_error("cannot read event locations", error) from error
            while len(self._mapped) >= _MOST_MAPPED:
                self._mapped.popitem(last=False)
            self._mapped[key] = mapped
            return mapped


def _split_by_file(locations: PackedLocations) -> list[tuple[int, bytes]]:
    """(position, packed locations), cut where a file ends."""
    parts, position, packed = [], locations.first, locations.packed
    while packed:
        room = (_FILE_POSITIONS - (position & (_FILE_POSITIONS - 1))) * LOCATION_BYTES
        parts.append((position, packed[:room]))
        position, packed = position + room // LOCATION_BYTES, packed[room:]
    return parts
