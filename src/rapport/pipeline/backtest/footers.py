"""What a recorded file says of itself without being read: its columns, and their units. [PI-9]"""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.core.errors import SiteError
from rapport.pipeline.history.files import bad_file
from rapport.policy.recordings.formats import nothing_in, unreadable

_LONGEST_LINE = 1 << 22


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a file; of JSON lines the fields of the first."""

    columns: tuple[str, ...]
    units: dict[str, str] = {}
    """Of columns of Parquet that say theirs: metadata `unit` of the field."""


def read_heading(path: Path) -> Heading:
    """The columns of a file; raises SiteError for one that cannot be read."""
    try:
        match path.suffix.lower():
            case ".parquet":
                return _parquet(path)
            case ".csv":
                return Heading(columns=_csv(path))
            case ".jsonl" | ".ndjson":
                return Heading(columns=_json(path))
    except OSError as error:
        raise SiteError([unreadable(path, error)]) from None
    return Heading(columns=())


def _parquet(path: Path) -> Heading:
    try:
        schema = pq.read_schema(path)
    except pa.ArrowException as error:
        raise bad_file(path, error) from None
    units = {
        field.name: field.metadata[b"unit"].decode("utf-8", "replace")
        for field in schema
        if field.metadata and b"unit" in field.metadata
    }
    return Heading(columns=tuple(schema.names), units=units)


def _csv(path: Path) -> tuple[str, ...]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        heading = next(csv.reader(file), None)
    if not heading:
        raise nothing_in(path)
    return tuple(heading)


def _json(path: Path) -> tuple[str, ...]:
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
            if line.strip():
                break
        else:
            raise nothing_in(path)
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    return tuple(found) if isinstance(found, dict) else ()
