"""Frames of a segment file: a header with its own checksum, then the body. Pure. [CH-13]

The header names the body's checksum and is itself checksummed, so every byte is covered and a
reader can tell a broken header (length unknown: search for the next) from a broken body (length
known: step over it). `index` and `remaining` place a frame in the group it was written with: a
group counts only when it is whole.

`scan` walks a file frame by frame, past damage; the bytes come from a function.

Segment files of a log: names, index, reading blocks past damage, recovery after a crash.
[CH-13, CH-14]

The process that writes a log and processes that only read it share this code. One append writes
one group of frames, synced before the next group begins. So damage that another group follows
happened to durable data and is a hole to report; damage at the end is a write cut short by a crash,
which was never acknowledged.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec

from rapport.core.errors import Corrupt, InvalidInput
from rapport.store.base import MAX_BODY_BYTES, READ_BYTES, Block
from rapport.store.files import Files, OpenFile, read_whole
from rapport.store.gaps import DAMAGED, MISSING

MAGIC = b"\xa7RPF"
VERSION = 1
_FIELDS = struct.Struct("<4sBxxxIIIQIqI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size

_LARGEST_POSITION = 2**63


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a block at positions `first` .. `first + count - 1`."""

    index: int
    remaining: int
    length: int
    first: int
    count: int
    received: int
    body_checksum: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.length


def encode_header(
    body: bytes, *, first: int, count: int, received: int, index: int = 0, remaining: int = 0
) -> bytes:
    fields = _FIELDS.pack(
        MAGIC, VERSION, index, remaining, len(body), first, count, received, crc32(body)
    )
    return fields + _CHECKSUM.pack(crc32(fields))


def decode_header(buffer: bytes | memoryview, offset: int = 0) -> Header | None:
    """The header at `offset`; None when there are too few bytes or they are not a sound header."""
    if offset < 0 or len(buffer) - offset < HEADER_BYTES:
        return None
    magic, version, index, remaining, length, first, count, received, body_checksum = (
        _FIELDS.unpack_from(buffer, offset)
    )
    if magic != MAGIC or version != VERSION:
        return None
    (checksum,) = _CHECKSUM.unpack_from(buffer, offset + _FIELDS.size)
    if checksum != crc32(memoryview(buffer)[offset : offset + _FIELDS.size]):
        return None
    if length > MAX_BODY_BYTES or count < 1 or not 1 <= first < _LARGEST_POSITION:
        return None
    return Header(index, remaining, length, first, count, received, body_checksum)


