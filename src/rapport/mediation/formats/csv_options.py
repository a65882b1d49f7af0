"""What can be said of a CSV payload, checked before any row comes. [ME-13]"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rapport.mediation.formats.base import MAX_NAMES, bad_option, read_options
from rapport.mediation.formats.payload import ENCODINGS
from rapport.units.quantities import DecimalMark

SNIFFED = "sniffed"
_NAME = "csv"
_PLACEHOLDER = re.compile(r"\{([^{}]*?)(?::0(\d{1,2}))?\}")
_MARKS = {"point": ".", "comma": ",", "space": " ", "apostrophe": "'"}


class CsvOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All of it has defaults: comma, heading in the first line, UTF-8."""

    delimiter: str = ","
    """One sign, `tab`, or `sniffed`: the one of `;`, tab, `|` and `,` that parts the first lines
    most evenly.
    """
    decimal: DecimalMark = "point"
    """The mark in numbers, for the interpretation that reads them; here cells stay text."""
    thousands: Literal["none", "point", "comma", "space", "apostrophe"] = "none"
    """The sign that parts thousands; it is taken out of cells that are such numbers: `1.234,5`."""
    numbers: tuple[str, ...] = ()
    """The columns in which thousands are parted; empty: all."""
    encoding: str = "utf-8"
    """Of payloads that come as octets."""
    columns: tuple[str, ...] = ()
    """Names of the columns when no line names them."""
    nulls: tuple[str, ...] = ("",)
    """Cells that say nothing, after spaces around them are taken off: `""`, `-`, `NaN`."""
    skip: int = 0
    """Lines at the beginning that are left out."""
    metadata: int = 0
    """Lines after those of the form `NAME:;VALUE`: attributes of every row."""
    join: dict[str, str] = {}
    """Further attributes, of names that no column has, made of several cells:
    `{"time": "{acq_date} {acq_time:04}"}`; `:04` fills up with zeros to four signs. With a null
    among them it is null.
    """


class Join(msgspec.Struct, frozen=True):
    """One attribute made of several cells: texts and (column, width) in turn."""

    name: str
    pieces: tuple[str | tuple[str, int], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it is made of."""
        return tuple(piece[0] for piece in self.pieces if not isinstance(piece, str))

    def text_from(self, row: Mapping[str, Any]) -> str | None:
        """The joined text; None when one of the cells is absent or null."""
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
    """The options, checked together; raises InvalidInput."""
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


def joins_of(options: CsvOptions) -> tuple[Join, ...]:
    """The declared joins; raises InvalidInput for one that names no column."""
    return tuple(_join(name, template) for name, template in options.join.items())


def grouped_number(options: CsvOptions) -> re.Pattern[str] | None:
    """Matches numbers with parted thousands; None when there are none."""
    mark = _MARKS.get(options.thousands)
    if mark is None:
        return None
    decimal = re.escape(_MARKS[options.decimal])
    parting = "[ \\u00a0\\u202f]" if mark == " " else re.escape(mark)
    return re.compile(rf"[+-]?\d{{1,3}}(?:{parting}\d{{3}})+(?:{decimal}\d*)?", re.ASCII)


def _join(name: str, template: str) -> Join:
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
    return Join(name, tuple(pieces))


def _is_delimiter(text: str) -> bool:
    return len(text) == 1 and text.isprintable() and not text.isalnum() and text not in "\"'.-+"
