"""CSV: each row is a document of texts; numbers are read by the interpretation, with the decimal
mark that it declares. [ME-13]
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from rapport.core.event import Event
from rapport.mediation.formats.base import MAX_NAMES, Document, check_count
from rapport.mediation.formats.csv_dialect import sniff_delimiter, split_row
from rapport.mediation.formats.csv_options import (
    SNIFFED,
    csv_options,
    grouped_number,
    joins_of,
)
from rapport.mediation.formats.payload import ready_object, text_of
from rapport.mediation.rejection import Rejected

Row = dict[str, Any]
_SNIFFED_LINES = 100
_PARTINGS = re.compile("[.,' \u00a0\u202f]")


class CsvFormat:
    """One payload may have many rows; a heading may be its first line or declared."""

    name = "csv"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = csv_options(options)
        self._joins, self._grouped = joins_of(self.options), grouped_number(self.options)
        self._nulls = frozenset(self.options.nulls)

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        """See Format."""
        ready = ready_object(event)
        if ready is not None:
            return [Document(self._finished(self._unfinished(ready)))]
        text = text_of(event, self.options.encoding)
        rows: list[Row] = []
        for row in self.rows(io.StringIO(text, newline="")):
            rows.append(row)
            check_count(len(rows))
        if len(rows) == 1:
            return [Document(rows[0])]
        return [Document(row, id=str(number)) for number, row in enumerate(rows, start=1)]

    def rows(self, lines: Iterable[str]) -> Iterator[Row]:
        """The rows of a text given line by line with the line ends, however long it is; raises
        Rejected at the first row that is none.
        """
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
        """The next row that is not empty; an empty list at the end. `before`: so many lines stand
        before those of the reader.
        """
        try:
            return next((cells for cells in reader if cells), [])
        except csv.Error as error:
            line = before + getattr(reader, "line_num", 0)
            raise Rejected(
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
            raise Rejected(
                "format.ragged_row",
                f"line {line} has {len(cells)} cells, there are {len(columns)} columns",
                "look at the delimiter, and put cells that hold it in quotes",
            )
        return {name: self._cell(cell.strip()) for name, cell in zip(columns, cells, strict=True)}

    def _cell(self, text: str) -> str | None:
        return None if text in self._nulls else text

    def _unfinished(self, row: Row) -> Row:
        """A row that was read before, by options that may have been mended since: cells that say
        nothing by now are null, and what is joined is joined anew from cells that are there.
        """
        made = {join.name for join in self._joins if all(name in row for name in join.columns)}
        return {
            name: None if isinstance(cell, str) and cell.strip() in self._nulls else cell
            for name, cell in row.items()
            if name not in made
        }

    def _finished(self, row: Row) -> Row:
        """Thousands taken out, joined attributes put in; done twice it changes nothing more."""
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
        raise Rejected(
            "format.bad_heading",
            f"the heading cannot be used: {fault or 'it is empty'}",
            "declare columns = [...], and skip = 1 when there is a heading",
        )
    return names
