"""Spots of events on disk: one record per position, so that finding one is arithmetic. [CH-4]

Kept beside the file of the field index in pieces of a million positions, mapped into memory: a
query asks for a hundred spots at once, and a descent of a tree for each costs more than reading the
events. Written and synced before the index says how far they reach.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rapport.kernel.files import sync_path
from rapport.store.fields.packing import SPOT, unpack_spots
from rapport.store.fields.spots import SPOT_BYTES, Spot, Spots
from rapport.store.segments.reading import disk_refused

PIECE_BITS = 20
_PIECE = 1 << PIECE_BITS
_MOST_MAPPED = 256
"""Pieces mapped at once; a mapping costs addresses, not memory."""


class SpotPlaces:
    """The spots of all logs of an index, by the log's number. For any thread.

    A piece is never cut while it may be mapped, only removed. Methods raise StoreUnavailable.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._guard = threading.Lock()
        self._mapped: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()

    def keep(self, log: int, fresh: Sequence[Spots]) -> None:
        """Writes spots; durable when it returns. One write per piece of neighbours."""
        by_piece: dict[int, list[tuple[int, bytes]]] = {}
        for spots in fresh:
            for place, packed in _cut(spots):
                by_piece.setdefault(place >> PIECE_BITS, []).append((place, packed))
        try:
            for piece, parts in by_piece.items():
                self._write(self._path(log, piece), parts)
        except OSError as error:
            raise disk_refused("cannot keep where events stand", error) from error

    def find(self, log: int, positions: Sequence[int]) -> list[Spot]:
        """The spots of positions, as far as known; positions of one piece stand together."""
        asked = np.asarray(positions, np.int64)
        pieces = asked >> PIECE_BITS
        found: list[Spot] = []
        for piece in np.unique(pieces).tolist():
            spots = self._piece(log, piece)
            if spots is not None:
                here = asked[pieces == piece]
                found += unpack_spots(here.tolist(), spots[here & (_PIECE - 1)])
        return found

    def drop(self, log: int, *, before: int | None = None) -> None:
        """Removes the pieces of a log that end before a position; None: all of them."""
        try:
            for path in sorted(self._directory.glob(f"{log}-*")):
                piece = int(path.name.partition("-")[2])
                if before is None or (piece + 1) << PIECE_BITS <= before:
                    with self._guard:
                        self._mapped.pop((log, piece), None)
                        path.unlink()
        except OSError as error:
            raise disk_refused("cannot let go of where events stand", error) from error

    def close(self) -> None:
        """Lets go of all mappings."""
        with self._guard:
            self._mapped.clear()

    def _path(self, log: int, piece: int) -> Path:
        return self._directory / f"{log}-{piece:09d}"

    def _write(self, path: Path, parts: Sequence[tuple[int, bytes]]) -> None:
        if not self._directory.exists():
            self._directory.mkdir(mode=0o700)
            sync_path(self._directory.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_new = os.fstat(descriptor).st_size == 0
            if is_new:
                os.ftruncate(descriptor, _PIECE * SPOT_BYTES)  # zeros that need no room
            for place, packed in parts:
                _write_at(descriptor, (place & (_PIECE - 1)) * SPOT_BYTES, packed)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_path(self._directory)

    def _piece(self, log: int, piece: int) -> np.ndarray | None:
        """A piece, mapped; None when there is none."""
        key, path = (log, piece), self._path(log, piece)
        with self._guard:
            if key in self._mapped:
                self._mapped.move_to_end(key)
                return self._mapped[key]
            try:
                if path.stat().st_size != _PIECE * SPOT_BYTES:
                    return None  # being made at this moment, or nothing of ours
                mapped = np.memmap(path, SPOT, "r").view(np.ndarray)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise disk_refused("cannot look up where events stand", error) from error
            while len(self._mapped) >= _MOST_MAPPED:
                self._mapped.popitem(last=False)
            self._mapped[key] = mapped
            return mapped


def _cut(spots: Spots) -> list[tuple[int, bytes]]:
    """(position, packed spots), cut where a piece ends."""
    parts, place, packed = [], spots.first, spots.packed
    while packed:
        room = (_PIECE - (place & (_PIECE - 1))) * SPOT_BYTES
        parts.append((place, packed[:room]))
        place, packed = place + room // SPOT_BYTES, packed[room:]
    return parts


def _write_at(descriptor: int, offset: int, data: bytes) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        offset, data = offset + written, data[written:]
