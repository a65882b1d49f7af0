"""Blocks of events to rows of PostgreSQL and back, byte for byte. Pure. [CH-13]"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from rapport.core.codec import decode_block, encode_block
from rapport.core.errors import Corrupt
from rapport.core.event import MAX_NAME, Event, StoredEvent
from rapport.store.base import Block

CONTENT = "position, block, size, received, time, source, id, type, subject, data, headers, packed"
COLUMNS = f"log, {CONTENT}"
KINDS = ("int4", "int8", "int8", "int4", "int8", "int8", *("text",) * 6, "bytea")
"""PostgreSQL's types of the columns."""
ROW_BYTES = 200
"""About what a row takes beside its data; counted for retention by size."""

_NO_HEADERS = "{}"
_NUL_ESCAPE = b"\\u0000"
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ODD_NUMBER = re.compile(rb"[\d.][eE][+-]?\d{3}|\d{200}")

Row = tuple[Any, ...]


def rows_of_block(log: int, block: Block) -> list[Row]:
    """A row per event; a single row when the body is not exactly the encoding of events."""
    events = _events_in(block)
    if events is None:
        return [_opaque_row(log, block)]
    first, size, received = block.first, block.count, block.received
    rows: list[Row] = []
    for position, event in enumerate(events, start=first):
        place = (log, position, first, size, received)
        envelope = (event.time, event.source, event.id, event.type, event.subject)
        rows.append((*place, *envelope, *_content(event)))
    return rows


def row_bytes(row: Row) -> int:
    """Size of a row for retention by size; `BYTES_SQL` is the same in SQL."""
    data, packed = row[10], row[12]
    return ROW_BYTES + (len(packed) if data is None else len(data.encode()))


BYTES_SQL = f"{ROW_BYTES} + COALESCE(octet_length(data), octet_length(packed))"


def blocks_of_rows(rows: Sequence[Row]) -> list[Block]:
    """The blocks of rows without their `log`; the rows are in order, the blocks whole."""
    return [_block(list(group)) for _first, group in groupby(rows, key=lambda row: row[1])]


def events_of_row(row: Row) -> list[StoredEvent]:
    """The events of a row without its `log`: one, or those of a block in a single row."""
    position, first, _size, received, _time, source = row[:6]
    if source is not None:
        return [StoredEvent(position, received, _event(row))]
    try:
        events = decode_block(row[11])
    except Corrupt:
        return []  # reading the block reports it
    return [StoredEvent(place, received, event) for place, event in enumerate(events, start=first)]


def _block(rows: list[Row]) -> Block:
    _position, first, size, received, _time, source = rows[0][:6]
    if source is None:
        return Block(first, size, received, rows[0][11])
    return Block(first, size, received, encode_block([_event(row) for row in rows]))


def _event(row: Row) -> Event:
    time, source, id, type, subject, data, headers, packed = row[4:]
    if packed is not None:
        return decode_block(packed)[0]
    kept = {} if headers == _NO_HEADERS else msgspec.json.decode(headers)
    return Event(source, id, type, subject, time, data.encode(), kept)


def _events_in(block: Block) -> list[Event] | None:
    try:
        events = decode_block(block.body)
    except Corrupt:
        return None
    if len(events) != block.count or encode_block(events) != block.body:
        return None
    names = [
        name for event in events for name in (event.source, event.id, event.type, event.subject)
    ]
    fit = (
        "\x00" not in "".join(names)
        and max(map(len, names)) <= MAX_NAME
        and all(-(2**63) <= event.time < 2**63 for event in events)
    )
    return events if fit else None


def _opaque_row(log: int, block: Block) -> Row:
    place = (log, block.last, block.first, block.count, block.received)
    return (*place, *(None,) * 7, block.body)


def _content(event: Event) -> tuple[str | None, str | None, bytes | None]:
    """(data, headers, packed): the first two, or the third when PostgreSQL's JSON refuses them."""
    headers = _NO_HEADERS
    if event.headers:
        encoded = msgspec.json.encode(event.headers)
        if _NUL_ESCAPE in encoded:
            return None, None, encode_block([event])
        headers = encoded.decode()
    data = plain_json(event.data)
    if data is None:
        return None, None, encode_block([event])
    return data, headers, None


def plain_json(data: bytes) -> str | None:
    """The data as a text that PostgreSQL reads as Rapport does; None when it might not.

    PostgreSQL accepts the JSON that msgspec accepts, except the character NUL, and reads numbers
    beyond a double differently.
    """
    try:
        msgspec.json.decode(data)
        text = data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if _NUL_ESCAPE in data:
        return None
    if _ODD_NUMBER.search(data) and _ODD_NUMBER.search(_TEXTS.sub(b"", data)):
        return None
    return text
