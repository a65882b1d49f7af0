"""A sample of what a file says: its format, how it is written, its first rows. Pure. [ME-13]"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.mediation.formats.base import Document
from rapport.mediation.formats.csv_options import csv_options
from rapport.mediation.formats.csv_rows import CsvFormat
from rapport.mediation.formats.files import json_values, values_of
from rapport.mediation.formats.named import format_named
from rapport.mediation.guessing.columns import Marks, marks_of, null_texts
from rapport.mediation.guessing.csv_shape import Shape, shape_of
from rapport.mediation.guessing.kinds import kind_of
from rapport.mediation.rejection import Rejected

MAX_ROWS = 10_000
"""As many rows as a guess looks at."""
TEXT_FORMATS = ("csv", "xml")
"""Formats in which numbers are texts."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and what was found out while reading them."""

    format: str
    options: dict[str, Any]
    because: str
    rows: tuple[dict[str, Any], ...]
    units: dict[str, set[str]]
    """Units that the data say, by name."""
    marks: Marks = Marks()
    timed: bool = False
    """The format itself says when."""
    doubts: tuple[str, ...] = ()


def sample_of(raw: bytes, *, name: str = "", options: Mapping[str, Any] | None = None) -> Sample:
    """A sample of the beginning of a file; `name` and `options` are what is known of its format
    already. Raises InvalidInput when nothing can be read.
    """
    chosen, because = (name, "said when it was called") if name else kind_of(raw)
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
    marks = marks_of(rows)
    numbers = {"decimal": marks.decimal, "thousands": marks.thousands}
    usual = {"decimal": "point", "thousands": "none"}
    wanted = {key: each for key, each in numbers.items() if each != usual[key] and key not in given}
    if wanted:
        shape = shape.with_options(**wanted)
        rows, doubts = _rows_of(shape)
    return Sample(
        format="csv",
        options=shape.options,
        because=f"{because}; {_described(shape)}",
        rows=rows,
        units={},
        marks=_known_marks(given, marks),
        doubts=(*shape.doubts, *odd, *doubts, *((marks.doubt,) if marks.doubt else ())),
    )


def _described(shape: Shape) -> str:
    options = csv_options(shape.options)
    said = [f"its columns are parted by {options.delimiter!r}"]
    if options.metadata or options.skip:
        said.append(f"the heading is line {options.metadata + options.skip + 1}")
    return ", ".join([*said, f"numbers have a decimal {options.decimal}"])


def _known_marks(given: Mapping[str, Any], found: Marks) -> Marks:
    return Marks(given["decimal"]) if "decimal" in given else found


def _rows_of(shape: Shape) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """The first rows; a row that is none ends them, with a doubt."""
    rows: list[dict[str, Any]] = []
    try:
        for row in CsvFormat(shape.options).rows(io.StringIO(shape.text, newline="")):
            rows.append(row)
            if len(rows) == MAX_ROWS:
                break
    except Rejected as refused:
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
        marks=marks_of(rows) if name in TEXT_FORMATS else Marks(),
        timed=bool(documents) and all(document.time is not None for document in documents),
        doubts=doubts,
    )


def _documents(
    raw: bytes, name: str, options: dict[str, Any]
) -> tuple[list[Document], tuple[str, ...]]:
    """What the format makes of each value of the file, as it would of raw events."""
    format = format_named(name, options)
    found: list[Document] = []
    refused: list[Rejected] = []
    values = (
        values_of(io.BytesIO(raw), name, options)
        if name in ("xml", "msgpack")
        else json_values(raw, is_pack=name == "senml")
    )
    try:
        for value in values:
            event = Event("sample", "1", "sample.raw", "", 0, msgspec.json.encode(value))
            try:
                found += format.read(event, {})
            except Rejected as fault:
                refused.append(fault)
            if len(found) >= MAX_ROWS:
                break
    except Rejected as fault:
        refused.append(fault)
    if refused and not found:
        first = refused[0]
        raise InvalidInput(first.message, code=first.code, hint=first.hint)
    doubts = (f"{len(refused)} values are refused: {refused[0].message}",) if refused else ()
    return found[:MAX_ROWS], doubts
