"""Declarations in TOML: values by the standard library, places by a look at headers and keys.
[ME-10]
"""

from __future__ import annotations

import re

from rapport.core.errors import SiteError
from rapport.kernel.toml import TomlFile
from rapport.mediation.declaring.tree import Path, PlacedFile, Places, Read, refused

# What it ends with is no space: otherwise each space of a long row is looked at for each before it.
_HEADER = re.compile(r"\s*(\[\[?)\s*(\S(?:.*?\S)?)\s*\]\]?\s*(?:#.*)?$")
_NAME = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_KEY = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")


def read_toml(name: str, raw: bytes) -> Read:
    """The file, or the problem at the place where it stops being TOML."""
    try:
        file = TomlFile.parse(raw, name=name)
    except SiteError as error:
        return Read(None, error.problems)
    except ValueError as error:  # a number of thousands of digits
        return refused(name, "", (0, 0), "site.bad_toml", str(error), "numbers are 64 bits wide")
    return Read(with_places(file))


def with_places(file: TomlFile) -> PlacedFile:
    """The same file, which also tells the entries of `[[lists]]` apart."""
    return PlacedFile(file.name, file.text, file.values, _places(file.text))


def _places(text: str) -> Places:
    places: dict[Path, tuple[int, int]] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), start=1):
        column = len(line) - len(line.lstrip()) + 1
        if header := _HEADER.match(line):
            table = _indexed(_parts(header[2]), counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, 0) + 1
                places.setdefault(table, (number, column))
                table = (*table, str(counts[table] - 1))
            for length in range(len(table), 0, -1):  # a table may have no header of its own
                places.setdefault(table[:length], (number, column))
        elif key := _KEY.match(line):
            path = table
            for part in _parts(key[1]):
                path = (*path, part)
                places.setdefault(path, (number, column))
    return places


def _indexed(parts: Path, counts: dict[Path, int]) -> Path:
    """`mappings.create` within the second of `[[mappings]]` is `mappings.1.create`."""
    path: Path = ()
    for position, part in enumerate(parts):
        path = (*path, part)
        if path in counts and position < len(parts) - 1:
            path = (*path, str(counts[path] - 1))
    return path


def _parts(dotted: str) -> Path:
    return tuple("".join(found) for found in _PART.findall(dotted))