def body_is_sound(header: Header, body: bytes | memoryview) -> bool:
    return len(body) == header.length and crc32(body) == header.body_checksum


ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> bytes; fewer only at the end."""

_WINDOW_BYTES = 1024 * 1024


class Frame(msgspec.Struct, frozen=True, gc=False):
    offset: int
    header: Header

    @property
    def end(self) -> int:
        return self.offset + self.header.frame_bytes


class Damage(msgspec.Struct, frozen=True):
    """Bytes from `offset` to `end` that are no frame; with a `header` only the body is broken."""

    offset: int
    end: int
    header: Header | None


def scan(read: ReadAt, start: int, end: int, *, bodies: bool = True) -> Iterator[Frame | Damage]:
    """Frames and damage between two offsets, in order; zeros up to `end` are unused room and end
    the walk.

    `bodies=False` trusts the bodies and reads headers only. Memory: one window or one frame,
    whichever is larger; time is linear in the bytes, also on hostile ones.
    """
    window = ByteWindow(read, end, _WINDOW_BYTES)
    offset = start
    while offset < end:
        header = decode_header(window.view(offset, HEADER_BYTES))
        if header is not None and offset + header.frame_bytes <= end:
            frame = Frame(offset, header)
            body_start = offset + HEADER_BYTES
            if not bodies or body_is_sound(header, window.view(body_start, header.length)):
                yield frame
                offset = frame.end
                continue
            after = frame.end if _begins_frame(window, frame.end, end) else None
            damage_end = after or _next_frame(window, offset + 1, end)
            yield Damage(offset, damage_end, header)
        else:
            if _is_zero(window, offset, end):
                return
            damage_end = _next_frame(window, offset + 1, end)
            yield Damage(offset, damage_end, None)
        offset = damage_end


class ByteWindow:
    """The last `size` bytes or more that were read of a file; small frames mostly lie in them and
    need no read each.
    """

    def __init__(self, read: ReadAt, end: int, size: int) -> None:
        self._read, self._end, self._size = read, end, size
        self._start, self._bytes = 0, b""

    def covering(self, offset: int, length: int) -> tuple[bytes, int]:
        """Bytes that reach from `offset` over `length` or to the end, and the place of `offset` in
        them.
        """
        length = max(min(length, self._end - offset), 0)
        relative = offset - self._start
        if relative < 0 or relative + length > len(self._bytes):
            wanted = min(max(length, self._size), self._end - offset)
            self._start, self._bytes = offset, self._read(offset, max(wanted, 0))
            relative = 0
        return self._bytes, relative

    def view(self, offset: int, length: int) -> memoryview:
        """Up to `length` bytes at `offset`, never past the end."""
        found, relative = self.covering(offset, length)
        return memoryview(found)[relative : relative + length]


def _begins_frame(window: ByteWindow, offset: int, end: int) -> bool:
    return offset == end or decode_header(window.view(offset, HEADER_BYTES)) is not None


def _next_frame(window: ByteWindow, offset: int, end: int) -> int:
    """Offset of the next sound header; `end` when there is none."""
    while offset < end:
        piece = bytes(window.view(offset, _WINDOW_BYTES))
        if not piece:
            return end
        found = piece.find(MAGIC)
        while found >= 0:
            if decode_header(window.view(offset + found, HEADER_BYTES)) is not None:
                return offset + found
            found = piece.find(MAGIC, found + 1)
        # A magic may lie across two pieces.
        offset += max(len(piece) - len(MAGIC) + 1, 1)
    return end


def _is_zero(window: ByteWindow, offset: int, end: int) -> bool:
    while offset < end:
        piece = window.view(offset, _WINDOW_BYTES)
        if not piece or bytes(piece).strip(b"\0"):
            return not piece
        offset += len(piece)
    return True


_SPACING_BYTES = 64 * 1024
_MAGIC = b"RPI1"


class Hole(msgspec.Struct, frozen=True, array_like=True):
    """Bytes `offset` .. `end` of a segment that should be frames and are not, with the positions
    they held; 0 when unknown.
    """

    offset: int
    end: int
    first: int
    count: int


class _SavedIndex(msgspec.Struct, array_like=True):
    offsets: list[int]
    firsts: list[int]
    end: int
    last: int
    holes: list[Hole]


class SegmentIndex:
    """Offset and first position of one frame per 64 KiB; `end` and `last` of the last whole group.

    16 bytes per entry, so a full segment of 64 MiB costs 16 KiB. A scan of the segment rebuilds it.
    """

    def __init__(self, first: int) -> None:
        self._offsets, self._firsts = array("Q"), array("Q")
        self.end = 0
        self.last = first - 1
        self.holes: list[Hole] = []

    def add(self, frame: Frame) -> None:
        """Adds a frame; it must stand behind all others."""
        self.end = frame.offset
        self.extend(frame.header.first, frame.header.last, frame.header.frame_bytes)

    def extend(self, first: int, last: int, frame_bytes: int) -> None:
        """Adds a frame that begins at `end`."""
        if not self._offsets or self.end - self._offsets[-1] >= _SPACING_BYTES:
            self._offsets.append(self.end)
            self._firsts.append(first)
        self.end += frame_bytes
        self.last = last

    def locate(self, position: int) -> int:
        """Offset of a frame at or before the one that holds `position`; 0 if none is nearer."""
        nearest = bisect_right(self._firsts, position) - 1
        return self._offsets[nearest] if nearest >= 0 else 0

    def encode(self) -> bytes:
        saved = _SavedIndex(
            list(self._offsets), list(self._firsts), self.end, self.last, self.holes
        )
        body = msgspec.msgpack.encode(saved)
        return _MAGIC + crc32(body).to_bytes(4, "little") + body

    @staticmethod
    def decode(raw: bytes, first: int) -> SegmentIndex | None:
        """None when the bytes are not an index; it is then rebuilt."""
        checksum, body = raw[4:8], raw[8:]
        if raw[:4] != _MAGIC or crc32(body).to_bytes(4, "little") != checksum:
            return None
        try:
            saved = msgspec.msgpack.decode(body, type=_SavedIndex)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None
        index = SegmentIndex(first)
        index._offsets.extend(saved.offsets)
        index._firsts.extend(saved.firsts)
        index.end, index.last, index.holes = saved.end, saved.last, saved.holes
        return index


class GroupWalk:
    """Turns scanned frames into whole groups: a state machine without I/O.

    With `until` the segment is closed and ends before that position.
    """

    def __init__(self, index: SegmentIndex, *, until: int | None = None) -> None:
        self.index = index
        self._until = until
        self._frames: list[Frame] = []
        self._damage: list[Damage] = []

    def add_all(self, found: Iterable[Frame | Damage]) -> None:
        """Adds the result of a scan from `index.end` on."""
        for item in found:
            if isinstance(item, Damage):
                self._damage.append(item)
            elif self._until is not None and item.header.first >= self._until:
                return
            elif item.header.first <= self._last():
                self._damage.append(Damage(item.offset, item.end, item.header))
            else:
                self._add(item)

    def finish_closed(self) -> None:
        """Ends the walk of a closed segment: everything in it was synced, so damage is a hole and
        not a torn write. Damage behind the last position comes from a failed append and is no loss.
        """
        if self._until is None or self.index.last >= self._until - 1:
            return
        if not self._frames and not self._damage:
            missing = self._until - 1 - self.index.last
            self.index.holes.append(
                Hole(self.index.end, self.index.end, self.index.last + 1, missing)
            )
        self._commit()
        self.index.last = self._until - 1

    def _last(self) -> int:
        return self._frames[-1].header.last if self._frames else self.index.last

    def _add(self, frame: Frame) -> None:
        begins = frame.header.index == 0
        if begins and (self._frames or self._damage):
            self._commit()
        elif begins and frame.header.first > self.index.last + 1:
            missing = frame.header.first - self.index.last - 1
            self.index.holes.append(Hole(frame.offset, frame.offset, self.index.last + 1, missing))
        elif not begins and not self._frames and not self._damage:
            # The beginning of the group is missing without a trace, so the group is not whole.
            self._damage.append(Damage(frame.offset, frame.offset, None))
        self._frames.append(frame)
        if frame.header.remaining == 0 and not self._damage:
            self._commit()

    def _commit(self) -> None:
        """All frames added are durable; the damage between or before them is a hole."""
        for frame in self._frames:
            self.index.add(frame)
        for damage in self._damage:
            self.index.holes.append(_hole(damage))
            self.index.end = max(self.index.end, damage.end)
        self._frames, self._damage = [], []


def _hole(damage: Damage) -> Hole:
    if damage.header is None:
        return Hole(damage.offset, damage.end, 0, 0)
    return Hole(damage.offset, damage.end, damage.header.first, damage.header.count)


LOGS = "logs"
"""Directory below the store's that holds one directory per log."""
SEGMENT_ENDING, INDEX_ENDING = ".log", ".index"
_CHUNK_BYTES = 256 * 1024
_LONGEST_FILE_NAME = 200


