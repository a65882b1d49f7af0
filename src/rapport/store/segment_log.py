"""One log as segment files: appending groups with one sync, reading, trimming. [CH-13]

`SegmentDirectory` knows the files of a log, `ActiveSegment` writes the last one, `SegmentLog` maps
positions to both. The one rule of order: a group is written and synced, and only then shown to
readers and followed by the next.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path

from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    MAX_BODY_BYTES,
    READ_BYTES,
    Block,
    LogPiece,
    check_contiguous,
    check_sizes,
    place_blocks,
)
from rapport.store.files import Files, OpenFile, disk_error, replace_whole
from rapport.store.segment_files import (
    HEADER_BYTES,
    LocatedBlock,
    Segment,
    SegmentFault,
    SegmentIndex,
    encode_header,
    gap_reason,
    hole_fault,
    load_index,
    orphan_files,
    read_blocks,
    recover,
    segments_in,
)

_log = get_logger(__name__)

_LEAST_ALLOCATED, _MOST_ALLOCATED = 16 * 1024, 4 * 1024 * 1024
"""Room reserved ahead, as much as the segment holds already within these bounds: a small log stays
small. Reserved room makes a sync a third cheaper: the file's size need not change each time.
"""
MOST_OPEN = 256
"""Segment files of one store that are open for writing at the same time."""


class OpenSegments:
    """The active segments of a store whose files are open; the least recently used file is closed
    when there are too many. Thread-safe.
    """

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._guard = threading.Lock()
        self._open: OrderedDict[ActiveSegment, None] = OrderedDict()

    def note_use(self, segment: ActiveSegment) -> None:
        """Registers a segment that is about to be written and has its file open."""
        with self._guard:
            self._open[segment] = None
            self._open.move_to_end(segment)
            excess = len(self._open) - self._most
            idle = list(islice(self._open, excess)) if excess > 0 else []
        for one in idle:
            if one.release_file():
                self.forget(one)

    def forget(self, segment: ActiveSegment) -> None:
        """Drops a segment whose file is closed."""
        with self._guard:
            self._open.pop(segment, None)


class ActiveSegment:
    """The last segment file of a log; `index` covers the groups that are durable and shown.

    Used by the thread that appends. The file is opened when needed, and OpenSegments may close it
    between two writes. Methods raise OSError.
    """

    def __init__(
        self,
        log: str,
        files: Files,
        segment: Segment,
        pool: OpenSegments,
        index: SegmentIndex,
        *,
        size: int = 0,
    ) -> None:
        """`size`: the bytes of the file, reserved ones included."""
        self.segment, self.index = segment, index
        self._log_name, self._files = log, files
        self._pool, self._busy = pool, threading.Lock()
        self._file: OpenFile | None = None
        self._is_sound = True
        """Whether only reserved room stands behind the durable bytes."""
        self._allocated = size

    def write(self, pieces: Sequence[bytes], most_bytes: int) -> None:
        """Writes and syncs a group behind the durable bytes; after a failure nothing of it counts.

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
                self._cut_tail()
                raise

    def sound_file(self) -> OpenFile:
        """The file; reopened and cut to the durable bytes when the last write failed."""
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

    def release_room(self) -> None:
        """Cuts off reserved room."""
        # Unsynced on purpose: reserved zeros that come back after a power cut do no harm.
        self.sound_file().truncate(self.index.end)
        self._allocated = self.index.end

    def release_file(self) -> bool:
        """Closes the file unless it is being written; returns whether it is closed."""
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

    def _cut_tail(self) -> None:
        """Cuts off the remains of a failed write, now or before the next append."""
        self._close_file()
        self._is_sound = False
        try:
            self.sound_file()
        except OSError as error:
            _log.warning("tail not cut yet", log=self._log_name, error=str(error))


_MOST_FAULTS = 1000


