"""CSV: each row is a document of texts; the interpretation parses numbers. [ME-13]"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal

import msgspec

from rapport.core.event import Event
from rapport.mediation.formats.base import (
    ENCODINGS,
    MAX_NAMES,
    Document,
    bad_option,
    check_count,
    numbered_documents,
    parsed_object,
    read_options,
    text_of,
)
from rapport.mediation.rejections import RejectedValue
from rapport.units.quantities import DecimalMark

DELIMITERS = (";", "\t", "|", ",")
"""In order of preference; commas also occur in numbers."""
_LINES = 100


def sniff_delimiter(lines: Sequence[str]) -> str:
    """The delimiter that occurs in most of the first lines and splits them most evenly.

    >>> sniff_delimiter(["UF:;RS", "Data;T (C), max", "2026-01-01;21,5"])
    ';'
    """
    seen = [line for line in lines[:_LINES] if line.strip()]
    return max(DELIMITERS, key=lambda sign: (*_evenness(seen, sign), -DELIMITERS.index(sign)))


def split_row(line: str, delimiter: str) -> list[str]:
    """The cells of one line; invalid CSV is a single cell."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def _evenness(lines: Sequence[str], delimiter: str) -> tuple[float, float]:
    widths = [len(split_row(line, delimiter)) for line in lines]
    parted = Counter(width for width in widths if width > 1)
    if not parted:
        return 0.0, 0.0
    return parted.total() / len(widths), parted.most_common(1)[0][1] / len(widths)


SNIFFED = "sniffed"
_NAME = "csv"
_PLACEHOLDER = re.compile(r"\{([^{}]*?)(?::0(\d{1,2}))?\}")
_MARKS = {"point": ".", "comma": ",", "space": " ", "apostrophe": "'"}


class CsvOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults: comma, heading in the first line, UTF-8."""

    delimiter: str = ","
    """One character, `tab`, or `sniffed`: the one of `;`, tab, pipe and `,` that splits the
    first lines most evenly.
    """
    decimal: DecimalMark = "point"
    """The decimal mark for the interpretation; cells stay text."""
    thousands: Literal["none", "point", "comma", "space", "apostrophe"] = "none"
    """The thousands separator, removed from numbers such as `1.234,5`."""
    numbers: tuple[str, ...] = ()
    """The columns with thousands separators; empty: all."""
    encoding: str = "utf-8"
    """Of payloads that arrive as octets."""
    columns: tuple[str, ...] = ()
    """Column names if there is no heading."""
    nulls: tuple[str, ...] = ("",)
    """Cells that mean null, after trimming: `""`, `-`, `NaN`."""
    skip: int = 0
    """Lines to skip at the beginning."""
    metadata: int = 0
    """Then lines of the form `NAME:;VALUE`: attributes of every row."""
    join: dict[str, str] = {}
    """Further attributes composed of cells: `{"time": "{acq_date} {acq_time:04}"}`; `:04` pads
    with zeros. Null if one of the cells is.
    """


class CsvJoin(msgspec.Struct, frozen=True):
    """An attribute composed of texts and (column, width) pieces."""

    name: str
    pieces: tuple[str | tuple[str, int], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(piece[0] for piece in self.pieces if not isinstance(piece, str))

    def text_from(self, row: Mapping[str, Any]) -> str | None:
        """The joined text; None if a cell is absent or null."""
        texts = []
        for piece in self.pieces:
            if isinstance(piece, str):
                texts.append(piece)
                continue
            column, width = piece
            cell = row.get(column)
            if not isinstance(cell, str):
                return None
            texts.append(cell.zfill(width))
        return "".join(texts)


def csv_options(given: Mapping[str, Any]) -> CsvOptions:
    """The checked options; raises InvalidInput."""
    options = read_options(CsvOptions, _NAME, given)
    if options.delimiter not in ("tab", SNIFFED) and not _is_delimiter(options.delimiter):
        hint = 'such as ";", "tab" or "sniffed"'
        raise bad_option(_NAME, f"{options.delimiter[:20]!r} cannot part columns", hint)
    if not ENCODINGS.fullmatch(options.encoding):
        message = f"there is no encoding {options.encoding[:40]!r} of text"
        raise bad_option(_NAME, message, "such as utf-8, latin-1, cp1252")
    if options.thousands == options.decimal:
        message = f"thousands and decimals cannot both be parted by a {options.decimal}"
        raise bad_option(_NAME, message)
    if len(set(options.columns)) != len(options.columns) or "" in options.columns:
        raise bad_option(_NAME, "columns need names, each another one")
    if len(options.columns) > MAX_NAMES or not all(
        0 <= count <= 1_000 for count in (options.skip, options.metadata)
    ):
        raise bad_option(_NAME, "at most 2,000 columns and 1,000 lines before them")
    return options


def joins_of(options: CsvOptions) -> tuple[CsvJoin, ...]:
    """The declared joins; raises InvalidInput for one without columns."""
    return tuple(_join(name, template) for name, template in options.join.items())


def grouped_number(options: CsvOptions) -> re.Pattern[str] | None:
    """Matches numbers with thousands separators; None if there is no separator."""
    mark = _MARKS.get(options.thousands)
    if mark is None:
        return None
    decimal = re.escape(_MARKS[options.decimal])
    parting = "[ \\u00a0\\u202f]" if mark == " " else re.escape(mark)
    return re.compile(rf"[+-]?\d{{1,3}}(?:{parting}\d{{3}})+(?:{decimal}\d*)?", re.ASCII)


def _join(name: str, template: str) -> CsvJoin:
    pieces: list[str | tuple[str, int]] = []
    end = 0
    for found in _PLACEHOLDER.finditer(template):
        if found.start() > end:
            pieces.append(template[end : found.start()])
        pieces.append((found[1], int(found[2] or 0)))
        end = found.end()
    rest = template[end:]
    if rest:
        pieces.append(rest)
    named = [piece for piece in pieces if not isinstance(piece, str)]
    if (
        not name
        or not named
        or any(not column for column, _width in named)
        or set("{}") & set(rest)
    ):
        raise bad_option(
            _NAME, f"join: {template[:60]!r} names no columns", 'such as "{Data} {Hora UTC}"'
        )
    return CsvJoin(name, tuple(pieces))


def _is_delimiter(text: str) -> bool:
    return len(text) == 1 and text.isprintable() and not text.isalnum() and text not in "\"'.-+"


Row = dict[str, Any]
_SNIFFED_LINES = 100
_PARTINGS = re.compile("[.,' \u00a0\u202f]")


class CsvFormat:
    """A payload may have many rows; the heading is its first line or declared."""

    name = "csv"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = csv_options(options)
        self._joins, self._grouped = joins_of(self.options), grouped_number(self.options)
        self._nulls = frozenset(self.options.nulls)

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        ready = parsed_object(event)
        if ready is not None:
            return [Document(self._finished(self._unfinished(ready)))]
        text = text_of(event, self.options.encoding)
        rows: list[Row] = []
        for row in self.rows(io.StringIO(text, newline="")):
            rows.append(row)
            check_count(len(rows))
        return numbered_documents(rows)

    def rows(self, lines: Iterable[str]) -> Iterator[Row]:
        """Streams the rows of a text; raises Rejected at the first invalid row."""
        rest = iter(lines)
        before = list(islice(rest, self.options.skip + self.options.metadata))
        delimiter, rest = self._delimiter(before, rest)
        metadata = self._metadata(before[self.options.skip :], delimiter)
        reader = csv.reader(rest, delimiter=delimiter, strict=True)
        columns = list(self.options.columns)
        while cells := self._next(reader, len(before)):
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = _heading(cells)
                continue
            line = len(before) + reader.line_num
            yield self._finished({**metadata, **self._row(columns, cells, line)})

    def _delimiter(self, before: list[str], rest: Iterator[str]) -> tuple[str, Iterator[str]]:
        declared = self.options.delimiter
        if declared != SNIFFED:
            return "\t" if declared == "tab" else declared, rest
        first = list(islice(rest, _SNIFFED_LINES))
        return sniff_delimiter(first or before), chain(first, rest)

    def _next(self, reader: Iterator[list[str]], before: int) -> list[str]:
        """The next non-empty row; an empty list at the end. `before`: number of lines
        before the reader's.
        """
        try:
            return next((cells for cells in reader if cells), [])
        except csv.Error as error:
            line = before + getattr(reader, "line_num", 0)
            raise RejectedValue(
                "format.not_csv",
                f"line {line} is not CSV: {error}",
                'put cells with " or line breaks in quotes',
            ) from None

    def _metadata(self, lines: list[str], delimiter: str) -> Row:
        found: Row = {}
        for line in lines:
            name, *values = [cell.strip() for cell in split_row(line, delimiter)] or [""]
            if name.rstrip(":").strip():
                found[name.rstrip(":").strip()] = self._cell(values[0] if values else "")
        return found

    def _row(self, columns: list[str], cells: list[str], line: int) -> Row:
        if len(cells) > len(columns) and not any(cell.strip() for cell in cells[len(columns) :]):
            cells = cells[: len(columns)]  # delimiters at the end of the line
        if len(cells) != len(columns):
            raise RejectedValue(
                "format.ragged_row",
                f"line {line} has {len(cells)} cells, there are {len(columns)} columns",
                "look at the delimiter, and put cells that hold it in quotes",
            )
        return {name: self._cell(cell.strip()) for name, cell in zip(columns, cells, strict=True)}

    def _cell(self, text: str) -> str | None:
        return None if text in self._nulls else text

    def _unfinished(self, row: Row) -> Row:
        """Reapplies changed options to a row that was parsed before: null cells and joins."""
        made = {join.name for join in self._joins if all(name in row for name in join.columns)}
        return {
            name: None if isinstance(cell, str) and cell.strip() in self._nulls else cell
            for name, cell in row.items()
            if name not in made
        }

    def _finished(self, row: Row) -> Row:
        """Removes thousands separators and adds joined attributes; idempotent."""
        if self._grouped is not None:
            for name in self.options.numbers or tuple(row):
                cell = row.get(name)
                if isinstance(cell, str) and self._grouped.fullmatch(cell):
                    row[name] = self._ungrouped(cell)
        for join in self._joins:
            row.setdefault(join.name, join.text_from(row))
        return row

    def _ungrouped(self, cell: str) -> str:
        decimal = "," if self.options.decimal == "comma" else "."
        return _PARTINGS.sub(lambda found: decimal if found[0] == decimal else "", cell)


def _heading(cells: list[str]) -> list[str]:
    names = [cell.strip().removeprefix("\ufeff") for cell in cells]
    while names and not names[-1]:
        names.pop()
    fault = ""
    if len(names) > MAX_NAMES:
        fault = f"more than {MAX_NAMES:,} columns"
    elif "" in names:
        fault = f"column {names.index('') + 1} has no name"
    elif len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        fault = f"the column {twice[:60]!r} stands twice"
    if fault or not names:
        raise RejectedValue(
            "format.bad_heading",
            f"invalid heading: {fault or 'it is empty'}",
            "declare columns = [...], and skip = 1 when there is a heading",
        )
    return names
