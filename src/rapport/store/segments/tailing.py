"""Reading a log that another process writes: segments and tail, without its lock. [CH-13]"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rapport.core.errors import Corrupt
from rapport.store.base import READ_BYTES, Block
from rapport.store.files import DiskFiles, Files
from rapport.store.gaps import MISSING
from rapport.store.segments.index import GroupWalk, Hole, SegmentIndex
from rapport.store.segments.reading import (
    LOGS,
    Fault,
    Segment,
    decode_log_name,
    disk_refused,
    encode_log_name,
    gap_reason,
    hole_fault,
    load_index,
    read_blocks,
    read_index,
    segments_in,
)
from rapport.store.segments.scanning import Damage, scan

T = TypeVar("T")

_TRIES = 3


class SegmentLogReader:
    """The reading half of a LogStore, for processes that do not write.

    Shows whole groups only. A group may be seen between its write and the end of its sync, a tenth
    of a millisecond before its writer acknowledges it; if the disk refuses just then, it has been
    seen in vain. Nothing is ever changed, not even a missing index.
    """

    def __init__(self, directory: Path, *, files: Files | None = None) -> None:
        self._files: Files = files or DiskFiles()
        self._root = directory / LOGS
        self._guard = threading.Lock()
        self._tails: dict[str, _TailedLog] = {}

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        """See LogStore; looks at the files anew each time."""
        return self._with(log, lambda tail: tail.read_after(position, max_records))

    def last_position(self, log: str) -> int:
        """See LogStore."""
        return self._with(log, lambda tail: tail.last)

    def first_position(self, log: str) -> int:
        """See LogStore."""
        return self._with(log, lambda tail: tail.first)

    def gap_reason(self, log: str, position: int) -> str:
        """Why a position that should be there cannot be read; see LogGaps."""
        return self._with(log, lambda tail: tail.gap_reason(position))

    def logs(self) -> list[str]:
        """See LogStore."""
        names = self._files.names(self._root)
        return sorted(
            decode_log_name(name) for name in names if segments_in(self._files, self._root / name)
        )

    def problems(self) -> list[Corrupt]:
        """Damage met so far."""
        with self._guard:
            return [
                fault.as_error() for tail in self._tails.values() for fault in tail.faults.values()
            ]

    def close(self) -> None:
        """Forgets what was learnt about the files; none is held open."""
        with self._guard:
            self._tails.clear()

    def _with(self, log: str, ask: Callable[[_TailedLog], T]) -> T:
        with self._guard:
            tail = self._tails.setdefault(
                log, _TailedLog(log, self._root / encode_log_name(log), self._files)
            )
            try:
                return self._ask(tail, ask)
            except OSError as error:
                raise disk_refused(f"cannot read log {log!r}", error) from error

    @staticmethod
    def _ask(tail: _TailedLog, ask: Callable[[_TailedLog], T]) -> T:
        """Asks again when the writer trimmed a file between our listing and our opening it."""
        for _again in range(_TRIES):
            try:
                tail.refresh()
                return ask(tail)
            except FileNotFoundError:
                continue
        tail.refresh()
        return ask(tail)


class _TailedLog:
    """What is known of one log: its segments, and how far the last one has been walked."""

    def __init__(self, name: str, directory: Path, files: Files) -> None:
        self.name, self._directory, self._files = name, directory, files
        self._segments: list[Segment] = []
        self.faults: dict[tuple[str, int], Fault] = {}

    @property
    def last(self) -> int:
        index = self._segments[-1].index if self._segments else None
        return index.last if index else 0

    @property
    def first(self) -> int:
        return self._segments[0].first if self._segments else 1

    def refresh(self) -> None:
        """Takes in new segments and new groups of the last one; costs one listing and one header
        when idle.
        """
        known = {segment.first: segment for segment in self._segments}
        found = [
            known.get(segment.first, segment)
            for segment in segments_in(self._files, self._directory)
        ]
        closed = [segment for segment in self._segments[-1:] if found and segment is not found[-1]]
        self._segments = found
        for segment in closed:
            segment.index = None  # it has grown to its end since; its index is read or walked anew
        if found:
            self._walk_tail(found[-1])

    def _walk_tail(self, segment: Segment) -> None:
        index = segment.index or read_index(self._files, segment) or SegmentIndex(segment.first)
        segment.index = index
        if self._is_lost(segment):
            return
        file = self._files.open_to_read(segment.path)
        try:
            walk = GroupWalk(index)
            walk.take_all(scan(file.read_at, index.end, file.size()))
        finally:
            file.close()
        self._note_holes(segment, index)

    def read_after(self, position: int, max_records: int) -> list[Block]:
        blocks: list[Block] = []
        wanted, room = max_records, READ_BYTES
        while wanted > 0 and room > 0 and position < self.last:
            number = max(
                bisect_right(self._segments, position + 1, key=lambda segment: segment.first) - 1, 0
            )
            found = self._read_segment(number, position, wanted, room)
            blocks += found
            wanted -= sum(block.count for block in found)
            room -= sum(len(block.body) for block in found)
            position = found[-1].last if found else self._until(number)
        return blocks

    def _read_segment(self, number: int, position: int, wanted: int, room: int) -> list[Block]:
        segment = self._segments[number]
        try:
            index = self._index_of(number)
            file = self._files.open_to_read(segment.path)
        except FileNotFoundError:
            if not self._is_lost(segment):
                raise  # let go by the writer since we listed it
            fault = Fault(self.name, str(segment.path), 0, 0, "a missing file")
            self.faults.setdefault((segment.path.name, 0), fault)
            return []
        try:
            start = index.locate(position + 1)
            found = read_blocks(file.read_at, start, index.end, position, wanted, room)
        finally:
            file.close()
        for damage in found.damage:
            self._note(segment, damage)
        return found.blocks

    def _is_lost(self, segment: Segment) -> bool:
        """Whether only the index of a segment is left; see `segments_in`."""
        names = self._files.names(self._directory)
        return segment.path.name not in names and segment.index_path.name in names

    def gap_reason(self, position: int) -> str:
        return gap_reason(self._files, self._segments, position) if self._segments else MISSING

    def _until(self, number: int) -> int:
        """Last position that can stand in a segment."""
        following = self._segments[number + 1 : number + 2]
        return following[0].first - 1 if following else self.last

    def _index_of(self, number: int) -> SegmentIndex:
        segment = self._segments[number]
        if segment.index is None:
            segment.index, _rebuilt = load_index(self._files, segment, self._until(number) + 1)
            self._note_holes(segment, segment.index)
        return segment.index

    def _note_holes(self, segment: Segment, index: SegmentIndex) -> None:
        for hole in index.holes:
            self._note(segment, hole)

    def _note(self, segment: Segment, hole: Hole | Damage) -> None:
        key = (segment.path.name, hole.offset)
        self.faults.setdefault(key, hole_fault(self.name, segment, hole))
