"""The segment files of one log: which there are, their indexes and sizes, what is damaged. [CH-13]

Knows closed segments and the names of all; the bytes of the growing one are `segment_growing.py`'s.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from rapport.kernel.telemetry import get_logger
from rapport.store.files import Files
from rapport.store.segments.index import SegmentIndex
from rapport.store.segments.leftovers import leftovers_in
from rapport.store.segments.reading import Fault, Segment, hole_fault, load_index, segments_in

_log = get_logger(__name__)
_MOST_FAULTS = 1000


class SegmentShelf:
    """All segments of a log, oldest first; the last one grows. One thread changes it, any may look.

    Methods that touch files raise OSError.
    """

    def __init__(self, log: str, directory: Path, files: Files) -> None:
        self.log, self.files = log, files
        self.guard = threading.Lock()
        """Held while the list of segments, or how far the last one reaches, is read or changed."""
        self.faults: dict[tuple[str, int], Fault] = {}
        self.directory = directory
        self._index_guard = threading.Lock()
        self._closed_bytes: int | None = None
        self.segments = segments_in(files, directory)
        self._clear_leftovers()
        if not self.segments:
            self.segments = [self.begin(1)]

    @property
    def growing(self) -> Segment:
        """The last one."""
        return self.segments[-1]

    def begin(self, first: int) -> Segment:
        """Makes the file of a new segment, its name durable; it is not on the shelf yet."""
        segment = Segment(self.directory, first)
        self.files.open(segment.path).close()
        self.files.sync_directory(self.directory)
        return segment

    def put(self, segment: Segment, *, former_bytes: int) -> None:
        """Lets a new segment grow behind the present one, which is closed with so many bytes; the
        caller holds the guard.
        """
        if self._closed_bytes is not None:
            self._closed_bytes += former_bytes
        self.growing.size = former_bytes
        self.segments.append(segment)

    def number_of(self, position: int) -> int:
        """Index of the segment that holds a position, of the oldest when it is gone."""
        return max(bisect_right(self.segments, position, key=lambda segment: segment.first) - 1, 0)

    def path_of(self, first: int) -> Path | None:
        """The file of the segment that begins at a position; None when it is let go."""
        with self.guard:
            segment = self.segments[self.number_of(first)]
        return segment.path if segment.first == first else None

    # --- closed segments --------------------------------------------------------------------------

    def closed_index(self, segment: Segment) -> SegmentIndex:
        """The index of a closed segment, read or made when first asked for."""
        with self._index_guard:
            if segment.index is None:
                index, rebuilt = load_index(self.files, segment, self._end_of(segment))
                for hole in index.holes:
                    self.report(hole_fault(self.log, segment, hole))
                if rebuilt:
                    self.save_index(segment, index)
                segment.index = index
            return segment.index

    def _end_of(self, segment: Segment) -> int:
        """First position behind a closed segment."""
        with self.guard:
            for closed, following in pairwise(self.segments):
                if closed is segment:
                    return following.first
        raise FileNotFoundError(segment.path)

    def size_of(self, segment: Segment) -> int:
        """Bytes of a closed segment, 0 when its file is missing; looks at the file once."""
        if segment.size is None:
            try:
                file = self.files.open_to_read(segment.path)
            except FileNotFoundError:
                return 0
            try:
                segment.size = file.size()
            finally:
                file.close()
        return segment.size

    def closed_bytes(self) -> int:
        """Bytes of all closed segments; looks at every file once, then counts along."""
        if self._closed_bytes is None:
            self._closed_bytes = sum(self.size_of(one) for one in self.segments[:-1])
        return self._closed_bytes

    def remove_oldest(self) -> None:
        """Takes the oldest segment off the shelf and off the disk, durably; it must be closed."""
        gone = self.segments[0]
        size = self.size_of(gone) if self._closed_bytes is not None else 0
        with self.guard:
            self.segments = self.segments[1:]
        try:
            # The index first, durably: one that is left alone tells of a segment that was lost.
            for path in (gone.index_path, gone.path):
                with suppress(FileNotFoundError):
                    self.files.remove(path)
                    self.files.sync_directory(self.directory)
        except OSError:
            if gone.path.name in self.files.names(self.directory):
                with self.guard:
                    self.segments = [gone, *self.segments]
            raise
        if self._closed_bytes is not None:
            self._closed_bytes -= size
        self.faults = {key: one for key, one in self.faults.items() if key[0] != str(gone.path)}
        self._clear_leftovers()

    def _clear_leftovers(self) -> None:
        """Removes what belonged to segments that are gone; the next start would do it, too."""
        for path in leftovers_in(self.files, self.directory, self.segments):
            self.files.remove(path)

    # --- what is kept beside them -----------------------------------------------------------------

    def save_index(self, segment: Segment, index: SegmentIndex, *, durable: bool = False) -> None:
        """No error when it fails: an index that is lost or half there is made again.

        At a clean close its name is made durable: it then proves that the last group was whole, so
        that rot in it is not mistaken for a write cut short.
        """
        try:
            self.write_index(segment, index, durable=durable)
        except OSError as error:
            path = str(segment.index_path)
            _log.warning("index not saved", log=self.log, path=path, error=str(error))

    def write_index(self, segment: Segment, index: SegmentIndex, *, durable: bool) -> None:
        """The same for an index that has to be there."""
        fresh = segment.index_path.with_suffix(".index-new")
        file = self.files.open(fresh)
        try:
            file.truncate(0)
            file.write_at(0, index.encode())
            # Before the rename, or a power cut could leave an empty file in place of a good one.
            file.sync()
        finally:
            file.close()
        self.files.rename(fresh, segment.index_path)
        if durable:
            self.files.sync_directory(self.directory)

    def report(self, fault: Fault) -> None:
        """Keeps a fault and tells of it, once."""
        key = (fault.path, fault.offset)
        if key not in self.faults and len(self.faults) < _MOST_FAULTS:
            self.faults[key] = fault
            _log.warning("log damaged", error=fault.as_error().message)
