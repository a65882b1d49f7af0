"""Rows of text below headings: what every kind of source is read into. [PO-2]"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from rapport.core.errors import Problem, SiteError, nearest_names

MAX_FAULTS = 20
"""Most faults of one kind that are told of one table."""
MOST_ROWS = 5_000_000


class RowFile:
    """The rows of a table by column. Subclasses know the line in which a row stands."""

    fixed_headings = True
    """False: the headings are those that some row happened to have."""

    def __init__(self, name: str, header: list[str], rows: list[list[str]], digest: str) -> None:
        self.name, self.header, self._rows = name, header, rows
        self.digest = digest
        """Names the content."""

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> list[str]:
        """The fields below a heading, top to bottom."""
        index = self.header.index(name)
        return [row[index] for row in self._rows]

    def all_rows(self) -> list[list[str]]:
        """Every row, in the order of the headings."""
        return self._rows

    def add_headings(self, names: Sequence[str]) -> None:
        """Columns without a field, for headings that rows had before and may have again."""
        missing = [name for name in names if name not in self.header]
        if missing:
            self.header = [*self.header, *missing]
            self._rows = [[*row, *([""] * len(missing))] for row in self._rows]

    def line_of(self, row: int) -> int:
        """The line in which a row ends; 0 when the source has none. For faults only: it is slow."""
        return 0

    def shown(self, row: int) -> str:
        """Where a row stands, as a message says it."""
        line = self.line_of(row)
        return f"line {line}" if line else f"row {row + 1}"

    def problem(self, row: int, column: str, code: str, message: str, hint: str = "") -> Problem:
        """A problem at a field; its column is the number of the heading, counted from 1."""
        line = self.line_of(row)
        return Problem(
            file=self.name,
            line=line,
            column=self.header.index(column) + 1 if line else 0,
            code=code,
            message=message if line else f"row {row + 1}, {column}: {message}",
            hint=hint,
        )


class LooseRows(RowFile):
    """Rows whose headings are those that some of them had: of JSON and of XML."""

    fixed_headings = False


def content_digest(*parts: bytes) -> str:
    """A name for bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def rows_digest(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A name for rows that came as values."""
    return content_digest(msgspec.msgpack.encode(header), msgspec.msgpack.encode(rows))


def check_heading(file: RowFile, column: str) -> Problem | None:
    """The problem when a column is missing, with the nearest heading; otherwise None."""
    if column in file.header:
        return None
    near = nearest_names(column, file.header, limit=1)
    hint = f"did you mean {near[0]!r}?" if near else f"columns are {', '.join(file.header[:8])}"
    if len(file.header) == 1 and ";" in file.header[0]:
        hint = "the columns seem to be separated by ';'; separate them by ','"
    return Problem(
        file=file.name,
        line=1 if file.fixed_headings else 0,
        code="tables.missing_column",
        message=f"there is no column {column!r}",
        hint=hint,
    )


def repeated_headings(name: str, header: Sequence[str]) -> list[Problem]:
    """A problem for each heading that stood before."""
    seen: set[str] = set()
    faults = []
    for number, heading in enumerate(header, start=1):
        if heading in seen:
            faults.append(
                Problem(
                    file=name,
                    line=1,
                    column=number,
                    code="tables.repeated_column",
                    message=f"the column {heading!r} stands twice",
                    hint="give each column a name of its own",
                )
            )
        seen.add(heading)
    return faults


def check_size(name: str, rows: int) -> None:
    """Raises SiteError when there are more rows than are held."""
    if rows > MOST_ROWS:
        message = f"there are more than {MOST_ROWS:,} rows"
        raise refused(name, "tables.too_many_rows", message, "let it give fewer")


def refused(name: str, code: str, message: str, hint: str = "", *, line: int = 0) -> SiteError:
    """The error for a table that cannot be read at all."""
    return SiteError([Problem(file=name, line=line, code=code, message=message, hint=hint)])
