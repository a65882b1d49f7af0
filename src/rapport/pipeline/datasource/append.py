"""Rows as events, appended to a channel exactly once. [PI-2, CH-6]

A row keeps its id; a row without one is named by a token and its number. The channel knows events
by (source, id), so that writing the same rows again changes nothing. Events go through the node
that runs the site, or into the log itself when no node runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.channel.agents.connection import TIMEOUT_SECONDS, NodeConnection
from rapport.channel.backends.stores import open_channels, read_identity
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.sequences import EPOCH, HOPS, PUBLISHER, SEQUENCE, SEQUENCED_IN
from rapport.channel.validation import check_pipeline_channel, is_reserved
from rapport.core.codec import to_cloudevent
from rapport.core.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    StoreUnavailable,
    Unavailable,
    UnknownName,
)
from rapport.core.event import Event, check_envelope
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.settings import read_secret
from rapport.pipeline.datasource.locations import (
    Location,
    NodeApi,
    NodeChannels,
    SiteFiles,
    SiteParts,
    answered,
    connect_node,
    read_key,
    refusal,
    site_parts,
)
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA, EVENT_COLUMNS

_NEEDED = ("source", "type", "time", "data")
_MOST_EVENTS = 1_000
_MOST_BYTES = 4 * 1024 * 1024
_OF_ARRIVAL = frozenset((PUBLISHER, EPOCH, SEQUENCE, SEQUENCED_IN, HOPS))
_ATTRIBUTES = frozenset(
    ("specversion", "id", "source", "type", "subject", "time", "data", "data_base64")
)
_CHECK_JSON = msgspec.json.Decoder(msgspec.Raw)


def _is_map_of_texts(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_map(kind)
        and pa.types.is_string(kind.key_type)
        and pa.types.is_string(kind.item_type)
    )


class _Type(msgspec.Struct, frozen=True):
    name: str
    kinds: tuple[Callable[[pa.DataType], bool], ...]
    hint: str = ""


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


_TEXT = _Type("STRING", (pa.types.is_string, pa.types.is_large_string))
_TYPES = {
    **dict.fromkeys(("source", "id", "type", "subject"), _TEXT),
    "time": _Type(
        "TIMESTAMP or BIGINT",
        (pa.types.is_integer, _is_instant),
        "give a timestamp, or milliseconds since 1970 UTC",
    ),
    "headers": _Type("MAP<STRING, STRING>", (_is_map_of_texts,)),
    "data": _Type(
        "JSON as STRING or BINARY",
        (*_TEXT.kinds, pa.types.is_binary, pa.types.is_large_binary),
        "use to_json(struct(...))",
    ),
}


class AppendTarget(msgspec.Struct, frozen=True):
    """A channel and its location."""

    location: Location
    channel: str
    patience_ms: int = 30_000


class AppendCounts(msgspec.Struct, frozen=True):
    """Rows that were sent, and how many of them the channel had already."""

    rows: int = 0
    known: int = 0


def append_rows(
    target: AppendTarget, rows: pa.Table | Iterable[pa.RecordBatch], *, token: str = ""
) -> AppendCounts:
    """Appends rows with the columns of an event; on disk when it returns.

    `token` names the rows of this call (such as "query/epoch/partition"): a row without an id gets
    one from it and from its number. Raises InvalidInput for rows that are no events, NotAllowed for
    a channel that only the node appends to, Unavailable when node or lock are away for longer than
    the target's patience.
    """
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    requests = request_batches(events_of(batches, token))
    first = next(requests, None)
    if first is None:
        return AppendCounts()  # most tasks of a quiet stream have no rows
    written = known = 0
    with open_append(target) as append:
        for events in chain((first,), requests):
            known += append(events)
            written += len(events)
    return AppendCounts(written, known)


def check_columns(names: Sequence[str]) -> None:
    """Raises InvalidInput unless rows with these columns can be events. Further columns of a
    channel (channel, position, received) are ignored: append sets them anew.
    """
    for name in names:
        if name not in CHANNEL_SCHEMA.names:
            raise UnknownName("column", name, EVENT_COLUMNS, code="sink.unknown_column")
    for name in _NEEDED:
        if name not in names:
            raise InvalidInput(
                f"the rows have no column {name!r}",
                code="sink.missing_column",
                hint=f"an event has {', '.join(EVENT_COLUMNS)}; only id, subject and headers may "
                "be left out",
            )


def events_of(batches: Iterable[pa.RecordBatch], token: str) -> Iterator[Event]:
    """The rows as events; raises InvalidInput with the number of a row that is none."""
    number = 0
    for batch in batches:
        check_columns(batch.schema.names)
        _check_types(batch.schema)
        names = [name for name in EVENT_COLUMNS if name in batch.schema.names]
        columns = [_values(batch.column(name)) for name in names]
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            try:
                yield _event_of(row, token, number)
            except InvalidInput as error:
                message = f"row {number} of this partition: {error.message}"
                raise InvalidInput(message, code=error.code, hint=error.hint) from None
            number += 1


def _values(column: pa.Array) -> list[Any]:
    """Python values; timestamps become milliseconds."""
    if _is_instant(column.type):
        column = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", "UTC"))
        column = column.cast(pa.int64())
    return list(column.to_pylist())


def request_batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The events in requests of a size that every node accepts."""
    portion: list[Event] = []
    size = 0
    for event in events:
        if portion and (len(portion) >= _MOST_EVENTS or size + len(event.data) > _MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(event)
        size += len(event.data)
    if portion:
        yield portion


def _event_of(row: dict[str, Any], token: str, number: int) -> Event:
    for name in _NEEDED:
        if row[name] is None:
            raise InvalidInput(f"{name} is null", code="sink.null")
    data = row["data"]
    event = Event(
        source=row["source"],
        id=row.get("id") or _id_of(token, number),
        type=row["type"],
        subject=row.get("subject") or "",
        time=row["time"],
        data=data.encode() if isinstance(data, str) else data,
        headers=_headers_of(row.get("headers") or ()),
    )
    _check(event)
    return event


def _headers_of(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The headers without nulls and without a copied event's publisher numbers: those count for
    the channel it was sent to, and would mark events of another one as repetitions.
    """
    headers = {
        name: value for name, value in pairs if value is not None and name not in _OF_ARRIVAL
    }
    for name in headers:
        if name in _ATTRIBUTES:
            raise InvalidInput(
                f"a header cannot have the name {name!r}",
                code="sink.bad_header",
                hint="that is an attribute of every event",
            )
    return headers


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        wanted = _TYPES.get(field.name)
        if wanted is None or pa.types.is_null(field.type):
            continue
        if not any(is_kind(field.type) for is_kind in wanted.kinds):
            raise InvalidInput(
                f"the column {field.name!r} is {field.type}, not {wanted.name}",
                code="sink.wrong_type",
                hint=wanted.hint,
            )


def _check(event: Event) -> None:
    check_envelope(event)
    try:
        _CHECK_JSON.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise InvalidInput(
            f"data is not JSON: {error}", code="event.bad_data", hint="use to_json(struct(...))"
        ) from None


def _id_of(token: str, number: int) -> str:
    if not token:
        raise InvalidInput(
            "the row has no id",
            code="sink.no_id",
            hint="give a column id, or name this write: .option('batch_token', NAME)",
        )
    return f"{token}/{number}"


AppendEvents = Callable[[Sequence[Event]], int]
"""Appends events, on disk when it returns; returns how many of them the channel had already."""

_BATCH = "application/cloudevents-batch+json"
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_LOOK_AGAIN_SECONDS = 0.2
_LOCKED = (
    "its node runs, but not where its site.toml says: .option('url', ADDRESS); "
    "or it does not take our key: .option('key_file', FILE)"
)
_ANYWHERE = ("0.0.0.0", "::")


class _Answer(msgspec.Struct):
    positions: list[int]
    duplicates: int


@contextmanager
def open_append(target: AppendTarget, clock: Clock | None = None) -> Iterator[AppendEvents]:
    """Opens the target's channel for a block.

    Without a node the log is locked for the block; while another process holds the lock (another
    task, or a node that is just starting) it is waited for.
    """
    if is_reserved(target.channel):
        check_pipeline_channel(target.channel)
    clock, location = clock or SystemClock(), target.location
    if isinstance(location, NodeApi):
        with _through_node(connect_node(location), target, clock) as append:
            yield append
        return
    assert isinstance(location, SiteFiles)
    parts = site_parts(Path(location.directory), writing=True)
    deadline = clock.steady_ns() + target.patience_ms * 1_000_000
    while True:
        line = _running_node(parts, location.key_file, clock)
        if line is not None:
            with _through_node(line, target, clock) as append:
                yield append
            return
        try:
            channels = _open_log(parts, target.channel)
            break
        except StoreUnavailable as error:
            if error.code != "store.locked" or clock.steady_ns() > deadline:
                error.hint = _LOCKED
                raise
        threading.Event().wait(_LOOK_AGAIN_SECONDS)
    with _into_log(channels, target.channel) as append:
        yield append


# --- through a node -------------------------------------------------------------------------------


@contextmanager
def _through_node(
    line: NodeConnection, target: AppendTarget, clock: Clock
) -> Iterator[AppendEvents]:
    # Channels that only the node appends to have an endpoint of their own for administrators.
    root = "/pipeline/channels" if is_reserved(target.channel) else "/channels"
    path = f"{root}/{quote(target.channel, safe='')}/events"

    def append(events: Sequence[Event]) -> int:
        body = msgspec.json.encode([to_cloudevent(event) for event in events])
        reply = answered(
            lambda: line.post(path, body, _BATCH, TIMEOUT_SECONDS), target.patience_ms, clock
        )
        if reply.status == 413 and len(events) > 1:
            middle = len(events) // 2
            return append(events[:middle]) + append(events[middle:])
        if reply.status != 200:
            raise refusal(reply, line.url)
        return _known_in(reply.body, len(events), line.url)

    try:
        yield append
    finally:
        line.hang_up()


def _known_in(body: bytes, count: int, url: str) -> int:
    """A 200 counts only when it comes from a node: portals on the way answer everything with it."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = _Answer([], 0)
    if len(answer.positions) != count:
        raise Corrupt(f"what answers at {url} is not a node", code="http.strange_answer")
    return answer.duplicates


def _running_node(parts: SiteParts, key_file: str, clock: Clock) -> NodeConnection | None:
    """A connection to the site's node if it runs at the address in `site.toml`; another site's
    node that listens there is left alone.
    """
    settings = parts.settings
    host = "127.0.0.1" if settings.host in _ANYWHERE else settings.host
    url = settings.public_url or f"http://{host}:{settings.port}"
    key = read_key(key_file)
    if not key and settings.token_file:
        key = read_secret(f"file:{settings.token_file}", parts.site)
    line = NodeConnection(url, key, most_answer_bytes=_MOST_ANSWER_BYTES)
    try:
        answering = NodeChannels(line, 0, clock).node()
    except (Unavailable, Corrupt, InvalidInput):
        answering = ""  # no server, no node, or a node that does not know our key
    own = read_identity(parts.log, parts.declared, site=parts.site)
    if answering and answering == own:
        return line
    line.hang_up()
    return None


# --- into the log ---------------------------------------------------------------------------------


def _open_log(parts: SiteParts, channel: str) -> LoggedChannels:
    if parts.declared.rules_for(channel).interceptors:
        raise Conflict(
            f"channel {channel!r} has interceptors, which work only in a running node",
            code="sink.needs_node",
            hint=f"start it: rapport up --site {parts.site}",
        )
    return open_channels(
        parts.log,
        SystemClock(),
        parts.declared,
        site=parts.site,
        segment_bytes=parts.settings.segment_bytes,
    )


@contextmanager
def _into_log(channels: LoggedChannels, channel: str) -> Iterator[AppendEvents]:
    with asyncio.Runner() as runner:

        def append(events: Sequence[Event]) -> int:
            return runner.run(channels.channel(channel).append(events)).duplicates

        try:
            yield append
        finally:
            runner.run(channels.close())