class Segment:
    """One segment file; index, size and times are read when first needed."""

    def __init__(self, directory: Path, first: int) -> None:
        self.first = first
        self.path = directory / f"{first:020d}{SEGMENT_ENDING}"
        self.index_path = directory / f"{first:020d}{INDEX_ENDING}"
        self.index: SegmentIndex | None = None
        self.size: int | None = None
        """Bytes of a closed file."""
        self.times: tuple[int, int] | None = None
        """When the oldest and newest records of a closed file were received."""


class SegmentFault(msgspec.Struct, frozen=True):
    """Damaged bytes in a segment; `kept` names the file with a copy of bytes that were cut off."""

    log: str
    path: str
    offset: int
    end: int
    reason: str
    kept: str = ""

    def as_error(self) -> Corrupt:
        where = f"; the bytes are kept in {self.kept}" if self.kept else ""
        return Corrupt(
            f"log {self.log!r}: {self.reason} in {self.path} at offset {self.offset} "
            f"({self.end - self.offset} bytes){where}",
            code="log.damaged",
            hint="the records before and after it are readable; restore the file from a copy",
        )


def hole_fault(log: str, segment: Segment, hole: Hole | Damage) -> SegmentFault:
    reason = "a damaged record" if hole.end > hole.offset else "records are missing"
    return SegmentFault(log, str(segment.path), hole.offset, hole.end, reason)


