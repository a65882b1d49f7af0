"""A sample of a file: its format, its notation, its first rows. Pure. [ME-13]"""

from __future__ import annotations

import io
import re
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.mediation.formats.base import Document
from rapport.mediation.formats.catalogue import get_format, json_values, read_values
from rapport.mediation.formats.csv_format import (
    SNIFFED,
    CsvFormat,
    csv_options,
    sniff_delimiter,
    split_row,
)
from rapport.mediation.formats.senml import FIELDS
from rapport.mediation.guessing.columns import NumberMarks, null_texts, number_marks
from rapport.mediation.rejections import RejectedValue

_NUMBER = re.compile(r"[+-]?\d[\d.,:/ -]*", re.ASCII)
_SAMPLE_LINES = 200
_ONLY_WINDOWS = re.compile(rb"[\x80-\x9f]")
_UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""Octets without a character in cp1252."""


class CsvShape(msgspec.Struct, frozen=True):
    """The text and the options to read it as CSV."""

    text: str
    options: dict[str, Any]
    doubts: tuple[str, ...] = ()

    def with_options(self, **options: Any) -> CsvShape:
        return CsvShape(self.text, {**self.options, **options}, self.doubts)


def shape_of(raw: bytes, given: Mapping[str, Any]) -> CsvShape:
    """Detects the options that are not given; raises InvalidInput for invalid ones."""
    csv_options(given)
    encoding, doubts = encoding_of(raw)
    encoding = given.get("encoding", encoding)
    try:
        # Not `raw.decode`: a sample may end within a character.
        text = getincrementaldecoder(encoding)().decode(raw).removeprefix("\ufeff")
    except UnicodeError as error:
        raise InvalidInput(f"no text in {encoding}: {error}", code="format.not_text") from None
    options = dict(given)
    if encoding.lower() not in ("utf-8", "utf8"):
        options["encoding"] = encoding
    lines = text.splitlines()[: _SAMPLE_LINES + int(given.get("skip", 0))]
    delimiter = str(given.get("delimiter", SNIFFED))
    sign = sniff_delimiter(lines) if delimiter == SNIFFED else delimiter
    sign = "\t" if sign == "tab" else sign
    if sign != ",":
        options["delimiter"] = "tab" if sign == "\t" else sign
    rows = [split_row(line, sign) for line in lines]
    if not {"skip", "metadata", "columns"} & set(given):
        options |= _head(rows)
    if "columns" not in given:
        before = options.get("skip", 0) + options.get("metadata", 0)
        columns, more = _columns(rows[before:])
        options |= columns
        doubts = (*doubts, *more)
    return CsvShape(text, options, doubts if "encoding" not in given else doubts[1:])


def encoding_of(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """The encoding, with a doubt if it is not UTF-8."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16", ()
    try:
        raw.decode()
        return "utf-8", ()
    except UnicodeDecodeError as error:
        if error.end == len(raw) and error.reason == "unexpected end of data":
            return "utf-8", ()  # the sample ends within a character
    is_windows = _ONLY_WINDOWS.search(raw) and not _UNDEFINED.search(raw)
    name = "cp1252" if is_windows else "latin-1"
    return name, (f"the text is not UTF-8; {name} can read it: look at é, ç and °",)


