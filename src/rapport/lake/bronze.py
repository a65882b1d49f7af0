"""Bronze: what every channel received, one Delta table a channel, each event once.
[CH-16, LK-2, LK-3]

`export_channels` is the node's writer. It needs no Spark: rows of some minutes become one file for
each day of arrival, and the commit that names the files carries the last position written
(`progress("export")`), so a kill between any two steps neither loses nor doubles a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.channel.channel import Channel, Channels, gaps_between
from rapport.core.errors import Conflict
from rapport.core.event import Event, Gap, StoredEvent
from rapport.core.event_columns import envelope_table
from rapport.kernel.telemetry import get_logger
from rapport.lake.places import BRONZE, GAPS, Lake
from rapport.lake.table import Table, field, write_files

WRITER = "export"
"""The writer whose progress is the last exported position of a channel."""
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Times that a TIMESTAMP can hold everywhere: years 1 to 9999."""
DAY_MS = 86_400_000
TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        field("day", pa.date32(), meaning="day of arrival, UTC"),
        field("position", pa.int64(), meaning="place in the channel"),
        field("received", TIME, meaning="when it was received"),
        field("time", TIME, meaning="event time; null outside of the years 1 to 9999"),
        field("source", pa.string(), meaning="source as the event names it"),
        field("id", pa.string(), meaning="id of the event; with source its identity"),
        field("type", pa.string(), meaning="type of the event"),
        field("subject", pa.string(), meaning="what the event is about"),
        field("headers", pa.map_(pa.string(), pa.string()), meaning="headers of the event"),
        field("data", pa.string(), meaning="payload, JSON; null when it is no text"),
        field("time_ms", pa.int64(), unit="ms", meaning="event time where `time` is null"),
        field("data_bytes", pa.binary(), meaning="payload where `data` is null"),
    ]
)
PARTITION_BY = ("day",)
GAPS_SCHEMA = pa.schema(
    [
        field("channel", pa.string(), meaning="channel"),
        field("first", pa.int64(), meaning="first position that could not be read"),
        field("last", pa.int64(), meaning="last one"),
        field("reason", pa.string(), meaning="damaged or missing"),
    ]
)
_ROWS, _BYTES = 500_000, 128 * 1024 * 1024
"""How much is written at once."""
_FIRST_READ, _LARGEST_READ = 256, 10_000
_log = get_logger(__name__)
T = TypeVar("T")


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one export, and the last exported position of every channel."""

    rows: int = 0
    files: int = 0
    positions: dict[str, int] = {}
    passed_over: int = 0
    """Positions that the log no longer has or cannot read."""
    unreadable: int = 0
    """Those of them that are damaged or missing; the table `gaps` names them."""


async def export_channels(
    channels: Channels,
    lake: Lake | Path | str,
    *,
    names: Sequence[str] | None = None,
    until: Mapping[str, int] | None = None,
    rows_at_once: int = _ROWS,
    bytes_at_once: int = _BYTES,
) -> ExportResult:
    """Appends the events of each channel (default: all) since the last export, up to its present
    end, or up to the position in `until`; then only the channels in it.

    Two processes may export the same channel at once: each event is written by one of them.
    Raises Conflict when the lake has more than the log, StoreUnavailable when the disk fails.
    """
    if names is None:
        names = channels.names() if until is None else list(until)
    lake = Lake.at(lake)
    await asyncio.to_thread(lake.refuse_former_format)
    total = ExportResult()
    for name in sorted(names):
        channel = channels.channel(name)
        end = channel.last_position()
        last = end if until is None else min(end, until[name])
        done = await _export(channel, lake, end, last, rows_at_once, bytes_at_once)
        total = ExportResult(
            rows=total.rows + done.rows,
            files=total.files + done.files,
            positions=total.positions | done.positions,
            passed_over=total.passed_over + done.passed_over,
            unreadable=total.unreadable + done.unreadable,
        )
    return total


def exported_position(lake: Lake, channel: str) -> int:
    """The last position that the lake has of a channel; 0 without any."""
    if not lake.has(BRONZE, channel):
        return 0
    return lake.open(BRONZE, channel).progress(WRITER) or 0


def other_log(channel: str) -> Conflict:
    """The error for a lake that has more of a channel than its log."""
    return Conflict(
        f"the log of {channel!r} ends before what the lake has of it",
        code="lake.other_log",
        hint="this lake was made from another log; export into another one",
    )


def bronze_table(stored: Sequence[StoredEvent]) -> pa.Table:
    """Events as rows of bronze, in their order."""
    return bronze_rows(pa.Table.from_batches([envelope_table(stored)]))


def bronze_rows(envelope: pa.Table) -> pa.Table:
    """Rows with the columns of an envelope as rows of bronze."""
    received = np.clip(envelope["received"].to_numpy(), FIRST_MS, LAST_MS)
    times = envelope["time"].to_numpy()
    outside = (times < FIRST_MS) | (times > LAST_MS)
    data = envelope["data"].combine_chunks()
    if isinstance(data, pa.ChunkedArray):
        data = pa.concat_arrays(data.chunks) if data.num_chunks else pa.array([], pa.binary())
    text, rest = _as_text(data)
    columns = {
        "day": pa.array((received // DAY_MS).astype(np.int32)).cast(pa.date32()),
        "position": envelope["position"].cast(pa.int64()),
        "received": pa.array(received * 1_000).cast(TIME),
        "time": pa.array(np.where(outside, 0, times) * 1_000, mask=outside).cast(TIME),
        **{name: envelope[name] for name in ("source", "id", "type", "subject", "headers")},
        "data": text,
        "time_ms": pa.array(times, mask=~outside),
        "data_bytes": rest,
    }
    return pa.table(columns, schema=SCHEMA)


def envelope_rows(rows: pa.Table) -> pa.Table:
    """Rows of bronze with the columns of an envelope: times in milliseconds, data as octets."""
    columns: dict[str, Any] = {}
    for name in rows.schema.names:
        if name == "time":
            millis = _milliseconds(rows["time"])
            exact = rows["time_ms"] if "time_ms" in rows.schema.names else None
            columns[name] = millis if exact is None else pc.coalesce(millis, exact)
        elif name == "received":
            columns[name] = _milliseconds(rows["received"])
        elif name == "data":
            octets = rows["data"].cast(pa.binary())
            rest = rows["data_bytes"] if "data_bytes" in rows.schema.names else None
            columns[name] = octets if rest is None else pc.coalesce(octets, rest)
        elif name not in ("day", "time_ms", "data_bytes"):
            columns[name] = rows[name]
    return pa.table(columns)


def stored_events(rows: pa.Table) -> list[StoredEvent]:
    """Rows of bronze as the events they were."""
    plain = envelope_rows(rows)
    names = ("source", "id", "type", "subject", "time", "data")
    columns = [plain[name].to_pylist() for name in names]
    headers = [dict(one) if one else {} for one in plain["headers"].to_pylist()]
    events = [Event(*values) for values in zip(*columns, headers, strict=True)]
    positions, received = plain["position"].to_pylist(), plain["received"].to_pylist()
    return [StoredEvent(*one) for one in zip(positions, received, events, strict=True)]


# --- one channel ----------------------------------------------------------------------------------


async def _export(
    channel: Channel, lake: Lake, end: int, until: int, rows_at_once: int, bytes_at_once: int
) -> ExportResult:
    if end == 0 and not await asyncio.to_thread(lake.has, BRONZE, channel.name):
        return ExportResult(positions={channel.name: 0})
    table = await asyncio.to_thread(ensure_bronze, lake, channel.name)
    position = table.progress(WRITER) or 0
    if end < position:
        raise other_log(channel.name)
    rows = files = passed_over = unreadable = 0
    while position < until:
        last, stored = await _next_events(channel, position, until, rows_at_once, bytes_at_once)
        gaps = gaps_between(channel, position, last)
        work = partial(_write, lake, table, channel.name, position, last, stored, gaps)
        written = await _to_its_end(asyncio.to_thread(work))
        if written is None:  # another process was quicker: go on behind what it has written
            position = table.progress(WRITER) or 0
            continue
        missing = last - position - len(stored)
        _warn(channel.name, missing, gaps)
        passed_over += missing
        unreadable += sum(gap.last - gap.first + 1 for gap in gaps)
        rows, files, position = rows + len(stored), files + written, last
    return ExportResult(
        rows=rows,
        files=files,
        positions={channel.name: position},
        passed_over=passed_over,
        unreadable=unreadable,
    )


def ensure_bronze(lake: Lake, channel: str) -> Table:
    """The table of a channel, created if there is none."""
    return Table.ensure(
        lake.table_uri(BRONZE, channel),
        SCHEMA,
        partition_by=PARTITION_BY,
        description=f"what channel {channel} received",
        options=lake.options,
    )


def _write(
    lake: Lake,
    table: Table,
    channel: str,
    position: int,
    last: int,
    stored: Sequence[StoredEvent],
    gaps: Sequence[Gap],
) -> int | None:
    """The number of files, None when another process has exported this channel meanwhile."""
    try:
        if gaps:
            write_gaps(lake, channel, last, gaps)
        new = write_files(table.uri, bronze_table(stored), PARTITION_BY, lake.options)
        table.commit(new, progress={WRITER: last}, after={WRITER: position})
    except Conflict:
        table.refresh()
        return None
    return len(new)


def write_gaps(lake: Lake, channel: str, last: int, gaps: Sequence[Gap]) -> None:
    """Records positions of a channel that could not be read, each once."""
    table = Table.ensure(lake.table_uri(GAPS), GAPS_SCHEMA, options=lake.options)
    done = table.progress(channel) or 0  # of a step that was killed, or of another process
    new = [gap for gap in gaps if gap.last > done]
    if not new:
        return
    columns = {
        "channel": [channel] * len(new),
        "first": [max(gap.first, done + 1) for gap in new],
        "last": [gap.last for gap in new],
        "reason": [gap.reason for gap in new],
    }
    rows = pa.table(columns, schema=GAPS_SCHEMA)
    table.append(rows, progress={channel: last}, after={channel: done})


def _warn(channel: str, passed_over: int, gaps: Sequence[Gap]) -> None:
    unreadable = sum(gap.last - gap.first + 1 for gap in gaps)
    if passed_over > unreadable:
        _log.warning("not in the log any more", channel=channel, events=passed_over - unreadable)
    for gap in gaps:
        _log.warning(
            "unreadable events are not in the lake",
            channel=channel,
            first=gap.first,
            last=gap.last,
            reason=gap.reason,
        )


async def _next_events(
    channel: Channel, after: int, until: int, most_rows: int, most_bytes: int
) -> tuple[int, list[StoredEvent]]:
    """The next events to write, as many as fit, and the position they reach. Missing ones are
    passed over.
    """
    taken: list[StoredEvent] = []
    position, size, step = after, 0, _FIRST_READ
    while position < until and len(taken) < most_rows and size < most_bytes:
        limit = min(step, until - position, most_rows - len(taken))
        read = await channel.read_after(position, limit=limit)
        fitting = [item for item in read if item.position <= until]
        position = fitting[-1].position if len(fitting) == len(read) > 0 else until
        taken += fitting
        size += sum(len(item.event.data) for item in fitting)
        # Large events are read in small steps, small ones in large steps.
        room = max(most_bytes - size, 1) * len(taken) // max(size, 1)
        step = max(1, min(room, _LARGEST_READ))
    return position, taken


async def _to_its_end(work: Coroutine[None, None, T]) -> T:
    """Waits for work in a thread even when cancelled, so that no thread writes unobserved."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def _as_text(data: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Payloads as text, and those that are none as octets."""
    try:
        text = data.cast(pa.string())  # checks that all are UTF-8
        return text, pa.nulls(len(data), pa.binary())
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    rest: list[bytes | None] = []
    for one in data.to_pylist():
        try:
            texts.append(one.decode())
            rest.append(None)
        except UnicodeDecodeError:
            texts.append(None)
            rest.append(one)
    return pa.array(texts, pa.string()), pa.array(rest, pa.binary())


def _milliseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(times.cast(pa.int64()), 1_000)
