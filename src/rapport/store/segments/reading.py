"""Reading blocks out of segment files, for the writing process and for others. [CH-13]"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable
from rapport.store.base import READ_BYTES, Block
from rapport.store.files import Files
from rapport.store.gaps import DAMAGED, MISSING
from rapport.store.segments.frames import HEADER_BYTES, body_is_sound, decode_header
from rapport.store.segments.index import GroupWalk, Hole, SegmentIndex
from rapport.store.segments.scanning import Damage, ReadAt, scan

LOGS = "logs"
"""Directory below the store's that holds one directory per log."""
SEGMENT_ENDING, INDEX_ENDING = ".log", ".index"
_CHUNK_BYTES = 256 * 1024
_LONGEST_FILE_NAME = 200
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


class Segment:
    """One segment file: its path, its first position, and its index once somebody needed it."""

    def __init__(self, directory: Path, first: int) -> None:
        self.first = first
        self.path = directory / f"{first:020d}{SEGMENT_ENDING}"
        self.index_path = directory / f"{first:020d}{INDEX_ENDING}"
        self.index: SegmentIndex | None = None
        self.size: int | None = None
        """Bytes of the file once it is closed and somebody asked."""
        self.times: tuple[int, int] | None = None
        """When its oldest and newest records were received, likewise."""


class Fault(msgspec.Struct, frozen=True):
    """Damaged bytes in a segment; the file still holds them (or `kept` names where they were put
    aside).
    """

    log: str
    path: str
    offset: int
    end: int
    reason: str
    kept: str = ""

    def as_error(self) -> Corrupt:
        """The fault as the error a caller or a report shows."""
        where = f"; the bytes are kept in {self.kept}" if self.kept else ""
        return Corrupt(
            f"log {self.log!r}: {self.reason} in {self.path} at offset {self.offset} "
            f"({self.end - self.offset} bytes){where}",
            code="log.damaged",
            hint="what stands before and after it is readable; restore the file from a copy",
        )


def hole_fault(log: str, segment: Segment, hole: Hole | Damage) -> Fault:
    """The fault that a hole in a segment is."""
    reason = "a damaged record" if hole.end > hole.offset else "records are missing"
    return Fault(log, str(segment.path), hole.offset, hole.end, reason)


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


class Found(msgspec.Struct):
    """What reading a stretch of a segment gave: blocks, damage passed over, and where to go on."""

    blocks: list[Block]
    damage: list[Damage]
    next_offset: int
    offsets: list[int] = msgspec.field(default_factory=list)
    """Where the body of each block begins."""


class PlacedBlock(msgspec.Struct, frozen=True):
    """A block and where its body stands: the segment by its first position, the offset in it."""

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
) -> Found:
    """Blocks between two offsets that hold records after `position`, until `max_records` or
    `max_bytes` are reached.

    Every body is checked; what fails, or stands there a second time, is passed over and handed back
    as damage.
    """
    found = Found([], [], start)
    window = _Window(read, end)
    wanted, room, reached = max_records, max_bytes, 0
    while wanted > 0 and room > 0 and found.next_offset < end:
        at = found.next_offset
        header = decode_header(*window.covering(at, HEADER_BYTES))
        if header is None:
            _pass_over(read, at, end, found)
            continue
        chunk, start_of_frame = window.covering(at, header.frame_bytes)
        body = chunk[start_of_frame + HEADER_BYTES : start_of_frame + header.frame_bytes]
        if not body_is_sound(header, body):
            _pass_over(read, at, end, found)
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


class _Window:
    """The bytes read last; the next frames mostly lie in them."""

    def __init__(self, read: ReadAt, end: int) -> None:
        self._read, self._end = read, end
        self._start, self._bytes = 0, b""

    def covering(self, offset: int, length: int) -> tuple[bytes, int]:
        """Bytes that reach from `offset` over `length` (or to the end), and where in them `offset`
        is.
        """
        relative = offset - self._start
        if relative < 0 or relative + length > len(self._bytes):
            wanted = min(max(_CHUNK_BYTES, length), self._end - offset)
            self._start, self._bytes, relative = offset, self._read(offset, wanted), 0
        return self._bytes, relative


def _pass_over(read: ReadAt, offset: int, end: int, found: Found) -> None:
    item = next(scan(read, offset, end), None)
    if isinstance(item, Damage):
        found.damage.append(item)
        found.next_offset = item.end
    else:
        found.next_offset = end


def load_index(files: Files, segment: Segment, until: int) -> tuple[SegmentIndex, bool]:
    """Index of a closed segment that ends before position `until`, and whether it had to be
    rebuilt.
    """
    index = read_index(files, segment)
    if index is not None and index.last >= until - 1:
        return index, False
    index = index or SegmentIndex(segment.first)
    file = files.open_to_read(segment.path)
    try:
        walk = GroupWalk(index, until=until)
        walk.take_all(scan(file.read_at, index.end, file.size(), bodies=False))
        walk.end_of_closed()
    finally:
        file.close()
    return index, True


def read_index(files: Files, segment: Segment) -> SegmentIndex | None:
    """The index kept beside a segment; None when there is none that can be used."""
    try:
        file = files.open_to_read(segment.index_path)
    except FileNotFoundError:
        return None
    try:
        return SegmentIndex.decode(file.read_at(0, file.size()), segment.first)
    finally:
        file.close()


def segments_in(files: Files, directory: Path) -> list[Segment]:
    """The segments of a log's directory, by first position; files of other names are left alone.

    An index without its segment proves that the segment was lost: letting one go removes the index
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
    """The log name again."""
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


def disk_refused(what: str, error: OSError) -> StoreUnavailable:
    """The error for a disk that said no."""
    return StoreUnavailable(
        f"{what}: {error.strerror or error}",
        code="store.disk_full" if error.errno in _FULL else "store.disk_failed",
        hint="free some space, then try again"
        if error.errno in _FULL
        else "look at the disk and the file's rights; nothing of this append is kept",
    )