def _head(rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """Lines before the heading: those with far fewer cells than the table."""
    widths = [sum(bool(cell.strip()) for cell in row) for row in rows]
    widest = max(widths, default=0)
    table = next((index for index, width in enumerate(widths) if width > max(widest // 2, 1)), 0)
    if widest < 3 or table == 0:
        return {}
    pairs = all(len(row) > 1 and row[0].strip() for row in rows[:table])
    return {"metadata": table} if pairs else {"skip": table}


def _columns(rows: Sequence[Sequence[str]]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Numbers the columns if the first line has numbers or lacks names."""
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    if not filled:
        return {}, ()
    first = [cell.strip() for cell in filled[0]]
    while first and not first[-1]:
        first.pop()
    has_numbers = any(_NUMBER.fullmatch(cell) for cell in first)
    if not has_numbers and "" not in first and len(set(first)) == len(first):
        return {}, ()
    names = [f"column_{number}" for number in range(1, len(first) + 1)]
    return {"columns": names}, ("no line names the columns: give them their names",)


_LOOKED_AT = 20


def detect_format(raw: bytes) -> tuple[str, str]:
    """The name of a format, and the reason."""
    start = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"<":
        return "xml", "it begins with <"
    if start in (b"{", b"["):
        values = _first_values(raw, is_pack=True)
        if values and all(map(_is_senml, values)):
            return "senml", "all fields are those of SenML records"
        values = _first_values(raw, is_pack=False)
        if values and all(map(_is_ngsi, values)):
            return "ngsi", "entities with a type and attributes that have a value inside"
        if values:
            return "json", "it is JSON"
    return "csv", "it is text that is neither JSON nor XML"


def _first_values(raw: bytes, *, is_pack: bool) -> list[Any]:
    try:
        return list(islice(json_values(raw, is_pack=is_pack), _LOOKED_AT))
    except RejectedValue:
        return []


def _is_senml(value: Any) -> bool:
    records = value if isinstance(value, list) else [value]
    return bool(records) and all(
        isinstance(record, dict)
        and record.keys() <= FIELDS
        and bool(record.keys() & {"n", "bn", "v", "vs", "vb", "bt"})
        for record in records
    )


def _is_ngsi(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    if "@context" in value or isinstance(value.get("subscriptionId"), str):
        return True
    return any(
        isinstance(each, dict) and bool(each.keys() & {"value", "object"})
        for each in value.values()
    )


MAX_ROWS = 10_000
"""Maximum number of rows in a sample."""
TEXT_FORMATS = ("csv", "xml")
"""Formats in which numbers are texts."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Rows with detected properties."""

    format: str
    options: dict[str, Any]
    because: str
    rows: tuple[dict[str, Any], ...]
    units: dict[str, set[str]]
    """Units in the data by name."""
    marks: NumberMarks = NumberMarks()
    timed: bool = False
    """The format itself has a time."""
    doubts: tuple[str, ...] = ()


def sample_of(raw: bytes, *, name: str = "", options: Mapping[str, Any] | None = None) -> Sample:
    """Reads the beginning of a file; `name` and `options`: known properties of its format.
    Raises InvalidInput.
    """
    chosen, because = (name, "declared by the caller") if name else detect_format(raw)
    given = dict(options or {})
    sample = (
        _of_table(raw, given, because)
        if chosen == "csv"
        else _of_documents(raw, chosen, given, because)
    )
    if not sample.rows:
        raise InvalidInput(
            "the file has no rows", code="import.no_rows", hint="is --format what it should be?"
        )
    return sample


def _of_table(raw: bytes, given: dict[str, Any], because: str) -> Sample:
    shape = shape_of(raw, given)
    rows, doubts = _rows_of(shape)
    nulls = null_texts(rows)
    odd: tuple[str, ...] = ()
    if nulls and "nulls" not in given:
        shape = shape.with_options(nulls=["", *nulls])
        rows, doubts = _rows_of(shape)
        odd = (f"taken for no value: {', '.join(nulls)}",)
    marks = number_marks(rows)
    numbers = {"decimal": marks.decimal, "thousands": marks.thousands}
    defaults = {"decimal": "point", "thousands": "none"}
    wanted = {
        key: each for key, each in numbers.items() if each != defaults[key] and key not in given
    }
    if wanted:
        shape = shape.with_options(**wanted)
        rows, doubts = _rows_of(shape)
    return Sample(
        format="csv",
        options=shape.options,
        because=f"{because}; {_described(shape)}",
        rows=rows,
        units={},
        marks=NumberMarks(given["decimal"]) if "decimal" in given else marks,
        doubts=(*shape.doubts, *odd, *doubts, *((marks.doubt,) if marks.doubt else ())),
    )


def _described(shape: CsvShape) -> str:
    options = csv_options(shape.options)
    parts = [f"its columns are parted by {options.delimiter!r}"]
    if options.metadata or options.skip:
        parts.append(f"the heading is line {options.metadata + options.skip + 1}")
    return ", ".join([*parts, f"numbers have a decimal {options.decimal}"])


def _rows_of(shape: CsvShape) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """The first rows; an invalid row ends them with a doubt."""
    rows: list[dict[str, Any]] = []
    try:
        for row in CsvFormat(shape.options).rows(io.StringIO(shape.text, newline="")):
            rows.append(row)
            if len(rows) == MAX_ROWS:
                break
    except RejectedValue as refused:
        return tuple(rows), (f"reading ended after {len(rows)} rows: {refused.message}",)
    return tuple(rows), ()


def _of_documents(raw: bytes, name: str, options: dict[str, Any], because: str) -> Sample:
    documents, doubts = _documents(raw, name, options)
    units: dict[str, set[str]] = {}
    for document in documents:
        for attribute, unit in document.units.items():
            units.setdefault(attribute, set()).add(unit)
    rows = tuple(document.value for document in documents)
    return Sample(
        format=name,
        options=options,
        because=because,
        rows=rows,
        units=units,
        marks=number_marks(rows) if name in TEXT_FORMATS else NumberMarks(),
        timed=bool(documents) and all(document.time is not None for document in documents),
        doubts=doubts,
    )


def _documents(
    raw: bytes, name: str, options: dict[str, Any]
) -> tuple[list[Document], tuple[str, ...]]:
    """The documents of each value of the file, as for raw events."""
    format = get_format(name, options)
    found: list[Document] = []
    refused: list[RejectedValue] = []
    values = (
        read_values(io.BytesIO(raw), name, options)
        if name in ("xml", "msgpack")
        else json_values(raw, is_pack=name == "senml")
    )
    try:
        for value in values:
            event = Event("sample", "1", "sample.raw", "", 0, msgspec.json.encode(value))
            try:
                found += format.read(event, {})
            except RejectedValue as fault:
                refused.append(fault)
            if len(found) >= MAX_ROWS:
                break
    except RejectedValue as fault:
        refused.append(fault)
    if refused and not found:
        first = refused[0]
        raise InvalidInput(first.message, code=first.code, hint=first.hint)
    doubts = (f"{len(refused)} values are refused: {refused[0].message}",) if refused else ()
    return found[:MAX_ROWS], doubts
