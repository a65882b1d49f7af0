"""Rows to events, and events into a channel exactly once. [PI-2, CH-6]

A row that says who it is keeps its id; another gets one from the token and its number. So writing
the same rows again changes nothing: the channel knows them by (source, id).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from rapport.channel.log.sequences import EPOCH, HOPS, PUBLISHER, SEQUENCE, SEQUENCED_IN
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, check_envelope
from rapport.pipeline.sources.place import Place
from rapport.pipeline.sources.rows import CHANNEL_SCHEMA, EVENT_COLUMNS

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


_TEXT = _Type("STRING", (pa.types.is_string, pa.types.is_large_string))
_TYPES = {
    **dict.fromkeys(("source", "id", "type", "subject"), _TEXT),
    "time": _Type(
        "BIGINT",
        (pa.types.is_integer,),
        "give milliseconds since 1970 UTC, such as unix_millis(a timestamp)",
    ),
    "headers": _Type("MAP<STRING, STRING>", (_is_map_of_texts,)),
    "data": _Type(
        "JSON as STRING or BINARY",
        (*_TEXT.kinds, pa.types.is_binary, pa.types.is_large_binary),
        "use to_json(struct(...))",
    ),
}


class Target(msgspec.Struct, frozen=True):
    """The channel that is written to, and where it is."""

    place: Place
    channel: str
    patience_ms: int = 30_000


class Written(msgspec.Struct, frozen=True):
    """How many rows were handed over, and how many of them the channel had already."""

    rows: int = 0
    known: int = 0


def append_rows(
    target: Target, rows: pa.Table | Iterable[pa.RecordBatch], *, token: str = ""
) -> Written:
    """Appends rows with the columns of an event; on disk when it returns.

    Goes through the node that runs the site, or takes the log's lock for the moment when none does.
    `token` names the rows of this call (such as "query/epoch/partition"): a row without an id gets
    one from it and from its number. Raises InvalidInput for rows that are no events, Unavailable
    when the node or the lock is away for longer than the target's patience.
    """
    from rapport.pipeline.sources.writing import opened_to_write

    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    requests = in_requests(events_of(batches, token))
    first = next(requests, None)
    if first is None:
        return Written()  # most tasks of a quiet stream: nothing is opened for them
    written = known = 0
    with opened_to_write(target) as append:
        for events in chain((first,), requests):
            known += append(events)
            written += len(events)
    return Written(written, known)


def check_columns(names: Sequence[str]) -> None:
    """Raises InvalidInput unless rows with these columns can be events. The columns of a channel
    may be among them: what append gives anew (channel, position, received) is left out.
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
    """The rows as events, checked; raises InvalidInput naming the row that is none."""
    number = 0
    for batch in batches:
        check_columns(batch.schema.names)
        _check_types(batch.schema)
        names = [name for name in EVENT_COLUMNS if name in batch.schema.names]
        columns = [batch.column(name).to_pylist() for name in names]
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            try:
                yield _event_of(row, token, number)
            except InvalidInput as error:
                message = f"row {number} of this partition: {error.message}"
                raise InvalidInput(message, code=error.code, hint=error.hint) from None
            number += 1


def in_requests(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The events in portions that any node takes."""
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
    """The headers without those that are null and those that say how a copied event arrived.

    A publisher's numbers count for the channel it sent the event to: in another one, and in the
    order in which Spark hands rows over, they would mark events as repetitions that are none.
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
