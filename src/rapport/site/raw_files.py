"""Recorded files of raw events, row by row: each row as the event that an endpoint would have
received. [ME-13, UX-3]

The format of the source's interpretation parses the rows. A row that cannot be parsed is reported
with its line, and the next one counts again.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet

from rapport.core.codec import decode_cloudevent
from rapport.core.errors import InvalidInput, Problem, RapportError, SiteError
from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY
from rapport.kernel.toml import TomlFile
from rapport.mediation.fields_transformer import canonical_time
from rapport.mediation.formats.catalogue import read_values
from rapport.mediation.formats.csv_format import (
    SNIFFED,
    CsvFormat,
    CsvOptions,
    sniff_delimiter,
    split_row,
)
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import RejectedValue
from rapport.policy.recordings.formats import Report, nothing_in, unreadable

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
            raise RejectedValue(
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


NO_TIME = -(2**61)
"""The time of a row without one: so far away that no reading can have it."""

_ENCODE = msgspec.json.Encoder().encode
_READ = msgspec.json.Decoder(dict[str, Any])
_LONGEST_LINE = 16 * 1024 * 1024
_OWN_LINE = re.compile(r"^line \d+")
_JSON = ("json", "ngsi", "senml")
_RECORDED = {HISTORY: "true"}


class EnvelopeFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a row that replace the envelope of an event; empty: there is none.

    A row without an id is called after its place: `weather.csv:17`. Without a time, its
    interpretation has to know it.
    """

    source: str
    id: str = ""
    time: str = ""
    zone: str = ""
    """Of local times without a zone."""


def naming_of(file: TomlFile, source: str) -> EnvelopeFields:
    """The fields of a source in the site file."""
    declared = file.section("sources").section(source).values
    zone = declared.get("zone") or file.section("site").values.get("zone", "")
    return EnvelopeFields(
        source=source,
        id=str(declared.get("id", "")),
        time=str(declared.get("time", "")),
        zone=str(zone),
    )


