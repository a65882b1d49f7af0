"""Logs as checksummed segment files in a directory: one sync per append, one writing process.
[CH-13]

`SegmentLogStore` writes and reads under a lock; `SegmentLogReader` follows the files of a log that
another process writes, without the lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from rapport.core.errors import Corrupt, RapportError
from rapport.kernel.telemetry import get_logger
from rapport.store.base import READ_BYTES, Block, LogPiece, closed_error
from rapport.store.event_locations import EventLocation, EventReader
from rapport.store.files import DiskFiles, Files, Lock, disk_error
from rapport.store.gaps import MISSING
from rapport.store.segment_files import (
    LOGS,
    Damage,
    GroupWalk,
    Hole,
    LocatedBlock,
    Segment,
    SegmentFault,
    SegmentIndex,
    decode_log_name,
    encode_log_name,
    gap_reason,
    hole_fault,
    load_index,
    read_blocks,
    read_index,
    scan,
    segments_in,
)
from rapport.store.segment_log import MOST_OPEN, OpenSegments, SegmentLog

_log = get_logger(__name__)

SEGMENT_BYTES = 64 * 1024 * 1024
_LEAST_SEGMENT = 64 * 1024
_LOGS_AT_ONCE = 200
"""Logs whose files `find_damage` checks in one call, so that thousands of logs cost little."""


def _no_limit(_log: str) -> int:
    return 0


class SegmentLogStore:
    """A LogStore in a directory: `logs/<name>/<first position>.log`, each with a rebuildable
    `.index`.

    Opening acquires the writer's lock and lists names; a log's last segment is checked when the log
    is first used, so the cost of opening does not depend on the amount of data. Damaged bytes are
    skipped, kept, and listed by `problems`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        files: Files | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        most_open: int = MOST_OPEN,
    ) -> None:
        self._files: Files = files or DiskFiles()
        self._root = directory / LOGS
        self._segment_bytes = segment_bytes
        self._limit_of: Callable[[str], int] = _no_limit
        self._guard = threading.Lock()
        self._open: dict[str, SegmentLog] = {}
        self._pool = OpenSegments(most_open)
        self._durable_names: set[str] = set()
        """Directories of logs whose names are durable."""
        self._event_reader = EventReader(self._files)
        self._looked_at = ""
        self._lock: Lock | None = self._prepare(directory)

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """See LogStore; one write and one sync for any number of blocks. A new log whose first
        append fails leaves nothing on the disk.
        """
        found = self._open.get(log)
        if found is not None:
            return found.append(blocks, received)
        is_new = not self._files.names(self._root / encode_log_name(log))
        found = self._log(log)
        try:
            return found.append(blocks, received)
        except RapportError:
            if is_new:
                self._discard(log)
            raise

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        """See LogStore; damaged blocks are left out and listed by `problems`."""
        found = self._log_if_any(log)
        return found.read_after(position, max_records) if found else []

    def read_placed(
        self, log: str, position: int, *, max_records: int = 10_000
    ) -> list[LocatedBlock]:
        found = self._log_if_any(log)
        return found.read_placed(position, max_records) if found else []

    def read_spots(self, log: str, spots: Sequence[EventLocation]) -> list[bytes | None]:
        found = self._log_if_any(log)
        if found is None:
            return [None] * len(spots)
        return self._event_reader.read(log, spots, found.segment_path)

    def last_position(self, log: str) -> int:
        found = self._log_if_any(log)
        return found.last if found else 0

    def first_position(self, log: str) -> int:
        found = self._log_if_any(log)
        return found.first if found else 1

    def gap_reason(self, log: str, position: int) -> str:
        """Why a position that should be there cannot be read; see LogGaps."""
        found = self._log_if_any(log)
        return found.gap_reason(position) if found else MISSING

    def trim(self, log: str, before: int) -> None:
        """See LogStore; whole segments only."""
        found = self._log_if_any(log)
        if found:
            found.trim(before)
            self._event_reader.close(log)

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """See LogStore; a piece is a segment."""
        found = self._log_if_any(log)
        return found.pieces(limit) if found else []

    def trims_blocks(self, log: str) -> bool:
        return False

    def kept_bytes(self, log: str) -> int:
        found = self._log_if_any(log)
        return found.kept_bytes() if found else 0

    def close_piece(self, log: str) -> None:
        found = self._log_if_any(log)
        if found:
            found.close_piece()

    def closed_end(self, log: str) -> int:
        found = self._log_if_any(log)
        return found.closed_end() if found else 0

    def skip_to(self, log: str, position: int) -> None:
        self._log(log).skip_to(position)

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        self._log(log).restore(blocks)

    def remove(self, log: str) -> None:
        """See LogStore; after a crash half-way the next call removes the rest."""
        directory = self._root / encode_log_name(log)
        with self._guard:
            if self._lock is None:
                raise closed_error()
            held = self._open.pop(log, None)
        if held is not None:
            held.close()
        self._event_reader.close(log)
        try:
            names = self._files.names(directory)
            for name in names:
                self._files.remove(directory / name)
            if names:
                self._files.sync_directory(directory)
        except OSError as error:
            raise disk_error(f"cannot remove log {log!r}", error) from error

    def logs(self) -> list[str]:
        names = {decode_log_name(name) for name in self._stored_names()}
        return sorted(names.union(self._open))

    def problems(self) -> list[Corrupt]:
        """Every damage found so far, as errors naming file and offset."""
        with self._guard:
            logs = list(self._open.values())
        return [fault.as_error() for log in logs for fault in log.faults.values()]

    def limit_pieces(self, limit_of: Callable[[str], int]) -> None:
        self._limit_of = limit_of

    def _segment_bytes_of(self, log: str) -> int:
        limit, usual = self._limit_of(log), self._segment_bytes
        return min(usual, max(limit, _LEAST_SEGMENT)) if limit else usual

    def find_damage(self) -> list[Corrupt]:
        """See DamagedLogs; checks a bounded number of logs per call, in turn."""
        with self._guard:
            names = sorted(self._open)
            start = bisect_right(names, self._looked_at) % max(len(names), 1)
            turn = (names[start:] + names[:start])[:_LOGS_AT_ONCE]
            logs = [self._open[name] for name in turn]
        self._looked_at = turn[-1] if turn else ""
        for log in logs:
            log.find_missing_files()
        return self.problems()

    def close(self) -> None:
        with self._guard:
            logs, self._open = list(self._open.values()), {}
            lock, self._lock = self._lock, None
        if lock is None:
            return
        with ExitStack() as closing:  # each, even when another one fails; the lock last
            closing.callback(lock.release)
            closing.callback(self._event_reader.close)
            for log in logs:
                closing.callback(log.close)

    def _prepare(self, directory: Path) -> Lock:
        with ExitStack() as undo:
            try:
                self._files.make_directory(directory)
                lock = self._files.lock(directory)
                undo.callback(lock.release)
                self._files.make_directory(self._root)
                self._durable_names.update(self._files.names(self._root))
                self._files.sync_directory(self._root)
                self._files.sync_directory(directory)
                self._files.sync_directory(directory.parent)
            except OSError as error:
                raise disk_error(f"cannot open the log store in {directory}", error) from error
            undo.pop_all()
        return lock

    def _log(self, name: str) -> SegmentLog:
        with self._guard:
            if self._lock is None:
                raise closed_error()
            if name not in self._open:
                self._open[name] = self._open_log(name)
            return self._open[name]

    def _log_if_any(self, name: str) -> SegmentLog | None:
        held = self._open.get(name)
        if held is not None:
            return held
        if self._lock is None:
            raise closed_error()
        directory = self._root / encode_log_name(name)
        return self._log(name) if segments_in(self._files, directory) else None

    def _open_log(self, name: str) -> SegmentLog:
        file_name = encode_log_name(name)
        directory = self._root / file_name
        is_new = file_name not in self._durable_names
        try:
            if is_new:
                self._files.make_directory(directory)
                self._files.sync_directory(self._root)
                self._durable_names.add(file_name)
            segment_bytes = partial(self._segment_bytes_of, name)
            return SegmentLog(name, directory, self._files, segment_bytes, self._pool)
        except OSError as error:
            if is_new:
                self._remove_directory(directory)
            raise disk_error(f"cannot open log {name!r}", error) from error

    def _discard(self, log: str) -> None:
        with self._guard:
            empty = self._open.pop(log, None)
        if empty is not None:
            empty.discard()
            self._remove_directory(self._root / encode_log_name(log))

    def _remove_directory(self, directory: Path) -> None:
        """Removes the directory of a log without records; only logs a failure."""
        try:
            for name in self._files.names(directory):
                self._files.remove(directory / name)
            self._files.remove_directory(directory)
            self._durable_names.discard(directory.name)
        except OSError as error:
            _log.warning("empty log not removed", path=str(directory), error=str(error))

    def _stored_names(self) -> list[str]:
        return [
            name
            for name in self._files.names(self._root)
            if segments_in(self._files, self._root / name)
        ]