def gap_reason(files: Files, segments: Sequence[Segment], position: int) -> str:
    """Why a position cannot be read: its file or its bytes are missing, or they are damaged."""
    number = max(bisect_right(segments, position, key=lambda segment: segment.first) - 1, 0)
    segment = segments[number]
    if segment.path.name not in files.names(segment.path.parent):
        return MISSING
    for hole in segment.index.holes if segment.index is not None else ():
        if hole.first <= position < hole.first + hole.count and hole.offset == hole.end:
            return MISSING
    return DAMAGED


class SegmentRead(msgspec.Struct):
    """Blocks that were read, damage that was skipped, and the offset at which to go on."""

    blocks: list[Block]
    damage: list[Damage]
    next_offset: int
    offsets: list[int] = msgspec.field(default_factory=list)
    """Offset of the body of each block."""


class LocatedBlock(msgspec.Struct, frozen=True):
    """A block with the location of its body: segment (by its first position) and offset."""

    block: Block
    segment: int
    offset: int


def read_blocks(
    read: ReadAt,
    start: int,
    end: int,
    position: int,
    max_records: int,
    max_bytes: int = READ_BYTES,
) -> SegmentRead:
    """Blocks between two offsets with records after `position`, until `max_records` or `max_bytes`
    are reached. A body that fails its checksum, or repeats positions, is skipped and returned as
    damage.
    """
    found = SegmentRead([], [], start)
    window = ByteWindow(read, end, _CHUNK_BYTES)
    wanted, room, reached = max_records, max_bytes, 0
    while wanted > 0 and room > 0 and found.next_offset < end:
        at = found.next_offset
        header = decode_header(*window.covering(at, HEADER_BYTES))
        if header is None:
            _skip_damage(read, at, end, found)
            continue
        chunk, start_of_frame = window.covering(at, header.frame_bytes)
        body = chunk[start_of_frame + HEADER_BYTES : start_of_frame + header.frame_bytes]
        if not body_is_sound(header, body):
            _skip_damage(read, at, end, found)
            continue
        found.next_offset = at + header.frame_bytes
        if header.first <= reached:
            found.damage.append(Damage(at, found.next_offset, header))
            continue
        reached = header.last
        if header.last > position:
            found.blocks.append(Block(header.first, header.count, header.received, body))
            found.offsets.append(at + HEADER_BYTES)
            wanted -= header.count
            room -= len(body)
    return found


def _skip_damage(read: ReadAt, offset: int, end: int, found: SegmentRead) -> None:
    item = next(scan(read, offset, end), None)
    if isinstance(item, Damage):
        found.damage.append(item)
        found.next_offset = item.end
    else:
        found.next_offset = end


def load_index(files: Files, segment: Segment, until: int) -> tuple[SegmentIndex, bool]:
    """Index of a closed segment that ends before position `until`, and whether it was rebuilt."""
    index = read_index(files, segment)
    if index is not None and index.last >= until - 1:
        return index, False
    index = index or SegmentIndex(segment.first)
    file = files.open_to_read(segment.path)
    try:
        walk = GroupWalk(index, until=until)
        walk.add_all(scan(file.read_at, index.end, file.size(), bodies=False))
        walk.finish_closed()
    finally:
        file.close()
    return index, True


def read_index(files: Files, segment: Segment) -> SegmentIndex | None:
    """The saved index of a segment; None when there is none that can be used."""
    try:
        return SegmentIndex.decode(read_whole(files, segment.index_path), segment.first)
    except FileNotFoundError:
        return None


def segments_in(files: Files, directory: Path) -> list[Segment]:
    """The segments of a log's directory, by first position; files of other names are ignored.

    An index without its segment proves that the segment was lost: retention removes the index
    first.
    """
    firsts = set()
    for name in files.names(directory):
        stem = name.removesuffix(SEGMENT_ENDING).removesuffix(INDEX_ENDING)
        if name != stem and stem.isascii() and stem.isdigit():
            firsts.add(int(stem))
    return [Segment(directory, first) for first in sorted(firsts)]


