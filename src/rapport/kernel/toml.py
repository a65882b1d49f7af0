"""TOML files with positions: every fault in a site file names its line and column. [UX-2]

`tomllib` keeps no positions. A scan of headers and keys finds them; it runs only when there is a
fault to report. Files in other forms that are read as tables bring their positions with them.

A key `a.b.c` is a path, and readers build the path to each of its parts: time and memory grow with
the square of their number, in `tomllib` too. A text of 200 kB that is one key would take minutes
and gigabytes. Therefore keys with more than `MAX_KEY_PARTS` parts are rejected before parsing.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rapport.core.errors import Problem, Severity, SiteError, excerpt_with_caret

MAX_KEY_PARTS = 16
"""Parts of one key or header; people write at most six."""

# An unterminated string is a syntax error, so it may match the rest of the text.
# No possessive quantifiers: Python 3.11.2 matches too much with them.
_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*(?:"|[\s\S]*)|'[^'\n]*(?:'|[\s\S]*))"""
_KEY_PARTS = re.compile(_KEY_PART)
_PIECE = re.compile(
    r'"""(?:\\[\s\S]|[^\\"]|"(?!""))*"{0,5}'
    r"|'''(?:[^']|'(?!''))*'{0,5}"
    r"|#[^\n]*"
    rf"|(?P<key>{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*)"
    r"|[^\"'#A-Za-z0-9_-]+"
)
"""Consecutive tokens: strings, comments, keys and the rest. Each kind has its own first character,
so that matching never backtracks. A number matches as a key of two parts.
"""


def find_long_key(text: str) -> int | None:
    """Where a key with more than MOST_PARTS parts begins; None when there is none. Looks at each
    letter once, at those of a key twice: 4 MiB take less than a second.
    """
    for piece in _PIECE.finditer(text):
        key = piece["key"]
        if key and key.count(".") >= MAX_KEY_PARTS and len(_KEY_PARTS.findall(key)) > MAX_KEY_PARTS:
            return piece.start()
    return None


# The name ends with a non-space; otherwise matching a long row of spaces would be quadratic.
_HEADER = re.compile(r"\s*\[\[?\s*(\S(?:.*?\S)?)\s*\]\]?\s*(?:#.*)?$")
_NAME = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_KEY = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")

_PIECES = {
    "": re.compile(r"""\"{3}|'{3}|"(?:\\.|[^"\\])*"|'[^']*'|#.*|[\[\]{}]"""),
    '"""': re.compile(r'\\.|"{3}'),
    "'''": re.compile(r"'{3}"),
}
"""Tokens of a value's line: outside of multi-line strings, and inside of each kind of them."""

_MAX_BYTES = 4 * 1024 * 1024
_LONGEST_SHOWN = 400
"""Characters of a line that is shown with a problem."""

Positions = Mapping[tuple[str, ...], tuple[int, int]]
"""Line and column by path, counted from 1."""


