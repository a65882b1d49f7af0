"""Reading a CSV file into columns of text; every fault with file, line and column. [PO-2]"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rapport.core.errors import Problem, SiteError, nearest_names

MAX_FAULTS = 20
_MAX_FIELD = 1 << 20


class CsvFile:
    """The rows of a CSV file by column, with the text they came from."""

    def __init__(self, name: str, text: str, header: list[str], rows: list[list[str]]) -> None:
        self.name, self.header = name, header
        self.text, self._rows = text, rows

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> list[str]:
        """The fields below a heading, top to bottom."""
        index = self.header.index(name)
        return [row[index] for row in self._rows]

    def line_of(self, row: int) -> int:
        """The line in which a row ends; reads the file again, so it is for faults only."""
        reader = csv.reader(io.StringIO(self.text, newline=""), strict=True)
        next(reader)
        found = -1
        for fields in reader:
            found += bool(fields)
            if found == row:
                break
        return reader.line_num

    def problem(self, row: int, column: str, code: str, message: str, hint: str = "") -> Problem:
        """A problem at a field; its column is the number of the heading, counted from 1."""
        return Problem(
            file=self.name,
            line=self.line_of(row),
            column=self.header.index(column) + 1,
            code=code,
            message=message,
            hint=hint,
        )


def read_csv(path: Path, *, name: str) -> CsvFile:
    """Reads the file; raises SiteError with its faults. Empty lines are skipped, a BOM too."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        message, hint = f"cannot read {name}: {error.strerror}", "look at the file's rights"
        raise _refused(name, 0, "tables.unreadable", message, hint) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message, hint = f"{name} is not UTF-8 text", "save it as CSV UTF-8"
        raise _refused(name, line, "tables.not_utf8", message, hint) from None
    return parse_csv(name, text)


def check_heading(file: CsvFile, column: str) -> Problem | None:
    """The problem when a column is missing, with the nearest heading; otherwise None."""
    if column in file.header:
        return None
    near = nearest_names(column, file.header, limit=1)
    hint = f"did you mean {near[0]!r}?" if near else f"columns are {', '.join(file.header[:8])}"
    if len(file.header) == 1 and ";" in file.header[0]:
        hint = "the columns seem to be separated by ';'; separate them by ','"
    return Problem(
        file=file.name,
        line=1,
        code="tables.missing_column",
        message=f"there is no column {column!r}",
        hint=hint,
    )


def parse_csv(name: str, text: str) -> CsvFile:
    """The rows of a CSV text; raises SiteError with its faults."""
    limit = csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        message, hint = (
            f"the line is not CSV: {error}",
            'put fields with " or line breaks in quotes',
        )
        raise _refused(name, reader.line_num, "tables.bad_csv", message, hint) from None
    finally:
        csv.field_size_limit(limit)
    if not rows:
        hint = "the first line names the columns"
        raise _refused(name, 1, "tables.no_header", "the file is empty", hint)
    header = [heading.strip() for heading in rows[0]]
    file = CsvFile(name, text, header, rows[1:])
    faults = [*_header_faults(file), *_ragged_rows(file, rows[1:])]
    if faults:
        raise SiteError(faults)
    return file


def _header_faults(file: CsvFile) -> list[Problem]:
    seen: set[str] = set()
    faults = []
    for number, heading in enumerate(file.header, start=1):
        if heading in seen:
            faults.append(
                Problem(
                    file=file.name,
                    line=1,
                    column=number,
                    code="tables.repeated_column",
                    message=f"the column {heading!r} stands twice",
                    hint="give each column a name of its own",
                )
            )
        seen.add(heading)
    return faults


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


def _refused(name: str, line: int, code: str, message: str, hint: str = "") -> SiteError:
    return SiteError([Problem(file=name, line=line, code=code, message=message, hint=hint)])
