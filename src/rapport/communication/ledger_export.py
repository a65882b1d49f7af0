"""Search of the ledger across messages and people, its export as CSV and Parquet. [CN-11, CO-10]

A record is a row of the ledger with what people know its message by. An export is made page by
page: it costs the memory of one page. A row that changes meanwhile may be missing from it, as it
moves to the front.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.communication.ledger import Ledger, Question, cursor_after
from rapport.communication.ledger_rows import LedgerRow, MessageRow
from rapport.core.errors import TooLarge
from rapport.core.times import format_time
from rapport.kernel.tasks import run_blocking

ExportFormat = Literal["csv", "parquet"]
MOST_EXPORTED = 500_000
_PAGE = 2_000
_MOST_SEEN = 20_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A cell that begins so may be run by a spreadsheet."""


class LedgerRecord(LedgerRow, kw_only=True):
    """A row of the ledger, and its message's kind, sender and text."""

    type: str = ""
    subtype: str = ""
    sender: str = ""
    text: str = ""


class LedgerRecords(msgspec.Struct, frozen=True):
    """Records, newest change first; `next` is the cursor of the next page, empty at the end. A page
    may be empty and have a `next`: a search by kind looks at 20,000 rows at most.
    """

    records: list[LedgerRecord]
    next: str = ""


async def find_records(ledger: Ledger, question: Question, kind: str = "") -> LedgerRecords:
    """The matching records; `kind` is the type of the message, empty for any."""
    found: list[LedgerRecord] = []
    after, seen = question.after, 0
    while seen < _MOST_SEEN:
        limit = _PAGE if kind else question.limit
        page = await ledger.find(msgspec.structs.replace(question, after=after, limit=limit))
        for record in await _with_messages(ledger, page.rows):
            if kind in ("", record.type):
                found.append(record)
                if len(found) == question.limit:
                    return LedgerRecords(found, cursor_after(record))
        after, seen = page.next, seen + len(page.rows)
        if not after:
            break
    return LedgerRecords(found, after)


async def _with_messages(ledger: Ledger, rows: Sequence[LedgerRow]) -> list[LedgerRecord]:
    messages = await ledger.messages_named({row.message for row in rows})
    return [_record(row, messages.get(row.message)) for row in rows]


def _record(row: LedgerRow, message: MessageRow | None) -> LedgerRecord:
    values: dict[str, Any] = msgspec.structs.asdict(row)
    if message is not None:
        of_message = ("type", "subtype", "sender", "text")
        values |= {name: getattr(message, name) for name in of_message}
    return LedgerRecord(**values)


async def check_exportable(ledger: Ledger, question: Question) -> None:
    """Raises TooLarge when more rows match than an export has."""
    count = await ledger.count(question)
    if count > MOST_EXPORTED:
        raise TooLarge(
            f"{count} rows match; an export has {MOST_EXPORTED} at most",
            code="ledger.export_too_large",
            hint="export a shorter time (since, until), one person or one state",
        )


async def export_records(
    ledger: Ledger, question: Question, kind: str, form: ExportFormat
) -> AsyncIterator[bytes]:
    """The file of all matching records, in parts."""
    writer = _CsvFile() if form == "csv" else _ParquetFile()
    question = msgspec.structs.replace(question, limit=_PAGE)
    while True:
        page = await find_records(ledger, question, kind)
        yield await run_blocking(partial(writer.write, page.records))
        if not page.next:
            break
        question = msgspec.structs.replace(question, after=page.next)
    yield await run_blocking(writer.close)


_TEXTS = (
    *("message", "type", "subtype", "peer", "address", "adapter", "state", "reason", "answer"),
    *("policy", "detection", "receiver", "sender", "text"),
)
_NAMES = {"peer": "person", "adapter": "medium", "type": "kind"}
"""Columns that people know by another name than the field."""
_COLUMNS = ("time", *_TEXTS, "attempt", "stage", "declined")


class _CsvFile:
    """A CSV file with a header; times are ISO 8601 in UTC."""

    def __init__(self) -> None:
        self._text = io.StringIO(newline="")
        self._rows = csv.writer(self._text)
        self._rows.writerow([_NAMES.get(name, name) for name in _COLUMNS])

    def write(self, records: Sequence[LedgerRecord]) -> bytes:
        for record in records:
            self._rows.writerow([_cell(name, getattr(record, name)) for name in _COLUMNS])
        return self._taken()

    def close(self) -> bytes:
        return self._taken()

    def _taken(self) -> bytes:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text.encode()


def _cell(name: str, value: Any) -> str:
    if name == "time":
        return format_time(value)
    if isinstance(value, bool):
        return str(value).lower()
    return safe_cell(value) if isinstance(value, str) else str(value)


def safe_cell(text: str) -> str:
    """The text of a CSV cell, marked as a text where a spreadsheet would take it for a formula.

    >>> safe_cell("=1+1"), safe_cell("warm")
    ("'=1+1", 'warm')
    """
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


_SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("ms", tz="UTC")),
        *(pa.field(_NAMES.get(name, name), pa.string()) for name in _TEXTS),
        pa.field("attempt", pa.int64()),
        pa.field("stage", pa.int64()),
        pa.field("declined", pa.bool_()),
    ]
)


class _ParquetFile:
    """A Parquet file, one row group per page."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._file = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), _SCHEMA)

    def write(self, records: Sequence[LedgerRecord]) -> bytes:
        columns = [[getattr(record, name) for record in records] for name in _COLUMNS]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)
        ]
        if records:
            self._file.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA))
        return self._sink.taken()

    def close(self) -> bytes:
        self._file.close()
        return self._sink.taken()


class _Sink(io.RawIOBase):
    """A file that only grows and whose bytes are taken away as they come."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        given = bytes(data)
        self._waiting += given
        self._size += len(given)
        return len(given)

    def size(self) -> int:
        return self._size

    tell = size  # as files call it

    def taken(self) -> bytes:
        data, self._waiting = bytes(self._waiting), bytearray()
        return data
