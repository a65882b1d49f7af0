"""Where the rows of a CSV file begin, and its lines with their numbers. [ME-13]"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple

from rapport.mediation.formats.csv_format import SNIFFED, CsvFormat, CsvOptions, sniff_delimiter
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import Rejected

_SNIFFED_LINES = 100


class CsvLayout(NamedTuple):
    """How a CSV file is laid out: its options with the delimiter found, the names of its columns,
    and how many lines stand before the first row.
    """

    options: CsvOptions
    heading: tuple[str, ...]
    before: int
    delimiter: str


class Lines:
    """Lines of a text with their ends, and the number of the one read last."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._encoding = encoding
        self._lines: Iterator[str] = self._decoded(file)
        self.number = 0

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        return line

    def give_back(self, lines: list[str]) -> None:
        """To be read again."""
        self._lines = chain(lines, self._lines)
        self.number -= len(lines)

    def _decoded(self, file: BinaryIO) -> Iterator[str]:
        try:
            with io.TextIOWrapper(file, encoding=self._encoding, newline="") as text:
                first = next(text, "")
                yield from chain([first.removeprefix("\ufeff")] if first else [], text)
        except UnicodeError as error:
            raise Rejected(
                "format.not_text",
                f"the file is no text in {self._encoding}: {error}",
                'declare it: format = { name = "csv", encoding = "latin-1" }',
            ) from None


def encoding_of(options: Mapping[str, Any]) -> str:
    """The declared encoding; raises InvalidInput for options that cannot be."""
    return CsvFormat(options).options.encoding


def opened_csv(lines: Lines, choice: FormatChoice) -> tuple[CsvFormat, list[str]]:
    """The format, its delimiter found where it was to be, and the lines before the first row."""
    options = dict(choice.options)
    if options.get("delimiter") == SNIFFED:
        ahead = list(islice(lines, options.get("skip", 0) + _SNIFFED_LINES))
        lines.give_back(ahead)
        delimiter = sniff_delimiter(ahead[options.get("skip", 0) :])
        options["delimiter"] = "tab" if delimiter == "\t" else delimiter
    form = CsvFormat(options)
    return form, _before_rows(form, lines)


def _before_rows(form: CsvFormat, lines: Lines) -> list[str]:
    """The lines before the first row: what is left out, metadata, heading."""
    options = form.options
    before = list(islice(lines, options.skip + options.metadata))
    if options.columns:
        return before
    heading: list[str] = []
    delimiter = "\t" if options.delimiter == "tab" else options.delimiter
    for cells in csv.reader(_kept(lines, heading), delimiter=delimiter):
        if any(cell.strip() for cell in cells):
            break
    return [*before, *heading]


def _kept(lines: Iterable[str], seen: list[str]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line