class SegmentDirectory:
    """All segments of a log, oldest first; the last one is active. One thread changes it, any
    thread may read it. Methods that touch files raise OSError.
    """

    def __init__(self, log: str, directory: Path, files: Files) -> None:
        self.log, self.files = log, files
        self.guard = threading.Lock()
        """Held while the list of segments, or the end of the last one, is read or changed."""
        self.faults: dict[tuple[str, int], SegmentFault] = {}
        self.path = directory
        self._index_guard = threading.Lock()
        self._closed_bytes: int | None = None
        self.segments = segments_in(files, directory)
        self._remove_orphans()
        if not self.segments:
            self.segments = [self.create(1)]

    def create(self, first: int) -> Segment:
        """Creates the file of a new segment, its name durable; `add` puts it into use."""
        segment = Segment(self.path, first)
        self.files.open(segment.path).close()
        self.files.sync_directory(self.path)
        return segment

    def add(self, segment: Segment, *, former_bytes: int) -> None:
        """Makes a segment the active one; the former one is closed with so many bytes. The caller
        holds the guard.
        """
        if self._closed_bytes is not None:
            self._closed_bytes += former_bytes
        self.segments[-1].size = former_bytes
        self.segments.append(segment)

    def number_of(self, position: int) -> int:
        """Number of the segment that holds a position; of the oldest when that is gone."""
        return max(bisect_right(self.segments, position, key=lambda segment: segment.first) - 1, 0)

    def path_of(self, first: int) -> Path | None:
        """The file of the segment that begins at a position; None when it is gone."""
        with self.guard:
            segment = self.segments[self.number_of(first)]
        return segment.path if segment.first == first else None

    # --- closed segments --------------------------------------------------------------------------

    def closed_index(self, segment: Segment) -> SegmentIndex:
        """The index of a closed segment, read or rebuilt when first needed."""
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
        with self.guard:
            for closed, following in pairwise(self.segments):
                if closed is segment:
                    return following.first
        raise FileNotFoundError(segment.path)

    def size_of(self, segment: Segment) -> int:
        """Bytes of a closed segment; 0 when its file is missing."""
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
        """Bytes of all closed segments; reads every file's size once, then counts."""
        if self._closed_bytes is None:
            self._closed_bytes = sum(self.size_of(one) for one in self.segments[:-1])
        return self._closed_bytes

    def remove_oldest(self) -> None:
        """Removes the oldest segment, durably; it must be closed."""
        gone = self.segments[0]
        size = self.size_of(gone) if self._closed_bytes is not None else 0
        with self.guard:
            self.segments = self.segments[1:]
        try:
            # The index first, durably: an index without its segment means that that was lost.
            for path in (gone.index_path, gone.path):
                with suppress(FileNotFoundError):
                    self.files.remove(path)
                    self.files.sync_directory(self.path)
        except OSError:
            if gone.path.name in self.files.names(self.path):
                with self.guard:
                    self.segments = [gone, *self.segments]
            raise
        if self._closed_bytes is not None:
            self._closed_bytes -= size
        self.faults = {key: one for key, one in self.faults.items() if key[0] != str(gone.path)}
        self._remove_orphans()

    def _remove_orphans(self) -> None:
        for path in orphan_files(self.files, self.path, self.segments):
            self.files.remove(path)

    # --- what is kept beside them -----------------------------------------------------------------

    def save_index(self, segment: Segment, index: SegmentIndex, *, durable: bool = False) -> None:
        """Writes the index file; only logs a failure, because a missing index is rebuilt.

        At a clean close the file is made durable: it then proves that the last group was whole, so
        that bit rot in it is not mistaken for a write cut short.
        """
        try:
            self.write_index(segment, index, durable=durable)
        except OSError as error:
            path = str(segment.index_path)
            _log.warning("index not saved", log=self.log, path=path, error=str(error))

    def write_index(self, segment: Segment, index: SegmentIndex, *, durable: bool) -> None:
        replace_whole(self.files, segment.index_path, index.encode(), durable=durable)

    def report(self, fault: SegmentFault) -> None:
        """Records a fault and logs it, once."""
        key = (fault.path, fault.offset)
        if key not in self.faults and len(self.faults) < _MOST_FAULTS:
            self.faults[key] = fault
            _log.warning("log damaged", error=fault.as_error().message)


