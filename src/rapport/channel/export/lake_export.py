"""Export from the log to the lake: channels as Parquet files, each row exactly once. [CH-16, PI-3]

Announce, write, confirm: the manifest names the positions of files before they are written; after a
crash exactly these are written again, under the same names. A kill between any two steps neither
loses nor doubles a row.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rapport.channel.channel import Channel, Channels, gaps_between
from rapport.channel.export.parquet_files import make_directory, replaced_file, write_parts
from rapport.core.errors import Conflict, Corrupt, StoreUnavailable
from rapport.core.event import Gap, StoredEvent
from rapport.kernel.telemetry import get_logger

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the manifest; others are refused."""
EXPORT_RUNNING = "lake.export_running"
_log = get_logger(__name__)
_FIRST_READ = 256
_LARGEST_READ = 10_000
_NO_LIMIT = 2**62


class ChannelProgress(msgspec.Struct):
    """How far a channel is exported; `pending` is the last position of files being written."""

    exported: int = 0
    pending: int = 0
    rows: int | None = None
    """Events written up to there; None in a lake that was begun before they were counted."""
    gaps: list[Gap] | msgspec.UnsetType = msgspec.UNSET
    """Unreadable positions of the log; left out when there are none."""


class Manifest(msgspec.Struct):
    """The state of a lake."""

    format: int = FORMAT
    channels: dict[str, ChannelProgress] = {}

    def progress(self, channel: str) -> ChannelProgress:
        """A channel's progress, from now on in the manifest."""
        return self.channels.setdefault(channel, ChannelProgress(rows=0))


def read_manifest(directory: Path) -> Manifest:
    """The lake's manifest, an empty one for a new lake; raises Corrupt when it cannot be read."""
    path = directory / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
        check_format(path, found.format)
        return found
    except FileNotFoundError:
        return Manifest()
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the manifest {path} cannot be read: {error}",
            code="lake.bad_manifest",
            hint="move the lake directory aside and export again: the log still has every event",
        ) from None
    except OSError as error:
        raise _unusable(directory, error) from None


def check_format(path: Path, format: int) -> None:
    """Raises Conflict for a format of another version of this program."""
    if format != FORMAT:
        raise Conflict(
            f"{path} was written by another version of this program (form {format}, here {FORMAT})",
            code="lake.other_version",
            hint="go on with that version, or begin a new lake: the log still has its events",
        )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replaces the manifest at once; durable when it returns."""
    with replaced_file(directory / MANIFEST) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))


def take_lock(directory: Path) -> int:
    """Locks a lake for one export; the lock ends with the descriptor, so with the process. Raises
    Conflict while another one holds it.
    """
    try:
        make_directory(directory)
        lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Conflict(
            f"another export into {directory} is running",
            code=EXPORT_RUNNING,
            hint="it will be done soon; try again",
        ) from None
    return lock


def _unusable(directory: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot use {directory} as a lake: {error.strerror}", code="lake.unavailable"
    )


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one export, and the last exported position of every channel."""

    rows: int
    files: int
    positions: dict[str, int]
    passed_over: int = 0
    """Unreadable positions: trimmed, expired, or damaged."""
    unreadable: int = 0
    """Those of them that are damaged or missing; the manifest names them."""


class ExportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is written at once."""

    rows: int = 100_000
    data_bytes: int = 64 * 1024 * 1024


async def export_channels(
    channels: Channels,
    directory: Path,
    *,
    names: Sequence[str] | None = None,
    until: Mapping[str, int] | None = None,
    rows_per_file: int = 100_000,
    bytes_per_file: int = 64 * 1024 * 1024,
) -> ExportResult:
    """Writes the events of each channel (default: all) since the last export, up to its present
    end, or up to the position in `until`; then only the channels in it.

    Memory is bounded by about `bytes_per_file` of payload and twice that while writing. Raises
    Conflict when another export into the same directory runs, Corrupt for a damaged manifest,
    StoreUnavailable when the disk fails.
    """
    if names is None:
        names = channels.names() if until is None else list(until)
    limits = ExportLimits(rows=rows_per_file, data_bytes=bytes_per_file)
    async with _lock(directory):
        export = _ExportRun(directory, await asyncio.to_thread(read_manifest, directory))
        for name in sorted(names):
            channel = channels.channel(name)
            end = channel.last_position()
            _refuse_shorter(channel, end, export.manifest.progress(name))
            await export.take(channel, end if until is None else min(end, until[name]), limits)
    return export.result()


class _ExportRun:
    """One running export; holds the manifest and counts."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory, self.manifest = directory, manifest
        self._rows = self._files = self._passed_over = self._unreadable = 0

    async def take(self, channel: Channel, end: int, limits: ExportLimits) -> None:
        """Exports a channel up to a position, and what was announced before a crash in any case."""
        progress = self.manifest.progress(channel.name)
        while progress.exported < max(end, progress.pending):
            if progress.pending > progress.exported:
                no_limits = ExportLimits(rows=_NO_LIMIT, data_bytes=_NO_LIMIT)
                last, stored = await _next_rows(channel, progress, progress.pending, no_limits)
            else:
                last, stored = await _next_rows(channel, progress, end, limits)
            gaps = gaps_between(channel, progress.exported, last)
            self._count(channel.name, last - progress.exported, stored, gaps)
            await _to_its_end(asyncio.to_thread(self._write, channel.name, last, stored, gaps))

    def result(self) -> ExportResult:
        """The result."""
        return ExportResult(
            rows=self._rows,
            files=self._files,
            positions={name: one.exported for name, one in self.manifest.channels.items()},
            passed_over=self._passed_over,
            unreadable=self._unreadable,
        )

    def _count(
        self, channel: str, positions: int, stored: Sequence[StoredEvent], gaps: Sequence[Gap]
    ) -> None:
        self._rows += len(stored)
        unreadable = sum(gap.last - gap.first + 1 for gap in gaps)
        passed_over = positions - len(stored)
        self._passed_over += passed_over
        self._unreadable += unreadable
        if passed_over > unreadable:
            _log.warning(
                "not in the log any more", channel=channel, events=passed_over - unreadable
            )
        for gap in gaps:
            _log.warning(
                "unreadable events are not in the lake",
                channel=channel,
                first=gap.first,
                last=gap.last,
                reason=gap.reason,
            )

    def _write(
        self, channel: str, last: int, stored: Sequence[StoredEvent], gaps: Sequence[Gap]
    ) -> None:
        """Announces, writes and confirms."""
        progress = self.manifest.channels[channel]
        first, progress.pending = progress.exported + 1, last
        if stored:
            write_manifest(self._directory, self.manifest)
            self._files += write_parts(self._directory, channel, first, last, stored)
        progress.exported, progress.pending = last, 0
        if progress.rows is not None:
            progress.rows += len(stored)
        if gaps:
            known = [] if progress.gaps is msgspec.UNSET else progress.gaps
            progress.gaps = [*known, *gaps]
        write_manifest(self._directory, self.manifest)


async def _next_rows(
    channel: Channel, progress: ChannelProgress, end: int, limits: ExportLimits
) -> tuple[int, list[StoredEvent]]:
    """The rows of the next files, as many as fit the limits, and the position they reach. Missing
    events are skipped.
    """
    taken: list[StoredEvent] = []
    position, size, step = progress.exported, 0, _FIRST_READ
    while position < end and len(taken) < limits.rows and size < limits.data_bytes:
        limit = min(step, end - position, limits.rows - len(taken))
        read = await channel.read_after(position, limit=limit)
        fitting = [item for item in read if item.position <= end]
        position = fitting[-1].position if len(fitting) == len(read) > 0 else end
        taken += fitting
        size += sum(len(item.event.data) for item in fitting)
        # Large events are read in small steps, small ones in large steps.
        room = max(limits.data_bytes - size, 1) * len(taken) // max(size, 1)
        step = max(1, min(room, _LARGEST_READ))
    return position, taken


def _refuse_shorter(channel: Channel, end: int, progress: ChannelProgress) -> None:
    """Raises Conflict for a log that is shorter than its export."""
    if end < max(progress.exported, progress.pending):
        raise other_log(channel.name)


def other_log(channel: str) -> Conflict:
    """The error for a lake that has more of a channel than its log."""
    return Conflict(
        f"the log of {channel!r} ends before what the lake has of it",
        code="lake.other_log",
        hint="this lake was made from another log; export into a new directory",
    )


@asynccontextmanager
async def _lock(directory: Path) -> AsyncIterator[None]:
    taken: list[int] = []
    try:
        await _to_its_end(asyncio.to_thread(lambda: taken.append(take_lock(directory))))
        yield
    finally:
        for lock in taken:
            os.close(lock)


async def _to_its_end(work: Coroutine[None, None, None]) -> None:
    """Waits for work in a thread even when cancelled: the lock may not go before it has ended."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
