"""How a table is written: encoding, delimiter, lines before the heading, heading. Pure. [ME-13]"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.mediation.formats.csv_dialect import sniff_delimiter, split_row
from rapport.mediation.formats.csv_options import SNIFFED, csv_options

_NUMBER = re.compile(r"[+-]?\d[\d.,:/ -]*", re.ASCII)
_LOOKED_AT = 200
_ONLY_WINDOWS = re.compile(rb"[\x80-\x9f]")
_UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""Octets that stand for nothing in cp1252."""


class Shape(msgspec.Struct, frozen=True):
    """The text and the options with which the CSV format reads it."""

    text: str
    options: dict[str, Any]
    doubts: tuple[str, ...] = ()

    def with_options(self, **options: Any) -> Shape:
        """The same with further options."""
        return Shape(self.text, {**self.options, **options}, self.doubts)


def shape_of(raw: bytes, given: Mapping[str, Any]) -> Shape:
    """What is not among the given options is found out; raises InvalidInput for wrong ones."""
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
    lines = text.splitlines()[: _LOOKED_AT + int(given.get("skip", 0))]
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
    return Shape(text, options, doubts if "encoding" not in given else doubts[1:])


def encoding_of(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """The encoding, and a doubt where it is not UTF-8: then no one can tell from octets alone."""
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
    """Lines before the heading: those with far fewer cells than the table below them."""
    widths = [sum(bool(cell.strip()) for cell in row) for row in rows]
    widest = max(widths, default=0)
    table = next((index for index, width in enumerate(widths) if width > max(widest // 2, 1)), 0)
    if widest < 3 or table == 0:
        return {}
    pairs = all(len(row) > 1 and row[0].strip() for row in rows[:table])
    return {"metadata": table} if pairs else {"skip": table}


def _columns(rows: Sequence[Sequence[str]]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """No heading when the first line has numbers or comes short of names; then columns are
    numbered.
    """
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
