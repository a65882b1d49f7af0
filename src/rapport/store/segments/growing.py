"""The one segment file that is written: room reserved ahead, and distrust after a failure. [CH-13]

The one rule of order: a group is written, synced, and only then shown and followed by the next.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from rapport.kernel.telemetry import get_logger
from rapport.store.files import Files, OpenFile
from rapport.store.segments.index import SegmentIndex
from rapport.store.segments.reading import Segment

_log = get_logger(__name__)

_LEAST_ALLOCATED, _MOST_ALLOCATED = 16 * 1024, 4 * 1024 * 1024
"""Room reserved ahead, as much as the segment holds already within these bounds: a small log stays
small. Reserved room makes a sync a third cheaper: the file's size need not change each time.
"""
MOST_OPEN = 256
"""Segment files of one store that are open for writing at the same time."""


class WritePool:
    """The growing segments of a store whose files are open; the least recently used is closed when
    there are too many. For any thread.
    """

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._guard = threading.Lock()
        self._open: OrderedDict[GrowingSegment, None] = OrderedDict()

    def note_use(self, segment: GrowingSegment) -> None:
        """The segment is about to be written and has its file open."""
        with self._guard:
            self._open[segment] = None
            self._open.move_to_end(segment)
            excess = len(self._open) - self._most
            idle = list(islice(self._open, excess)) if excess > 0 else []
        for one in idle:
            if one.release_file():
                self.forget(one)

    def forget(self, segment: GrowingSegment) -> None:
        """The segment has no file open any more."""
        with self._guard:
            self._open.pop(segment, None)


class GrowingSegment:
    """A segment file that is written; `index` tells what of it is whole, durable and shown.

    Used by the thread that appends; the file is opened when it is needed, and may be closed by the
    pool between two writes. Methods raise OSError.
    """

    def __init__(
        self,
        log: str,
        files: Files,
        segment: Segment,
        pool: WritePool,
        index: SegmentIndex,
        *,
        size: int = 0,
    ) -> None:
        """`size`: the bytes the file has, reserved ones too."""
        self.segment, self.index = segment, index
        self._log_name, self._files = log, files
        self._pool, self._busy = pool, threading.Lock()
        self._file: OpenFile | None = None
        self._is_sound = True
        """Whether nothing but reserved room stands behind what is durable."""
        self._allocated = size

    def write(self, pieces: Sequence[bytes], most_bytes: int) -> None:
        """Writes and syncs them behind what is durable; when it fails, nothing of it counts.

        Reserves room up to `most_bytes` of file.
        """
        with self._busy:
            file = self.sound_file()
            self._pool.note_use(self)
            end = self.index.end + sum(map(len, pieces))
            try:
                if end > self._allocated:
                    ahead = min(max(end, _LEAST_ALLOCATED), _MOST_ALLOCATED)
                    self._allocated = max(min(end + ahead, most_bytes), end)
                    file.allocate(self._allocated)
                file.write_at(self.index.end, *pieces)
                file.sync()
            except OSError:
                self._distrust()
                raise

    def sound_file(self) -> OpenFile:
        """The file; opened anew and cut to what is durable when the last write failed."""
        if self._file is None:
            file = self._files.open(self.segment.path)
            try:
                if not self._is_sound:
                    file.truncate(self.index.end)
                    file.sync()
                    self._is_sound, self._allocated = True, self.index.end
            except OSError:
                file.close()
                raise
            self._file = file
        return self._file

    def give_back_room(self) -> None:
        """Cuts reserved room off."""
        # Unsynced on purpose: reserved zeros that come back after a power cut do no harm.
        self.sound_file().truncate(self.index.end)
        self._allocated = self.index.end

    def release_file(self) -> bool:
        """Closes the file unless it is being written just now; whether it is closed."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            self._close_file()
        finally:
            self._busy.release()
        return True

    def close(self) -> None:
        """Closes the file; a second call is no error."""
        self._close_file()
        self._pool.forget(self)

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _distrust(self) -> None:
        """A failed write leaves anything behind: it is cut now, or before the next append."""
        self._close_file()
        self._is_sound = False
        try:
            self.sound_file()
        except OSError as error:
            _log.warning("tail not cut yet", log=self._log_name, error=str(error))
