"""The last segment after a crash: whole groups stay, an unfinished write is cut. [CH-13]"""

from __future__ import annotations

import msgspec

from rapport.store.files import Files, OpenFile
from rapport.store.segments.index import GroupWalk, Hole, SegmentIndex
from rapport.store.segments.reading import Fault, Segment, hole_fault, read_index
from rapport.store.segments.scanning import scan


class Recovered(msgspec.Struct):
    """The index of what is whole, the bytes the file now has, and what was found damaged."""

    index: SegmentIndex
    size: int
    faults: list[Fault]
    is_shortened: bool = False
    """Whether the saved index knew of more than the file has: it must not be believed again."""
    is_saved: bool = False
    """Whether the saved index says all of this, and the file has nothing else."""


def recover(files: Files, log: str, segment: Segment, file: OpenFile) -> Recovered:
    """Finds the end of the last whole group and cuts what stands behind it.

    Reads only what the saved index does not cover: nothing after a clean close. Raises OSError.
    """
    size = file.size()
    saved = read_index(files, segment)
    saved_end = None if saved is None else saved.end
    index, is_shortened = _walk(segment, file, size, saved)
    path = str(segment.path)
    faults = [hole_fault(log, segment, hole) for hole in index.holes]
    tail = file.read_at(index.end, size - index.end).rstrip(b"\0") if index.end < size else b""
    if tail:
        kept = _put_aside(files, segment, index.end, tail)
        # No sync: nothing is written behind the cut before the next append, whose sync covers it.
        file.truncate(index.end)
        end = index.end + len(tail)
        faults.append(Fault(log, path, index.end, end, "an unfinished write", kept))
        size = index.end
    is_saved = not is_shortened and saved_end == index.end == size
    return Recovered(index, size, faults, is_shortened, is_saved)


def _walk(
    segment: Segment, file: OpenFile, size: int, saved: SegmentIndex | None
) -> tuple[SegmentIndex, bool]:
    """What of the file is whole, and whether it was longer once."""
    index = SegmentIndex(segment.first) if saved is None or saved.end > size else saved
    GroupWalk(index).take_all(scan(file.read_at, index.end, size))
    if saved is not None and saved.last > index.last:
        # Somebody shortened the file. The positions were given away once and are not given again.
        missing = saved.last - index.last
        index.holes.append(Hole(index.end, saved.end, index.last + 1, missing))
        index.last = saved.last
    return index, saved is not None and saved.end > index.end


def _put_aside(files: Files, segment: Segment, offset: int, tail: bytes) -> str:
    """A write cut short was acknowledged to nobody. Yet rot looks alike, so its bytes are kept."""
    path = segment.path.with_suffix(f".cut-{offset}")
    kept = files.open(path)
    try:
        kept.truncate(0)
        kept.write_at(0, tail)
    finally:
        kept.close()
    return str(path)
