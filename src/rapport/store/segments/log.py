"""One log as segment files: appending groups with one sync, reading, trimming. [CH-13]

Made of a shelf of segments and the one that grows; here positions meet files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.store.base import READ_BYTES, Block, LogPiece, check_places
from rapport.store.files import Files
from rapport.store.segments.frames import HEADER_BYTES, MAX_BODY_BYTES, encode_header
from rapport.store.segments.growing import GrowingSegment, WritePool
from rapport.store.segments.index import SegmentIndex
from rapport.store.segments.reading import (
    Fault,
    PlacedBlock,
    Segment,
    disk_refused,
    gap_reason,
    hole_fault,
    read_blocks,
)
from rapport.store.segments.recovery import recover
from rapport.store.segments.shelf import SegmentShelf

_MOST_HINTS = 4096


class SegmentLog:
    """A log open for writing by this process. Appends come from one thread, reads from any."""

    def __init__(
        self,
        name: str,
        directory: Path,
        files: Files,
        segment_bytes: Callable[[], int],
        pool: WritePool,
    ) -> None:
        self.name, self._pool = name, pool
        self._files, self._segment_bytes = files, segment_bytes
        self._hints: dict[int, tuple[int, int]] = {}
        self._shelf = SegmentShelf(name, directory, files)
        self._is_saved = False
        """Whether the saved index of the growing segment says all that is there."""
        self._growing = self._recovered(self._shelf.growing)

    def _recovered(self, segment: Segment) -> GrowingSegment:
        file = self._files.open(segment.path)
        try:
            found = recover(self._files, self.name, segment, file)
            if found.is_shortened:
                # Before anything is appended: by the old index the next start would look for it
                # behind the place where it stands.
                self._shelf.write_index(segment, found.index, durable=True)
        finally:
            file.close()
        segment.index, self._is_saved = found.index, found.is_saved
        for fault in found.faults:
            self._shelf.report(fault)
        return GrowingSegment(
            self.name, self._files, segment, self._pool, found.index, size=found.size
        )

    @property
    def faults(self) -> dict[tuple[str, int], Fault]:
        """Damage met so far, by file and offset."""
        return self._shelf.faults

    # --- appending --------------------------------------------------------------------------------

    def append(self, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """Writes and syncs all blocks as one group; raises StoreUnavailable."""
        placed, first = [], self.last + 1
        for count, body in blocks:
            placed.append(Block(first, count, received, body))
            first += count
        self._append_group(placed)
        return placed

    def restore(self, blocks: Sequence[Block]) -> None:
        """Appends blocks at the positions and with the times they had; see MovableLogStore."""
        check_places(self.name, self.last, blocks)
        self._append_group(blocks)

    def _append_group(self, placed: Sequence[Block]) -> None:
        if not placed:
            return
        group = _encode(placed)
        try:
            segment_bytes = self._segment_bytes()
            if self._growing.index.end >= segment_bytes:
                self._roll()
            self._is_saved = False
            self._growing.write(group, segment_bytes)
        except OSError as error:
            raise disk_refused(f"cannot append to log {self.name!r}", error) from error
        self._show(placed)

    def _show(self, placed: Sequence[Block]) -> None:
        with self._shelf.guard:
            index, first = self._growing.index, self._growing.segment.first
            for block in placed:
                self._hint(block.first - 1, index.end, first)
                index.extend(block.first, block.last, HEADER_BYTES + len(block.body))

    def _roll(self, first: int | None = None) -> None:
        """Closes the full segment and begins the next, whose name is durable before its content."""
        full = self._growing
        full.give_back_room()
        self._shelf.save_index(full.segment, full.index)
        segment = self._shelf.begin(first or full.index.last + 1)
        segment.index = SegmentIndex(segment.first)
        full.close()
        with self._shelf.guard:
            self._shelf.put(segment, former_bytes=full.index.end)
            self._is_saved = False
            self._growing = GrowingSegment(
                self.name, self._files, segment, self._pool, segment.index
            )

    # --- reading ----------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """Last durable position."""
        return self._growing.index.last

    @property
    def first(self) -> int:
        """Oldest position kept."""
        return self._shelf.segments[0].first

    def read_after(self, position: int, max_records: int) -> list[Block]:
        """Whole blocks holding records after `position`; see LogStore."""
        return [placed.block for placed in self.read_placed(position, max_records)]

    def read_placed(self, position: int, max_records: int) -> list[PlacedBlock]:
        """The same, each with its place."""
        blocks: list[PlacedBlock] = []
        wanted, room = max_records, READ_BYTES
        while wanted > 0 and room > 0:
            with self._shelf.guard:
                place = self._place_after(position)
            if place is None:
                return blocks
            segment, offset, end, until = place
            try:
                found = self._read_segment(segment, offset, end, position, (wanted, room))
            except FileNotFoundError:
                if segment not in self._shelf.segments:
                    continue  # trimmed while we looked; begin with what is left
                self._shelf.report(Fault(self.name, str(segment.path), 0, 0, "a missing file"))
                found = []
            except OSError as error:
                raise disk_refused(f"cannot read log {self.name!r}", error) from error
            blocks += found
            wanted -= sum(placed.block.count for placed in found)
            room -= sum(len(placed.block.body) for placed in found)
            position = found[-1].block.last if found else until
        return blocks

    def _place_after(self, position: int) -> tuple[Segment, int | None, int, int] | None:
        """Segment, offset (None: ask its index), end and last position of where to read."""
        index, segments = self._growing.index, self._shelf.segments
        if position >= index.last:
            return None
        number = self._shelf.number_of(position + 1)
        segment, hint = segments[number], self._hints.get(position)
        offset = hint[1] if hint and hint[0] == segment.first else None
        if segment is not self._growing.segment:
            return segment, offset, -1, segments[number + 1].first - 1
        if offset is None:
            offset = index.locate(position + 1)
        return segment, offset, index.end, index.last

    def _read_segment(
        self, segment: Segment, offset: int | None, end: int, position: int, most: tuple[int, int]
    ) -> list[PlacedBlock]:
        """`most`: records and bytes."""
        if end < 0:
            index = self._shelf.closed_index(segment)
            end = index.end
            offset = index.locate(position + 1) if offset is None else offset
        file = self._files.open_to_read(segment.path)
        try:
            found = read_blocks(file.read_at, offset or 0, end, position, *most)
        finally:
            file.close()
        for damage in found.damage:
            self._shelf.report(hole_fault(self.name, segment, damage))
        if found.blocks:
            with self._shelf.guard:
                self._hint(found.blocks[-1].last, found.next_offset, segment.first)
        return [
            PlacedBlock(block, segment.first, offset)
            for block, offset in zip(found.blocks, found.offsets, strict=True)
        ]

    def _hint(self, position: int, offset: int, segment_first: int) -> None:
        """Remembers where the block after `position` begins, for a reader that goes on there."""
        if len(self._hints) >= _MOST_HINTS:
            self._hints.clear()  # the index finds the rest, a little later
        self._hints[position] = (segment_first, offset)

    def gap_reason(self, position: int) -> str:
        """Why a position cannot be read; see LogGaps."""
        with self._shelf.guard:
            segments = self._shelf.segments
        return gap_reason(self._files, segments, position)

    def segment_path(self, first: int) -> Path | None:
        """The file of the segment that begins at a position; None when it is let go."""
        return self._shelf.path_of(first)

    # --- keeping house ----------------------------------------------------------------------------

    def pieces(self, limit: int) -> list[LogPiece]:
        """The oldest segments that hold something, the growing one among them; see PiecedLogStore.

        Reads two records of each segment once.
        """
        with self._shelf.guard:
            segments = self._shelf.segments[: limit + 1]
            ends = [segment.first - 1 for segment in segments[1:]]
            ends.append(self._growing.index.last)
            ending = list(zip(segments[:limit], ends, strict=False))
        try:
            found = (self._piece(segment, last) for segment, last in ending)
            return [piece for piece in found if piece is not None]
        except OSError as error:
            raise disk_refused(f"cannot look at log {self.name!r}", error) from error

    def _piece(self, segment: Segment, last: int) -> LogPiece | None:
        if last < segment.first:
            return None
        if segment is self._growing.segment:
            size = self._growing.index.end
            return LogPiece(segment.first, last, size, *self._times(segment, last))
        if segment.times is None:
            segment.times = self._times(segment, last)
        return LogPiece(segment.first, last, self._shelf.size_of(segment), *segment.times)

    def _times(self, segment: Segment, last: int) -> tuple[int, int]:
        """When its oldest and newest readable records came; what is damaged takes the time of its
        neighbour.
        """
        oldest = self.read_after(segment.first - 1, 1)
        newest = self.read_after(last - 1, 1) or oldest
        times = [block.received for block in (*oldest, *newest)]
        return (min(times), max(times)) if times else (0, 0)

    def kept_bytes(self) -> int:
        """Bytes of all segments; looks at every file once, then counts along."""
        try:
            return self._shelf.closed_bytes() + self._growing.index.end
        except OSError as error:
            raise disk_refused(f"cannot look at log {self.name!r}", error) from error

    def closed_end(self) -> int:
        """Last position of the closed segments; see PiecedLogStore."""
        return self._growing.segment.first - 1

    def look_for_files(self) -> None:
        """Reports segments whose files have vanished."""
        with self._shelf.guard:
            segments = list(self._shelf.segments)
        there = set(self._files.names(self._shelf.directory))
        for segment in segments:
            if segment.path.name not in there and segment in self._shelf.segments:
                self._shelf.report(Fault(self.name, str(segment.path), 0, 0, "a missing file"))

    def close_piece(self) -> None:
        """Begins the next segment unless the present one is empty; by the thread that appends."""
        if self.last < self._growing.segment.first:
            return
        try:
            self._roll()
        except OSError as error:
            raise disk_refused(f"cannot begin a segment of log {self.name!r}", error) from error

    def skip_to(self, position: int) -> None:
        """Begins a segment at a later position; see MovableLogStore."""
        shelf = self._shelf
        try:
            if position > self.last + 1:
                self._roll(position)
            while len(shelf.segments) > 1 and shelf.size_of(shelf.segments[0]) == 0:
                shelf.remove_oldest()  # the log was new: nothing was ever before `position`
        except OSError as error:
            raise disk_refused(f"cannot begin a segment of log {self.name!r}", error) from error

    def trim(self, before: int) -> None:
        """Removes segments whose last position is before `before`, oldest first; the active one
        stays. Each is off the disk before the next one goes, so a power cut leaves no gap.
        """
        try:
            while len(self._shelf.segments) > 1 and self._shelf.segments[1].first <= before:
                self._shelf.remove_oldest()
        except OSError as error:
            raise disk_refused(f"cannot trim log {self.name!r}", error) from error

    def close(self) -> None:
        """Gives reserved room back and saves the index, so that opening again need not scan. A log
        that was only read is left as it is.
        """
        growing = self._growing
        try:
            if not self._is_saved:
                growing.give_back_room()
                self._shelf.save_index(growing.segment, growing.index, durable=True)
        except OSError as error:
            raise disk_refused(f"cannot close log {self.name!r}", error) from error
        finally:
            growing.close()

    def discard(self) -> None:
        """Ends without saving anything; for a log that never held anything."""
        self._growing.close()


def _encode(placed: Sequence[Block]) -> list[bytes]:
    """The frames of one group, a header and a body each; raises InvalidInput for a block that
    cannot be kept.
    """
    group: list[bytes] = []
    for index, block in enumerate(placed):
        if block.count < 1 or len(block.body) > MAX_BODY_BYTES:
            raise InvalidInput(
                f"a block of {block.count} records and {len(block.body)} bytes cannot be kept",
                code="log.bad_block_size",
            )
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


def closed_error() -> StoreUnavailable:
    """The error of a store that was closed."""
    return StoreUnavailable("the log store is closed", code="store.closed")
