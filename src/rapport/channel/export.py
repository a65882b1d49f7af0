"""From the log to the lake: channels as Parquet files, each row exactly once. [CH-16, PI-3]

Layout: `bronze/channel=<name>/day=<received>/type=<type>/<first>-<last>.parquet` and
`manifest.json`. Before files are written the manifest says which positions they will hold; after a
crash exactly these are written again, under the same names.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.channel.channel import Channel, Channels
from rapport.core.batch import ENVELOPE, EventBatch
from rapport.core.errors import Conflict, Corrupt, StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.core.ids import content_id
from rapport.core.times import format_time
from rapport.kernel.paths import sync_path

MANIFEST = "manifest.json"
BRONZE = "bronze"
ROW_GROUP = 65_536
"""Rows of a Parquet row group: what a reader decodes at once."""

_WORD = pa.dictionary(pa.int32(), pa.string())
_MAX_NAME_BYTES = 200
_FIRST_READ = 256
_LARGEST_READ = 10_000

# Dictionary columns have the type that pandas gives directories of the same name: both agree.
BRONZE_SCHEMA = pa.schema(
    [
        pa.field("channel", _WORD, nullable=False),
        *(field.with_type(_WORD) if field.name == "type" else field for field in ENVELOPE),
    ]
)


class ChannelProgress(msgspec.Struct):
    """How far a channel is exported; `pending` is the last position of files being written."""

    exported: int = 0
    pending: int = 0


class Manifest(msgspec.Struct):
    """What the lake knows about itself."""

    format: int = 1
    channels: dict[str, ChannelProgress] = {}


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What one export did, and the last exported position of every channel."""

    rows: int
    files: int
    positions: dict[str, int]


async def export_channels(
    channels: Channels,
    directory: Path,
    *,
    names: Sequence[str] | None = None,
    rows_per_file: int = 100_000,
    bytes_per_file: int = 64 * 1024 * 1024,
) -> Exported:
    """Writes what each channel (default: all) holds beyond the last export, up to its present end.

    Memory is bounded by about `bytes_per_file` of payload and twice that while writing. Raises
    Conflict when another export into the same directory runs, Corrupt for a damaged manifest,
    StoreUnavailable when the disk refuses.
    """
    lock = await asyncio.to_thread(_take_lock, directory)
    try:
        manifest = await asyncio.to_thread(read_manifest, directory)
        rows = files = 0
        for name in sorted(channels.names() if names is None else names):
            channel, progress = channels.channel(name), manifest.channels.get(name)
            progress = manifest.channels[name] = progress or ChannelProgress()
            end = _end_of(channel, progress)
            while progress.exported < end:
                stored = await _next_rows(channel, progress, end, rows_per_file, bytes_per_file)
                files += await asyncio.to_thread(_export_rows, directory, manifest, name, stored)
                rows += len(stored)
    finally:
        os.close(lock)
    positions = {name: progress.exported for name, progress in manifest.channels.items()}
    return Exported(rows=rows, files=files, positions=positions)


def export_readings(batches: Iterable[pa.RecordBatch], path: Path, schema: pa.Schema) -> int:
    """Writes readings (or any record batches of one schema) to one Parquet file, whole or not at
    all.

    Returns the number of rows; keeps about one row group in memory, however small the batches are.
    """
    rows = 0
    with replaced_file(path) as temporary:
        # Numbers that hardly repeat gain nothing from a dictionary and lose a third of the speed.
        words = [field.name for field in schema if pa.types.is_string(field.type)]
        with pq.ParquetWriter(temporary, schema, compression="zstd", use_dictionary=words) as file:
            for table in _row_groups(batches, schema):
                file.write_table(table, row_group_size=ROW_GROUP)
                rows += table.num_rows
    return rows