def encode_log_name(log: str) -> str:
    """A file name for any log name: safe on every system, and equal only for equal names.

    >>> encode_log_name("raw.readers"), encode_log_name("../A b")
    ('raw.readers', '%2E.%2F%41%20b')
    """
    try:
        name = quote(log, safe="")
    except UnicodeEncodeError:
        name = ""
    # Case-folding file systems must not mix "A" with "a"; a leading dot would hide or climb.
    name = "".join(_escape_upper(part) for part in _split_escapes(name))
    if name.startswith("."):
        name = "%2E" + name[1:]
    if not name or len(name) > _LONGEST_FILE_NAME:
        raise InvalidInput(
            f"{log[:60]!r} cannot be the name of a log",
            code="log.bad_name",
            hint=f"use 1 to {_LONGEST_FILE_NAME} plain characters",
        )
    return name


def decode_log_name(name: str) -> str:
    return unquote(name)


def _split_escapes(name: str) -> list[str]:
    parts, at = [], 0
    while at < len(name):
        width = 3 if name[at] == "%" else 1
        parts.append(name[at : at + width])
        at += width
    return parts


def _escape_upper(part: str) -> str:
    return f"%{ord(part):02X}" if len(part) == 1 and part.isupper() else part


class RecoveredSegment(msgspec.Struct):
    """The index of the whole groups, the bytes of the file now, and the damage found."""

    index: SegmentIndex
    size: int
    faults: list[SegmentFault]
    is_shortened: bool = False
    """Whether the saved index covers more than the file has: it must not be trusted again."""
    is_saved: bool = False
    """Whether the saved index covers the whole file."""


def recover(files: Files, log: str, segment: Segment, file: OpenFile) -> RecoveredSegment:
    """Finds the end of the last whole group and cuts off the bytes behind it.

    Reads only bytes that the saved index does not cover: none after a clean close. Raises OSError.
    """
    size = file.size()
    saved = read_index(files, segment)
    saved_end = None if saved is None else saved.end
    index, is_shortened = _walk_tail(segment, file, size, saved)
    path = str(segment.path)
    faults = [hole_fault(log, segment, hole) for hole in index.holes]
    tail = file.read_at(index.end, size - index.end).rstrip(b"\0") if index.end < size else b""
    if tail:
        kept = _keep_copy(files, segment, index.end, tail)
        # No sync: nothing is written behind the cut before the next append, whose sync covers it.
        file.truncate(index.end)
        end = index.end + len(tail)
        faults.append(SegmentFault(log, path, index.end, end, "an unfinished write", kept))
        size = index.end
    is_saved = not is_shortened and saved_end == index.end == size
    return RecoveredSegment(index, size, faults, is_shortened, is_saved)


def _walk_tail(
    segment: Segment, file: OpenFile, size: int, saved: SegmentIndex | None
) -> tuple[SegmentIndex, bool]:
    """The index of the file's whole groups, and whether the file was longer once."""
    index = SegmentIndex(segment.first) if saved is None or saved.end > size else saved
    GroupWalk(index).add_all(scan(file.read_at, index.end, size))
    if saved is not None and saved.last > index.last:
        # Somebody shortened the file. Its positions were used once and are not used again.
        missing = saved.last - index.last
        index.holes.append(Hole(index.end, saved.end, index.last + 1, missing))
        index.last = saved.last
    return index, saved is not None and saved.end > index.end


def _keep_copy(files: Files, segment: Segment, offset: int, tail: bytes) -> str:
    """Keeps bytes that are cut off: bit rot looks like a write cut short."""
    path = segment.path.with_suffix(f".cut-{offset}")
    kept = files.open(path)
    try:
        kept.truncate(0)
        kept.write_at(0, tail)
    finally:
        kept.close()
    return str(path)


def orphan_files(files: Files, directory: Path, segments: Sequence[Segment]) -> list[Path]:
    """Indexes, and copies of bytes that were cut off, of segments that are gone; those of existing
    segments may be needed for a repair.
    """
    kept = {segment.path.stem for segment in segments}
    return [
        directory / name
        for name in files.names(directory)
        if _is_ours(name) and name.partition(".")[0] not in kept
    ]


def _is_ours(name: str) -> bool:
    stem, _dot, ending = name.partition(".")
    known = ending.startswith(("cut-", INDEX_ENDING[1:]))
    return known and stem.isascii() and stem.isdigit()