class SegmentLog:
    """A log open for writing by this process. Appends come from one thread, reads from any."""

    def __init__(
        self,
        name: str,
        directory: Path,
        files: Files,
        segment_bytes: Callable[[], int],
        pool: OpenSegments,
    ) -> None:
        self.name, self._pool = name, pool
        self._files, self._segment_bytes = files, segment_bytes
        self._directory = SegmentDirectory(name, directory, files)
        self._is_saved = False
        """Whether the saved index of the active segment covers all of it."""
        self._active = self._recovered(self._directory.segments[-1])

    def _recovered(self, segment: Segment) -> ActiveSegment:
        file = self._files.open(segment.path)
        try:
            found = recover(self._files, self.name, segment, file)
            if found.is_shortened:
                # Before the next append: the next start would look for its frames behind the end
                # that the old index names.
                self._directory.write_index(segment, found.index, durable=True)
        finally:
            file.close()
        segment.index, self._is_saved = found.index, found.is_saved
        for fault in found.faults:
            self._directory.report(fault)
        return ActiveSegment(
            self.name, self._files, segment, self._pool, found.index, size=found.size
        )

    @property
    def faults(self) -> dict[tuple[str, int], SegmentFault]:
        """Damage found so far, by file and offset."""
        return self._directory.faults

    # --- appending --------------------------------------------------------------------------------

    def append(self, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """Writes and syncs all blocks as one group; raises StoreUnavailable."""
        placed = place_blocks(blocks, self.last + 1, received, MAX_BODY_BYTES)
        self._append_group(placed)
        return placed

    def restore(self, blocks: Sequence[Block]) -> None:
        check_contiguous(self.name, self.last, blocks)
        check_sizes(blocks, MAX_BODY_BYTES)
        self._append_group(blocks)

    def _append_group(self, placed: Sequence[Block]) -> None:
        if not placed:
            return
        group = _encode(placed)
        try:
            segment_bytes = self._segment_bytes()
            if self._active.index.end >= segment_bytes:
                self._roll()
            self._is_saved = False
            self._active.write(group, segment_bytes)
        except OSError as error:
            raise disk_error(f"cannot append to log {self.name!r}", error) from error
        self._show(placed)

    def _show(self, placed: Sequence[Block]) -> None:
        with self._directory.guard:
            for block in placed:
                self._active.index.extend(block.first, block.last, HEADER_BYTES + len(block.body))

    def _roll(self, first: int | None = None) -> None:
        """Closes the active segment and begins the next; its name is durable first."""
        full = self._active
        full.release_room()
        self._directory.save_index(full.segment, full.index)
        segment = self._directory.create(first or full.index.last + 1)
        segment.index = SegmentIndex(segment.first)
        full.close()
        with self._directory.guard:
            self._directory.add(segment, former_bytes=full.index.end)
            self._is_saved = False
            self._active = ActiveSegment(self.name, self._files, segment, self._pool, segment.index)

    # --- reading ----------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        return self._active.index.last

    @property
    def first(self) -> int:
        return self._directory.segments[0].first

    def read_after(self, position: int, max_records: int) -> list[Block]:
        return [placed.block for placed in self.read_placed(position, max_records)]

    def read_placed(self, position: int, max_records: int) -> list[LocatedBlock]:
        """As `LogStore.read_after`, each block with its location."""
        blocks: list[LocatedBlock] = []
        wanted, room = max_records, READ_BYTES
        while wanted > 0 and room > 0:
            with self._directory.guard:
                place = self._place_after(position)
            if place is None:
                return blocks
            segment, offset, end, until = place
            try:
                found = self._read_segment(segment, offset, end, position, (wanted, room))
            except FileNotFoundError:
                if segment not in self._directory.segments:
                    continue  # trimmed meanwhile; begin with the segments that are left
                self._directory.report(
                    SegmentFault(self.name, str(segment.path), 0, 0, "a missing file")
                )
                found = []
            except OSError as error:
                raise disk_error(f"cannot read log {self.name!r}", error) from error
            blocks += found
            wanted -= sum(placed.block.count for placed in found)
            room -= sum(len(placed.block.body) for placed in found)
            position = found[-1].block.last if found else until
        return blocks

    def _place_after(self, position: int) -> tuple[Segment, int, int, int] | None:
        """Segment, offset, end (-1: both stand in its index) and last position to read."""
        index, segments = self._active.index, self._directory.segments
        if position >= index.last:
            return None
        number = self._directory.number_of(position + 1)
        segment = segments[number]
        if segment is self._active.segment:
            return segment, index.locate(position + 1), index.end, index.last
        return segment, 0, -1, segments[number + 1].first - 1

    def _read_segment(
        self, segment: Segment, offset: int, end: int, position: int, most: tuple[int, int]
    ) -> list[LocatedBlock]:
        """`most`: records and bytes."""
        if end < 0:
            index = self._directory.closed_index(segment)
            offset, end = index.locate(position + 1), index.end
        file = self._files.open_to_read(segment.path)
        try:
            found = read_blocks(file.read_at, offset, end, position, *most)
        finally:
            file.close()
        for damage in found.damage:
            self._directory.report(hole_fault(self.name, segment, damage))
        return [
            LocatedBlock(block, segment.first, offset)
            for block, offset in zip(found.blocks, found.offsets, strict=True)
        ]

    def gap_reason(self, position: int) -> str:
        with self._directory.guard:
            segments = self._directory.segments
        return gap_reason(self._files, segments, position)

    def segment_path(self, first: int) -> Path | None:
        return self._directory.path_of(first)

    # --- retention --------------------------------------------------------------------------------

    def pieces(self, limit: int) -> list[LogPiece]:
        """See LogStore; a piece is a segment. Reads two records of each segment once."""
        with self._directory.guard:
            segments = self._directory.segments[: limit + 1]
            ends = [segment.first - 1 for segment in segments[1:]]
            ends.append(self._active.index.last)
            ending = list(zip(segments[:limit], ends, strict=False))
        try:
            found = (self._piece(segment, last) for segment, last in ending)
            return [piece for piece in found if piece is not None]
        except OSError as error:
            raise disk_error(f"cannot look at log {self.name!r}", error) from error

    def _piece(self, segment: Segment, last: int) -> LogPiece | None:
        if last < segment.first:
            return None
        if segment is self._active.segment:
            size = self._active.index.end
            return LogPiece(segment.first, last, size, *self._times(segment, last))
        if segment.times is None:
            segment.times = self._times(segment, last)
        return LogPiece(segment.first, last, self._directory.size_of(segment), *segment.times)

    def _times(self, segment: Segment, last: int) -> tuple[int, int]:
        oldest = self.read_after(segment.first - 1, 1)
        newest = self.read_after(last - 1, 1) or oldest
        times = [block.received for block in (*oldest, *newest)]
        return (min(times), max(times)) if times else (0, 0)

    def kept_bytes(self) -> int:
        try:
            return self._directory.closed_bytes() + self._active.index.end
        except OSError as error:
            raise disk_error(f"cannot look at log {self.name!r}", error) from error

    def closed_end(self) -> int:
        return self._active.segment.first - 1

    def find_missing_files(self) -> None:
        with self._directory.guard:
            segments = list(self._directory.segments)
        there = set(self._files.names(self._directory.path))
        for segment in segments:
            if segment.path.name not in there and segment in self._directory.segments:
                self._directory.report(
                    SegmentFault(self.name, str(segment.path), 0, 0, "a missing file")
                )

    def close_piece(self) -> None:
        """Begins the next segment unless the active one is empty; by the thread that appends."""
        if self.last < self._active.segment.first:
            return
        try:
            self._roll()
        except OSError as error:
            raise disk_error(f"cannot begin a segment of log {self.name!r}", error) from error

    def skip_to(self, position: int) -> None:
        """Begins a segment at a later position; see LogStore."""
        directory = self._directory
        try:
            if position > self.last + 1:
                self._roll(position)
            while len(directory.segments) > 1 and directory.size_of(directory.segments[0]) == 0:
                directory.remove_oldest()  # the log was new: nothing was ever before `position`
        except OSError as error:
            raise disk_error(f"cannot begin a segment of log {self.name!r}", error) from error

    def trim(self, before: int) -> None:
        """Removes segments whose last position is before `before`, oldest first; the active one
        stays. Each is off the disk before the next one goes, so a power cut leaves no gap.
        """
        try:
            while len(self._directory.segments) > 1 and self._directory.segments[1].first <= before:
                self._directory.remove_oldest()
        except OSError as error:
            raise disk_error(f"cannot trim log {self.name!r}", error) from error

    def close(self) -> None:
        """Cuts off reserved room and saves the index, so that opening need not scan. A log that was
        only read stays as it is.
        """
        active = self._active
        try:
            if not self._is_saved:
                active.release_room()
                self._directory.save_index(active.segment, active.index, durable=True)
        except OSError as error:
            raise disk_error(f"cannot close log {self.name!r}", error) from error
        finally:
            active.close()

    def discard(self) -> None:
        """Ends without saving anything; for a log that never held records."""
        self._active.close()


def _encode(placed: Sequence[Block]) -> list[bytes]:
    group: list[bytes] = []
    for index, block in enumerate(placed):
        header = encode_header(
            block.body,
            first=block.first,
            count=block.count,
            received=block.received,
            index=index,
            remaining=len(placed) - 1 - index,
        )
        group += (header, block.body)
    return group