T = TypeVar("T")

_TRIES = 3


class SegmentLogReader:
    """A LogReader for processes that do not write.

    Shows whole groups only. A group may be visible between its write and the end of its sync, a
    tenth of a millisecond before its writer acknowledges it; if the sync fails, it disappears
    again. The reader never changes a file and does not create a missing index.
    """

    def __init__(self, directory: Path, *, files: Files | None = None) -> None:
        self._files: Files = files or DiskFiles()
        self._root = directory / LOGS
        self._guard = threading.Lock()
        self._tails: dict[str, _FollowedLog] = {}

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        return self._with(log, lambda tail: tail.read_after(position, max_records))

    def last_position(self, log: str) -> int:
        return self._with(log, lambda tail: tail.last)

    def first_position(self, log: str) -> int:
        return self._with(log, lambda tail: tail.first)

    def gap_reason(self, log: str, position: int) -> str:
        """Why a position that should be there cannot be read; see LogGaps."""
        return self._with(log, lambda tail: tail.gap_reason(position))

    def logs(self) -> list[str]:
        names = self._files.names(self._root)
        return sorted(
            decode_log_name(name) for name in names if segments_in(self._files, self._root / name)
        )

    def problems(self) -> list[Corrupt]:
        with self._guard:
            return [
                fault.as_error() for tail in self._tails.values() for fault in tail.faults.values()
            ]

    def close(self) -> None:
        with self._guard:
            self._tails.clear()

    def _with(self, log: str, query: Callable[[_FollowedLog], T]) -> T:
        """Refreshes a log and queries it; again when the writer trimmed a file in between."""
        with self._guard:
            tail = self._tails.setdefault(
                log, _FollowedLog(log, self._root / encode_log_name(log), self._files)
            )
            for attempt in range(_TRIES + 1):
                try:
                    tail.refresh()
                    return query(tail)
                except OSError as error:
                    if not isinstance(error, FileNotFoundError) or attempt == _TRIES:
                        raise disk_error(f"cannot read log {log!r}", error) from error
            raise AssertionError("the last attempt returns or raises")


class _FollowedLog:
    """The segments of one log, and how far the last one has been scanned."""

    def __init__(self, name: str, directory: Path, files: Files) -> None:
        self.name, self._directory, self._files = name, directory, files
        self._segments: list[Segment] = []
        self.faults: dict[tuple[str, int], SegmentFault] = {}

    @property
    def last(self) -> int:
        index = self._segments[-1].index if self._segments else None
        return index.last if index else 0

    @property
    def first(self) -> int:
        return self._segments[0].first if self._segments else 1

    def refresh(self) -> None:
        """Finds new segments and new groups of the last one; costs one listing and one header when
        idle.
        """
        known = {segment.first: segment for segment in self._segments}
        found = [
            known.get(segment.first, segment)
            for segment in segments_in(self._files, self._directory)
        ]
        closed = [segment for segment in self._segments[-1:] if found and segment is not found[-1]]
        self._segments = found
        for segment in closed:
            segment.index = None  # it has grown since; its index is read or rebuilt
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
            walk.add_all(scan(file.read_at, index.end, file.size()))
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
                raise  # trimmed by the writer since the listing
            fault = SegmentFault(self.name, str(segment.path), 0, 0, "a missing file")
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
        """Last position that a segment can hold."""
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