def read_manifest(directory: Path) -> Manifest:
    """The lake's manifest, an empty one for a new lake; raises Corrupt when it cannot be read."""
    path = directory / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest()
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the manifest {path} cannot be read: {error}",
            code="lake.bad_manifest",
            hint="move the lake directory aside and export again: the log still has every event",
        ) from None


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; on success it takes the place of `path`, durably and at once.

    Hidden and with another ending meanwhile, so that no reader of the lake sees it; gone after an
    error.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        _make_directory(path.parent)
        yield temporary
        sync_path(temporary)
        temporary.rename(path)
        sync_path(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror or error}", code="lake.unavailable"
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def partition_name(column: str, value: str) -> str:
    """The name of a partition's directory: special characters percent-encoded, over-long values
    cut.

    >>> partition_name("type", "person.position"), partition_name("type", "a/b=c")
    ('type=person.position', 'type=a%2Fb%3Dc')
    """
    # Letters beyond ASCII stay as they are: Spark decodes each %XX as one character, not as UTF-8.
    text = "".join(
        letter
        if letter.isalnum() or letter in "-._~ " or ord(letter) > 127
        else f"%{ord(letter):02X}"
        for letter in value
    )
    if len(text.encode()) > _MAX_NAME_BYTES:
        # File systems stop at 255 bytes; the column in the file has the whole value.
        text = (
            text.encode()[: _MAX_NAME_BYTES - 40].decode(errors="ignore") + "~" + content_id(value)
        )
    return f"{column}={text}"


def _end_of(channel: Channel, progress: ChannelProgress) -> int:
    """The channel's present end; refuses a log that is shorter than what was exported from it."""
    end = channel.last_position()
    if end < max(progress.exported, progress.pending):
        raise Conflict(
            f"the log of {channel.name!r} ends at {end}, before what the lake has of it",
            code="lake.other_log",
            hint="this lake was made from another log; export into a new directory",
        )
    return end


async def _next_rows(
    channel: Channel, progress: ChannelProgress, end: int, rows_per_file: int, bytes_per_file: int
) -> list[StoredEvent]:
    """The rows of the next files: those announced before a crash, or as many as fit the limits."""
    announced = progress.pending > progress.exported
    last = progress.pending if announced else min(end, progress.exported + rows_per_file)
    taken: list[StoredEvent] = []
    position, size, step = progress.exported, 0, _FIRST_READ
    while position < last and (announced or size < bytes_per_file):
        read = await channel.read_after(position, limit=min(step, last - position))
        if not read:
            raise Corrupt(
                f"channel {channel.name!r} ends at {end} but has nothing after {position}",
                code="lake.gap_in_log",
            )
        taken += [item for item in read if item.position <= last]
        position = read[-1].position
        size += sum(len(item.event.data) for item in read)
        # Large events are read in small steps, small ones in large steps.
        room = max(bytes_per_file - size, 1) * len(taken) // max(size, 1)
        step = max(1, min(room, _LARGEST_READ))
    return taken


def _export_rows(
    directory: Path, manifest: Manifest, channel: str, stored: list[StoredEvent]
) -> int:
    """Announces, writes and confirms; returns the number of files."""
    progress = manifest.channels[channel]
    first, progress.pending = progress.exported + 1, stored[-1].position
    _write_manifest(directory, manifest)
    parts: dict[tuple[str, str], list[StoredEvent]] = {}
    for item in stored:
        # The day of arrival: it never runs ahead or back, whatever time a source claims.
        parts.setdefault((format_time(item.received)[:10], item.event.type), []).append(item)
    for (day, kind), rows in parts.items():
        folder = directory / BRONZE / partition_name("channel", channel)
        folder = folder / partition_name("day", day) / partition_name("type", kind)
        name = f"{first:020d}-{progress.pending:020d}.parquet"
        with replaced_file(folder / name) as temporary:
            pq.write_table(_bronze_table(channel, rows), temporary, compression="zstd")
    progress.exported, progress.pending = progress.pending, 0
    _write_manifest(directory, manifest)
    return len(parts)


def _bronze_table(channel: str, rows: Sequence[StoredEvent]) -> pa.Table:
    columns = EventBatch.from_stored(rows).columns
    names = pa.array([channel] * len(rows), pa.string())
    arrays = [names, *columns.columns]
    return pa.Table.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, BRONZE_SCHEMA, strict=True)],
        schema=BRONZE_SCHEMA,
    )


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in tables of about a row group; at least one table, so that the file has a
    schema."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    yield pa.Table.from_batches(waiting, schema)


def _write_manifest(directory: Path, manifest: Manifest) -> None:
    with replaced_file(directory / MANIFEST) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))


def _take_lock(directory: Path) -> int:
    """One export at a time into a lake; the lock goes with the descriptor, so with the process."""
    try:
        _make_directory(directory)
        lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot use {directory} as a lake: {error.strerror}", code="lake.unavailable"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Conflict(
            f"another export into {directory} is running", code="lake.export_running"
        ) from None
    return lock


def _make_directory(path: Path) -> None:
    """Makes the directory and every missing parent, each one durable in its parent."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_path(path.parent)
