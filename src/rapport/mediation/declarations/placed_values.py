"""The common form of TOML, YAML and XML declarations: plain values with locations. [ME-10]

Every form becomes a `TomlFile`, so that one set of readers (`Fields`) reads them all and locates
every fault. A path consists of keys and, in lists, of indexes such as `[0]`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.config_fields import FaultCodes, Fields
from rapport.kernel.toml import Section, TomlFile, problem_at

FileKind = Literal["toml", "yaml", "xml"]
ValuePath = tuple[str, ...]

MAX_FILE_BYTES = 1024 * 1024
"""Maximum size of a file."""
MAX_FILE_DEPTH = 40
"""Maximum nesting of tables and lists."""

FAULT_CODES = FaultCodes(
    unknown_key="interpretation.unknown_key",
    missing_key="interpretation.missing_key",
    wrong_type="interpretation.bad_value",
    unknown_choice="interpretation.bad_value",
    out_of_range="interpretation.bad_value",
    bad_duration="time.bad_duration",
    endless_duration="interpretation.bad_value",
)


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


def unreadable_file(
    name: str, text: str, place: tuple[int, int], code: str, message: str, hint: str
) -> FileContent:
    return FileContent(None, (problem_at(name, text.splitlines(), place, code, message, hint),))
