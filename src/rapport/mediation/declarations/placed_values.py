"""The common form of TOML, YAML and XML declarations: plain values with locations. [ME-10]

Every form becomes a `PlacedFile`, so that one set of readers (`Fields`) reads them all and locates
every fault. A path consists of keys and, in lists, of indexes such as `[0]`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from rapport.core.errors import Problem, excerpt_with_caret
from rapport.kernel.config_fields import FaultCodes, Fields
from rapport.kernel.toml import Section, TomlFile

FileKind = Literal["toml", "yaml", "xml"]
ValuePath = tuple[str, ...]
Positions = Mapping[ValuePath, tuple[int, int]]
"""Line and column by path, counted from 1."""

MAX_FILE_BYTES = 1024 * 1024
"""Maximum size of a file."""
MAX_FILE_DEPTH = 40
"""Maximum nesting of tables and lists."""

_LONGEST_LINE = 400

FAULT_CODES = FaultCodes(
    unknown_key="interpretation.unknown_key",
    missing_key="interpretation.missing_key",
    wrong_type="interpretation.bad_value",
    unknown_choice="interpretation.bad_value",
    out_of_range="interpretation.bad_value",
    bad_duration="time.bad_duration",
    endless_duration="interpretation.bad_value",
)


class PlacedFile(TomlFile):
    """Values with their locations."""

    def __init__(self, name: str, text: str, values: dict[str, Any], places: Positions) -> None:
        super().__init__(name, text, values)
        self._places = places
        self._lines = text.splitlines()

    def place_of(self, path: ValuePath) -> tuple[int, int]:
        """The location of the value or of its nearest container."""
        for length in range(len(path), -1, -1):
            found = self._places.get(path[:length])
            if found is not None:
                return found
        return (0, 0)

    def problem(
        self, path: ValuePath, code: str, message: str, *, hint: str = "", severity: str = "error"
    ) -> Problem:
        """A problem at a value, at a cost independent of the file's size."""
        found = problem_at(self.name, self._lines, self.place_of(path), code, message, hint)
        return msgspec.structs.replace(found, severity=severity)


class FileContent(msgspec.Struct, frozen=True):
    """The values of a file; None if it could not be read."""

    file: TomlFile | None
    problems: tuple[Problem, ...] = ()


def strict_fields(
    section: Section, problems: list[Problem], known: Collection[str] | None
) -> Fields:
    """Reads a table strictly: a misspelt key could change the meaning of data."""
    return Fields(section, problems, known=known, strict=True, codes=FAULT_CODES)


def is_scalar(value: object) -> bool:
    """A text, number, boolean or null that JSON can represent."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**64
    return value is None or isinstance(value, (str, bool))


def excerpt_at(lines: Sequence[str], line: int, column: int) -> str:
    """The line with a caret; empty for overlong lines."""
    if not 1 <= line <= len(lines) or len(lines[line - 1]) > _LONGEST_LINE:
        return ""
    return excerpt_with_caret(lines[line - 1], 1, column)


def problem_at(
    name: str, lines: Sequence[str], place: tuple[int, int], code: str, message: str, hint: str
) -> Problem:
    """A problem at a location, with the line as an excerpt."""
    line, column = place
    return Problem(
        file=name,
        line=line,
        column=column,
        code=code,
        message=message,
        hint=hint,
        excerpt=excerpt_at(lines, line, column),
    )


def unreadable_file(
    name: str, text: str, place: tuple[int, int], code: str, message: str, hint: str
) -> FileContent:
    return FileContent(None, (problem_at(name, text.splitlines(), place, code, message, hint),))
