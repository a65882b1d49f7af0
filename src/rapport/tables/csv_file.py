"""Reading a CSV file into columns of text; every fault with file, line and column. [PO-2]"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rapport.core.errors import Problem, SiteError
from rapport.tables.row_file import (
    MAX_FAULTS,
    RowFile,
    check_size,
    content_digest,
    refused,
    repeated_headings,
)

_MAX_FIELD = 1 << 20


class CsvFile(RowFile):
    """The rows of a CSV file by column, with the text they came from."""

    def __init__(self, name: str, text: str, header: list[str], rows: list[list[str]]) -> None:
        super().__init__(name, header, rows, content_digest(text.encode("utf-8", "surrogatepass")))
        self._text = text

    def line_of(self, row: int) -> int:
        """The line in which a row ends; reads the file again, so it is for faults only."""
        reader = csv.reader(io.StringIO(self._text, newline=""), strict=True)
        next(reader)
        found = -1
        for fields in reader:
            found += bool(fields)
            if found == row:
                break
        return reader.line_num


def read_csv(path: Path, *, name: str) -> CsvFile:
    """Reads the file; raises SiteError with its faults. Empty lines are skipped, a BOM too."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        message, hint = f"cannot read {name}: {error.strerror}", "look at the file's rights"
        raise refused(name, "tables.unreadable", message, hint) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message, hint = f"{name} is not UTF-8 text", "save it as CSV UTF-8"
        raise refused(name, "tables.not_utf8", message, hint, line=line) from None
    return parse_csv(name, text)


def parse_csv(name: str, text: str) -> CsvFile:
    """The rows of a CSV text; raises SiteError with its faults."""
    limit = csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        message = f"the line is not CSV: {error}"
        hint = 'put fields with " or line breaks in quotes'
        raise refused(name, "tables.bad_csv", message, hint, line=reader.line_num) from None
    finally:
        csv.field_size_limit(limit)
    if not rows:
        hint = "the first line names the columns"
        raise refused(name, "tables.no_header", "the file is empty", hint, line=1)
    check_size(name, len(rows) - 1)
    header = [heading.strip() for heading in rows[0]]
    file = CsvFile(name, text, header, rows[1:])
    faults = [*repeated_headings(name, header), *_ragged_rows(file, rows[1:])]
    if faults:
        raise SiteError(faults)
    return file


def _ragged_rows(file: CsvFile, rows: list[list[str]]) -> list[Problem]:
    width = len(file.header)
    ragged = [index for index, row in enumerate(rows) if len(row) != width]
    return [
        Problem(
            file=file.name,
            line=file.line_of(index),
            column=min(len(rows[index]), width) + 1,
            code="tables.ragged_row",
            message=f"the row has {len(rows[index])} fields, the header {width}",
            hint="put a field that holds a comma in double quotes",
        )
        for index in ragged[:MAX_FAULTS]
    ]