class RawFile:
    """The rows of one file as raw events; `position` of each is its line, or where there are no
    lines the number of the row or document, counted from 1.
    """

    def __init__(self, path: Path, choice: FormatChoice, naming: EnvelopeFields) -> None:
        self._path, self._choice, self._naming = path, choice, naming

    def events(self, report: Report) -> Iterator[StoredEvent]:
        """In the order they stand there; raises SiteError when the file cannot be read at all."""
        try:
            for number, data in self._rows(report):
                yield self.stored(number, data)
        except OSError as error:
            raise SiteError([unreadable(self._path, error)]) from None
        except (RejectedValue, InvalidInput, pa.ArrowInvalid) as error:
            if isinstance(error, SiteError):
                raise
            raise SiteError([self._whole_problem(error)]) from None

    def stored(self, number: int, data: bytes) -> StoredEvent:
        """A row as the event that an endpoint would have received."""
        return StoredEvent(number, NO_TIME, self._event(number, data))

    def csv_layout(self) -> CsvLayout | None:
        """Where the rows of a CSV file begin and what its columns are; None when it is none, or
        has no heading that could be used.
        """
        if self._choice.name != "csv" or self._path.suffix.lower() == ".parquet":
            return None
        try:
            with self._path.open("rb") as file:
                form, before = opened_csv(
                    Lines(file, encoding_of(self._choice.options)), self._choice
                )
                for _ in form.rows(before):
                    pass
        except (OSError, RejectedValue, UnicodeError):
            return None  # reading it will say why
        delimiter = "\t" if form.options.delimiter == "tab" else form.options.delimiter
        heading = list(form.options.columns)
        if not heading and before:
            heading = [cell.strip() for cell in split_row(before[-1].rstrip("\r\n"), delimiter)]
        return CsvLayout(form.options, tuple(heading), len(before), delimiter)

    def _rows(self, report: Report) -> Iterator[tuple[int, bytes]]:
        name, suffix = self._choice.name, self._path.suffix.lower()
        if suffix == ".parquet":
            return _parquet_rows(self._path)
        if name == "csv" or (suffix == ".csv" and name in _JSON):
            options = self._choice.options if name == "csv" else {"delimiter": SNIFFED}
            return self._csv_rows(dict(options), report)
        if name in _JSON and _is_by_line(self._path):
            return _lines(self._path)
        return self._documents(name)

    def _documents(self, name: str) -> Iterator[tuple[int, bytes]]:
        with self._path.open("rb") as file:
            for number, value in enumerate(read_values(file, name, self._choice.options), start=1):
                yield number, _ENCODE(value)

    def _csv_rows(self, options: dict[str, Any], report: Report) -> Iterator[tuple[int, bytes]]:
        choice = FormatChoice("csv", options)
        with self._path.open("rb") as file:
            lines = Lines(file, encoding_of(options))
            form, before = opened_csv(lines, choice)
            if not lines.number:
                raise nothing_in(self._path)
            for _ in form.rows(before):  # a heading that cannot be used raises here, once
                pass
            rows = form.rows(chain(before, lines))
            while True:
                try:
                    for row in rows:
                        yield lines.number, _ENCODE(row)
                    return
                except RejectedValue as fault:
                    report(self._row_problem(lines.number, fault))
                    rows = form.rows(chain(before, lines))

    def _event(self, number: int, data: bytes) -> Event:
        if b'"specversion"' in data:
            recorded = self._recorded_event(data)
            if recorded is not None:
                return recorded
        naming = self._naming
        id, time = f"{self._path.name}:{number}", NO_TIME
        if naming.id or naming.time:
            try:
                declared = _READ.decode(data)
                id = _id_of(declared.get(naming.id)) or id
                time = _time_of(declared.get(naming.time), naming.zone)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                time = NO_TIME  # no object: the interpretation will say so
        return Event(naming.source, id, f"{naming.source}.raw", "", time, data, _RECORDED)

    def _recorded_event(self, data: bytes) -> Event | None:
        """A whole event as `rapport read --json` writes it; None when it is a row after all."""
        try:
            event = decode_cloudevent(data, received_ms=NO_TIME)
        except RapportError:
            return None
        return msgspec.structs.replace(event, source=self._naming.source)

    def _row_problem(self, line: int, fault: RejectedValue) -> Problem:
        """The reader counts lines anew after each fault, so its own number is left out."""
        message = _OWN_LINE.sub("the row", fault.message)
        return Problem(
            file=self._path.name, line=line, code=fault.code, message=message, hint=fault.hint
        )

    def _whole_problem(self, error: Exception) -> Problem:
        if isinstance(error, RejectedValue | RapportError):
            code, message, hint = error.code, error.message, error.hint
        else:
            code, message, hint = "events.bad_file", f"this is not a Parquet file: {error}", ""
        return Problem(file=self._path.name, code=code, message=message, hint=hint)


def _is_by_line(path: Path) -> bool:
    """Whether the file has one JSON value on each line, not one document over several."""
    filled = (line for _number, line in _lines(path))
    first, second = next(filled, b""), next(filled, b"")
    try:
        msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # A document over many lines begins with a bracket alone; a broken row does not.
        return bool(second) and len(first.strip()) > 1
    return bool(second) or not first.lstrip().startswith(b"[")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Filled lines with their numbers."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, line.strip()


def _parquet_rows(path: Path) -> Iterator[tuple[int, bytes]]:
    with pyarrow.parquet.ParquetFile(path) as file:
        number = 0
        for rows in file.iter_batches():
            for row in rows.to_pylist():
                number += 1
                yield number, _ENCODE(row)


def _id_of(declarede: Any) -> str:
    """Texts and whole numbers are ids; empty when it is none."""
    if isinstance(declarede, str):
        return declarede
    return str(declarede) if isinstance(declarede, int) and not isinstance(declarede, bool) else ""


def _time_of(declarede: Any, zone: str) -> int:
    try:
        return canonical_time(declarede, "time", zone)
    except RejectedValue:
        return NO_TIME