class TomlFile:
    """A parsed TOML file with the position of each key, or a file in another form read as one."""

    def __init__(
        self, name: str, text: str, values: dict[str, Any], places: Positions | None = None
    ) -> None:
        """`places`: of a file in another form."""
        self.name, self.text, self.values = name, text, values
        if places is not None:
            self._places = places

    @staticmethod
    def load(path: Path, *, name: str | None = None) -> TomlFile:
        """Reads and parses; raises SiteError with the position of the fault."""
        shown = name or path.name
        try:
            raw = path.read_bytes()
        except OSError as error:
            problem = Problem(
                file=shown,
                code="site.unreadable",
                message=f"cannot read {path}: {error.strerror}",
                hint="rapport init DIR makes a new site",
            )
            raise SiteError([problem]) from None
        return TomlFile.parse(raw, name=shown)

    @staticmethod
    def parse(raw: bytes, *, name: str) -> TomlFile:
        """Parses bytes; raises SiteError with the position of the fault."""
        if len(raw) > _MAX_BYTES:
            raise SiteError(
                [Problem(file=name, code="site.too_large", message="the file is larger than 4 MiB")]
            )
        try:
            text = raw.decode("utf-8-sig")  # some editors mark the encoding
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            problem = Problem(
                file=name,
                line=line,
                code="site.not_utf8",
                message="the file is not UTF-8 text",
                hint="save it as UTF-8",
            )
            raise SiteError([problem]) from None
        if (begins := find_long_key(text)) is not None:
            raise SiteError([_long_key_problem(name, text, begins)])
        try:
            return TomlFile(name, text, tomllib.loads(text))
        except (ValueError, RecursionError) as error:  # ValueError: a number of 5,000 digits, too
            raise SiteError([_syntax_problem(name, text, str(error))]) from None

    def section(self, *path: str) -> Section:
        """The table at `path`; an empty section if absent."""
        value: Any = self.values
        for part in path:
            value = value.get(part, {}) if isinstance(value, dict) else {}
        return Section(self, path, value if isinstance(value, dict) else {})

    def place_of(self, path: tuple[str, ...]) -> tuple[int, int]:
        """Line and column of the key or header, or of its nearest ancestor if it is in an inline
        table. The tables of a `[[list]]` are `("list", "[0]")` and so on.
        """
        for length in range(len(path), 0, -1):
            found = self._places.get(path[:length])
            if found is not None:
                return found
        return (0, 0)

    def problem(
        self,
        path: tuple[str, ...],
        code: str,
        message: str,
        *,
        hint: str = "",
        severity: Severity = "error",
    ) -> Problem:
        """A problem at the position of a key, at a cost independent of the file's size."""
        place = self.place_of(path)
        return problem_at(self.name, self._lines, place, code, message, hint, severity)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def _places(self) -> Positions:
        found: dict[tuple[str, ...], tuple[int, int]] = {}
        for line, column, path in self._keys():
            for length in range(1, len(path) + 1):  # a parent table may have no header
                found.setdefault(path[:length], (line, column))
        return found

    def _keys(self) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Line, column and path of each header and key; within a `[[list]]` with and without the
        entry's number.
        """
        table: tuple[str, ...] = ()
        entry: tuple[str, ...] = ()
        counts = Counter[tuple[str, ...]]()
        quote, depth = "", 0
        for number, line in enumerate(self._lines, start=1):
            column = len(line) - len(line.lstrip()) + 1
            if quote or depth:
                quote, depth = _left_open(line, quote, depth)
            elif header := _HEADER.match(line):
                table = _parts(header[1])
                entry = _numbered(table, counts)
                yield number, column, table
                if line.lstrip().startswith("[["):
                    counts[entry] += 1
                    entry = (*entry, f"[{counts[entry] - 1}]")
                if entry != table:
                    yield number, column, entry
            elif key := _KEY.match(line):
                yield number, column, table + _parts(key[1])
                if entry != table:
                    yield number, column, entry + _parts(key[1])
                quote, depth = _left_open(line[key.end() :], "", 0)


class Section:
    """One table of a TOML file: its values, and problems placed at its keys."""

    def __init__(self, file: TomlFile, path: tuple[str, ...], values: dict[str, Any]) -> None:
        self.file, self.path, self.values = file, path, values

    def __bool__(self) -> bool:
        return bool(self.values)

    def sections(self) -> Iterator[tuple[str, Section]]:
        """The direct sub-tables by name."""
        for name, value in self.values.items():
            if isinstance(value, dict):
                yield name, Section(self.file, (*self.path, name), value)

    def section(self, name: str) -> Section:
        """The sub-table `name`; empty if absent."""
        value = self.values.get(name)
        return Section(self.file, (*self.path, name), value if isinstance(value, dict) else {})

    def problem(
        self, key: str, code: str, message: str, *, hint: str = "", severity: Severity = "error"
    ) -> Problem:
        """A problem at `key` of this section, or at its header if `key` is empty."""
        path = (*self.path, key) if key else self.path
        return self.file.problem(path, code, message, hint=hint, severity=severity)


def problem_at(
    name: str,
    lines: Sequence[str],
    place: tuple[int, int],
    code: str,
    message: str,
    hint: str = "",
    severity: Severity = "error",
) -> Problem:
    """A problem at a position, with the line as an excerpt unless it is overlong."""
    line, column = place
    shown = lines[line - 1] if 1 <= line <= len(lines) else ""
    return Problem(
        file=name,
        line=line,
        column=column,
        severity=severity,
        code=code,
        message=message,
        hint=hint,
        excerpt=excerpt_with_caret(shown, 1, column) if len(shown) <= _LONGEST_SHOWN else "",
    )


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(
        next(part for part in found if part) if any(found) else ""
        for found in _PART.findall(dotted)
    )


def _numbered(parts: tuple[str, ...], counts: Counter[tuple[str, ...]]) -> tuple[str, ...]:
    """`list.table` in the second entry of `[[list]]` is `("list", "[1]", "table")`."""
    path: tuple[str, ...] = ()
    for part in parts:
        path = (*path, f"[{counts[path] - 1}]", part) if counts[path] else (*path, part)
    return path


def _left_open(line: str, quote: str, depth: int) -> tuple[str, int]:
    """The quote and the number of brackets that are open after a line of a value, given those
    before it. Lines within open quotes or brackets are neither headers nor keys.
    """
    at = 0
    while piece := _PIECES[quote].search(line, at):
        at, found = piece.end(), piece[0]
        if quote:
            quote = "" if found == quote else quote
        elif found in _PIECES:
            quote = found
        elif found in ("[", "{"):
            depth += 1
        elif found in ("]", "}"):
            depth -= 1
    return quote, depth


def _long_key_problem(name: str, text: str, begins: int) -> Problem:
    return Problem(
        file=name,
        line=text.count("\n", 0, begins) + 1,
        column=begins - text.rfind("\n", 0, begins),
        code="site.too_many_parts",
        message=f"this key has more than {MAX_KEY_PARTS} parts",
        hint='a name that has dots in it is written in quotes: "a.b"',
    )


def _syntax_problem(name: str, text: str, message: str) -> Problem:
    found = re.search(r"\(at line (\d+), column (\d+)\)", message)
    line, column = (int(found[1]), int(found[2])) if found else (text.count("\n") + 1, 1)
    return Problem(
        file=name,
        line=line,
        column=column,
        code="site.bad_toml",
        message=message.split(" (at ")[0],
        excerpt=excerpt_with_caret(text, line, column),
    )
