"""One log as segment files: appending groups with one sync, reading, trimming. [CH-13]

The one rule of order: a group is written, synced, and only then shown and followed by the next.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block, LogPiece, check_places
from rapport.store.files import Files, OpenFile
from rapport.store.frames import MAX_BODY_BYTES, encode_frame
from rapport.store.segment_index import SegmentIndex
from rapport.store.segment_leftovers import leftovers_in
from rapport.store.segment_reading import (
    Fault,
    PlacedBlock,
    Segment,
    disk_refused,
    hole_fault,
    load_index,
    read_blocks,
    segments_in,
)
from rapport.store.segment_recovery import recover

_log = get_logger(__name__)

_ALLOCATE_BYTES = 4 * 1024 * 1024
"""Room reserved ahead. Reserved room makes a sync a third cheaper: the file's size need not change
each time.
"""
_MOST_HINTS = 4096
_MOST_FAULTS = 1000


class SegmentLog:
    """A log open for writing by this process. Appends come from one thread, reads from any."""

    def __init__(self, name: str, directory: Path, files: Files, segment_bytes: int) -> None:
        self.name = name
        self.faults: dict[tuple[str, int], Fault] = {}
        self._directory, self._files, self._segment_bytes = directory, files, segment_bytes
        self._guard = threading.Lock()
        self._index_guard = threading.Lock()
        self._hints: dict[int, tuple[int, int]] = {}
        self._segments = segments_in(files, directory)
        self._closed_bytes: int | None = None
        self._clear_leftovers()
        if not self._segments:
            segment, file = self._begin_segment(1)
            file.close()
            self._segments = [segment]
        active = self._segments[-1]
        self._file: OpenFile | None = files.open(active.path)
        try:
            recovered = recover(files, name, active, self._file)
        except OSError:
            self._file.close()
            raise
        self._index, self._allocated = recovered.index, recovered.size
        active.index = recovered.index
        for fault in recovered.faults:
            self._report(fault)

    # --- appending --------------------------------------------------------------------------------

    def append(self, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """Writes and syncs all blocks as one group; raises StoreUnavailable."""
        placed, first = [], self._index.last + 1
        for count, body in blocks:
            placed.append(Block(first, count, received, body))
            first += count
        self._append_group(placed)
        return placed

    def restore(self, blocks: Sequence[Block]) -> None:
        """Appends blocks at the positions and with the times they had; see MovableLogStore."""
        check_places(self.name, self._index.last, blocks)
        self._append_group(blocks)

    def _append_group(self, placed: Sequence[Block]) -> None:
        if not placed:
            return
        try:
            if self._index.end >= self._segment_bytes:
                self._roll()
            file = self._sound_file()
        except OSError as error:
            raise disk_refused(f"cannot append to log {self.name!r}", error) from error
        group = self._encode(placed)
        self._write(file, group)
        self._show(placed, group)

    def _encode(self, placed: Sequence[Block]) -> list[bytes]:
        group = []
        for index, block in enumerate(placed):
            if block.count < 1 or len(block.body) > MAX_BODY_BYTES:
                raise InvalidInput(
                    f"a block of {block.count} records and {len(block.body)} bytes cannot be kept",
                    code="log.bad_block_size",
                )
            group.append(
                encode_frame(
                    block.body,
                    first=block.first,
                    count=block.count,
                    received=block.received,
                    index=index,
                    remaining=len(placed) - 1 - index,
                )
            )
        return group

    def _write(self, file: OpenFile, group: list[bytes]) -> None:
        data = group[0] if len(group) == 1 else b"".join(group)
        end = self._index.end + len(data)
        try:
            if end > self._allocated:
                self._allocated = max(min(end + _ALLOCATE_BYTES, self._segment_bytes), end)
                file.allocate(self._allocated)
            file.write_at(self._index.end, data)
            file.sync()
        except OSError as error:
            self._distrust()
            raise disk_refused(f"cannot append to log {self.name!r}", error) from error

    def _show(self, placed: Sequence[Block], group: list[bytes]) -> None:
        with self._guard:
            for block, frame in zip(placed, group, strict=True):
                self._hint(block.first - 1, self._index.end)
                self._index.extend(block.first, block.last, len(frame))

    def _distrust(self) -> None:
        """A failed write leaves anything behind: it is cut now, or before the next append."""
        if self._file is not None:
            self._file.close()
            self._file = None
        try:
            self._sound_file()
        except OSError as error:
            _log.warning("tail not cut yet", log=self.name, error=str(error))

    def _sound_file(self) -> OpenFile:
        """The active file; opened anew and cut to what is durable when the last write failed."""
        if self._file is None:
            file = self._files.open(self._segments[-1].path)
            try:
                file.truncate(self._index.end)
                file.sync()
            except OSError:
                file.close()
                raise
            self._file, self._allocated = file, self._index.end
        return self._file

    def _roll(self, first: int | None = None) -> None:
        """Closes the full segment and begins the next, whose name is durable before its content."""
        file = self._sound_file()
        # Unsynced on purpose: reserved zeros that come back after a power cut do no harm.
        file.truncate(self._index.end)
        self._save_index(self._segments[-1], self._index)
        segment, opened = self._begin_segment(first or self._index.last + 1)
        segment.index = SegmentIndex(segment.first)
        file.close()
        if self._closed_bytes is not None:
            self._closed_bytes += self._index.end
        self._segments[-1].size = self._index.end
        with self._guard:
            self._segments.append(segment)
            self._file, self._allocated, self._index = opened, 0, segment.index

    def _begin_segment(self, first: int) -> tuple[Segment, OpenFile]:
        segment = Segment(self._directory, first)
        file = self._files.open(segment.path)
        try:
            self._files.sync_directory(self._directory)
        except OSError:
            file.close()
            raise
        return segment, file

    # --- reading ----------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """Last durable position."""
        return self._index.last

    @property
    def first(self) -> int:
        """Oldest position kept."""
        return self._segments[0].first

    def read_after(self, position: int, max_records: int) -> list[Block]:
        """Whole blocks holding records after `position`; see LogStore."""
        return [placed.block for placed in self.read_placed(position, max_records)]

    def read_placed(self, position: int, max_records: int) -> list[PlacedBlock]:
        """The same, each with its place."""
        blocks: list[PlacedBlock] = []
        wanted = max_records
        while wanted > 0:
            with self._guard:
                place = self._place_after(position)
            if place is None:
                return blocks
            segment, offset, end, until = place
            try:
                found = self._read_segment(segment, offset, end, position, wanted)
            except FileNotFoundError:
                if segment not in self._segments:
                    continue  # trimmed while we looked; begin with what is left
                self._report(Fault(self.name, str(segment.path), 0, 0, "a missing file"))
                found = []
            except OSError as error:
                raise disk_refused(f"cannot read log {self.name!r}", error) from error
            blocks += found
            wanted -= sum(placed.block.count for placed in found)
            position = found[-1].block.last if found else until
        return blocks

    def _place_after(self, position: int) -> tuple[Segment, int | None, int, int] | None:
        """Segment, offset (None: ask its index), end and last position of where to read."""
        if position >= self._index.last:
            return None
        hint = self._hints.get(position)
        number = bisect_right(self._segments, position + 1, key=lambda segment: segment.first) - 1
        segment = self._segments[max(number, 0)]
        if segment is self._segments[-1]:
            offset = hint[1] if hint and hint[0] == segment.first else None
            if offset is None:
                offset = self._index.locate(position + 1)
            return segment, offset, self._index.end, self._index.last
        until = self._segments[max(number, 0) + 1].first - 1
        return segment, hint[1] if hint and hint[0] == segment.first else None, -1, until

    def _read_segment(
        self, segment: Segment, offset: int | None, end: int, position: int, wanted: int
    ) -> list[PlacedBlock]:
        if end < 0:
            index = self._closed_index(segment)
            end = index.end
            offset = index.locate(position + 1) if offset is None else offset
        file = self._files.open_to_read(segment.path)
        try:
            found = read_blocks(file.read_at, offset or 0, end, position, wanted)
        finally:
            file.close()
        for damage in found.damage:
            self._report(hole_fault(self.name, segment, damage))
        if found.blocks:
            with self._guard:
                self._hint(found.blocks[-1].last, found.next_offset, segment.first)
        return [
            PlacedBlock(block, segment.first, offset)
            for block, offset in zip(found.blocks, found.offsets, strict=True)
        ]

    def _closed_index(self, segment: Segment) -> SegmentIndex:
        with self._index_guard:
            if segment.index is None:
                index, rebuilt = load_index(self._files, segment, self._end_of(segment))
                for hole in index.holes:
                    self._report(hole_fault(self.name, segment, hole))
                if rebuilt:
                    self._save_index(segment, index)
                segment.index = index
            return segment.index

    def _end_of(self, segment: Segment) -> int:
        """First position behind a closed segment."""
        with self._guard:
            for closed, following in pairwise(self._segments):
                if closed is segment:
                    return following.first
        raise FileNotFoundError(segment.path)

    def _hint(self, position: int, offset: int, segment_first: int | None = None) -> None:
        """Remembers where the block after `position` begins, for a reader that goes on there."""
        if len(self._hints) >= _MOST_HINTS:
            self._hints.clear()  # the index finds the rest, a little later
        first = self._segments[-1].first if segment_first is None else segment_first
        self._hints[position] = (first, offset)

    def segment_path(self, first: int) -> Path | None:
        """The file of the segment that begins at a position; None when it is let go."""
        with self._guard:
            number = bisect_right(self._segments, first, key=lambda segment: segment.first) - 1
            segment = self._segments[max(number, 0)]
        return segment.path if segment.first == first else None

    # --- keeping house ----------------------------------------------------------------------------

    def pieces(self, limit: int) -> list[LogPiece]:
        """The oldest segments that hold something, the growing one among them; see PiecedLogStore.

        Reads two records of each segment once.
        """
        with self._guard:
            ends = [segment.first - 1 for segment in self._segments[1 : limit + 1]]
            ends.append(self._index.last)
            segments = list(zip(self._segments[:limit], ends, strict=False))
        try:
            found = (self._piece(segment, last) for segment, last in segments)
            return [piece for piece in found if piece is not None]
        except OSError as error:
            raise disk_refused(f"cannot look at log {self.name!r}", error) from error

    def _piece(self, segment: Segment, last: int) -> LogPiece | None:
        if last < segment.first:
            return None
        if segment is self._segments[-1]:
            return LogPiece(segment.first, last, self._index.end, *self._times(segment, last))
        if segment.times is None:
            segment.times = self._times(segment, last)
        return LogPiece(segment.first, last, self._size_of(segment), *segment.times)

    def _times(self, segment: Segment, last: int) -> tuple[int, int]:
        """When its oldest and newest readable records came; what is damaged takes the time of its
        neighbour.
        """
        oldest = self.read_after(segment.first - 1, 1)
        newest = self.read_after(last - 1, 1) or oldest
        times = [block.received for block in (*oldest, *newest)]
        return (min(times), max(times)) if times else (0, 0)

    def _size_of(self, segment: Segment) -> int:
        if segment.size is None:
            file = self._files.open_to_read(segment.path)
            try:
                segment.size = file.size()
            finally:
                file.close()
        return segment.size

    def kept_bytes(self) -> int:
        """Bytes of all segments; looks at every file once, then counts along."""
        if self._closed_bytes is None:
            try:
                self._closed_bytes = sum(self._size_of(one) for one in self._segments[:-1])
            except OSError as error:
                raise disk_refused(f"cannot look at log {self.name!r}", error) from error
        return self._closed_bytes + self._index.end

    def close_piece(self) -> None:
        """Begins the next segment unless the present one is empty; by the thread that appends."""
        if self._index.last < self._segments[-1].first:
            return
        try:
            self._roll()
        except OSError as error:
            raise disk_refused(f"cannot begin a segment of log {self.name!r}", error) from error

    def skip_to(self, position: int) -> None:
        """Begins a segment at a later position; see MovableLogStore."""
        try:
            if position > self._index.last + 1:
                self._roll(position)
            while len(self._segments) > 1 and self._size_of(self._segments[0]) == 0:
                self._remove_oldest()  # the log was new: nothing was ever before `position`
        except OSError as error:
            raise disk_refused(f"cannot begin a segment of log {self.name!r}", error) from error

    def trim(self, before: int) -> None:
        """Removes segments whose last position is before `before`, oldest first; the active one
        stays. Each is off the disk before the next one goes, so a power cut leaves no gap.
        """
        try:
            while len(self._segments) > 1 and self._segments[1].first <= before:
                self._remove_oldest()
        except OSError as error:
            raise disk_refused(f"cannot trim log {self.name!r}", error) from error

    def _remove_oldest(self) -> None:
        gone = self._segments[0]
        size = self._size_of(gone) if self._closed_bytes is not None else 0
        with self._guard:
            self._segments = self._segments[1:]
        try:
            self._files.remove(gone.path)
            self._files.sync_directory(self._directory)
        except OSError:
            if gone.path.name in self._files.names(self._directory):
                with self._guard:
                    self._segments = [gone, *self._segments]
            raise
        if self._closed_bytes is not None:
            self._closed_bytes -= size
        self.faults = {key: one for key, one in self.faults.items() if key[0] != str(gone.path)}
        self._clear_leftovers()

    def _clear_leftovers(self) -> None:
        """Removes what belonged to segments that are gone; the next start would do it, too."""
        for path in leftovers_in(self._files, self._directory, self._segments):
            self._files.remove(path)

    def close(self) -> None:
        """Gives reserved room back and saves the index, so that opening again need not scan."""
        try:
            self._sound_file().truncate(self._index.end)
            self._save_index(self._segments[-1], self._index, durable=True)
        except OSError as error:
            raise disk_refused(f"cannot close log {self.name!r}", error) from error
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _save_index(self, segment: Segment, index: SegmentIndex, *, durable: bool = False) -> None:
        """No error when it fails: an index that is lost or half there is made again.

        At a clean close its name is made durable: it then proves that the last group was whole, so
        that rot in it is not mistaken for a write cut short.
        """
        fresh = segment.index_path.with_suffix(".index-new")
        try:
            file = self._files.open(fresh)
            try:
                file.truncate(0)
                file.write_at(0, index.encode())
                # Before the rename, or a power cut could leave an empty file in place of a good
                # one.
                file.sync()
            finally:
                file.close()
            self._files.rename(fresh, segment.index_path)
            if durable:
                self._files.sync_directory(self._directory)
        except OSError as error:
            _log.warning("index not saved", log=self.name, path=str(fresh), error=str(error))

    def _report(self, fault: Fault) -> None:
        key = (fault.path, fault.offset)
        if key not in self.faults and len(self.faults) < _MOST_FAULTS:
            self.faults[key] = fault
            _log.warning("log damaged", error=fault.as_error().message)


def closed_error() -> StoreUnavailable:
    """The error of a store that was closed."""
    return StoreUnavailable("the log store is closed", code="store.closed")
