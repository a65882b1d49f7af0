"""The one segment file that is written: room reserved ahead, and distrust after a failure. [CH-13]

The one rule of order: a group is written, synced, and only then shown and followed by the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.kernel.telemetry import get_logger
from rapport.store.files import Files, OpenFile
from rapport.store.segments.index import SegmentIndex
from rapport.store.segments.reading import Segment

_log = get_logger(__name__)

_ALLOCATE_BYTES = 4 * 1024 * 1024
"""Room reserved ahead. Reserved room makes a sync a third cheaper: the file's size need not change
each time.
"""


class GrowingSegment:
    """A segment file open for writing; `index` tells what of it is whole, durable and shown.

    Used by the thread that appends. Methods raise OSError.
    """

    def __init__(
        self,
        log: str,
        files: Files,
        segment: Segment,
        file: OpenFile,
        index: SegmentIndex,
        *,
        size: int = 0,
    ) -> None:
        """`size`: the bytes the file has, reserved ones too."""
        self.segment, self.index = segment, index
        self._log_name, self._files = log, files
        self._file: OpenFile | None = file
        self._allocated = size

    def write(self, pieces: Sequence[bytes], most_bytes: int) -> None:
        """Writes and syncs them behind what is durable; when it fails, nothing of it counts.

        Reserves room up to `most_bytes` of file.
        """
        file = self.sound_file()
        end = self.index.end + sum(map(len, pieces))
        try:
            if end > self._allocated:
                self._allocated = max(min(end + _ALLOCATE_BYTES, most_bytes), end)
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
                file.truncate(self.index.end)
                file.sync()
            except OSError:
                file.close()
                raise
            self._file, self._allocated = file, self.index.end
        return self._file

    def give_back_room(self) -> None:
        """Cuts reserved room off."""
        # Unsynced on purpose: reserved zeros that come back after a power cut do no harm.
        self.sound_file().truncate(self.index.end)

    def close(self) -> None:
        """Closes the file; a second call is no error."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _distrust(self) -> None:
        """A failed write leaves anything behind: it is cut now, or before the next append."""
        self.close()
        try:
            self.sound_file()
        except OSError as error:
            _log.warning("tail not cut yet", log=self._log_name, error=str(error))
