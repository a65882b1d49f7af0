"""Recorded files and folders as the history of a back-test. [PI-9, PO-2]

Decides which source each file belongs to, and checks that it holds what the source declares.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.core.schema import PART_UNITS
from rapport.pipeline.backtest.pieces import BATCH, Feed, History, HistoryFile, Piece
from rapport.pipeline.history.files import RowGroup, bad_file, read_footer
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.readings import readings_schema
from rapport.policy.recordings.files import READERS, as_readings, in_batches, superseded_in
from rapport.policy.recordings.formats import (
    FieldMapping,
    Report,
    check_fields,
    nothing_in,
    parquet_batches,
    unreadable,
)
from rapport.policy.replay.replay import Recording

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


Interpreted = Callable[[PushSource, Path], Recording]
"""Gives a raw file of a source with what makes readings of it; the site has that."""
Gone = Callable[[], pa.Array]
"""Ids of the readings of a source that others stand in for."""


def recorded_history(
    ontology: Ontology, label: str, path: Path, source: str, interpreted: Interpreted
) -> History:
    """The files at a path, in the order of their names. `source` says whose they are; empty: the
    folder, the site or their columns do.

    Raises InvalidInput for an empty folder or files that nobody knows, SiteError for files that
    cannot be read or do not hold what their source declares.
    """
    files = list(_files(path, ontology, source))
    if not files:
        known = ", ".join(sorted(READERS))
        raise InvalidInput(
            f"there are no recorded files in {path}",
            code="backtest.no_files",
            hint=f"known are files that end in {known}, and the lake of a site",
        )
    owned: dict[str, list[_File]] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            for owner, checked in _owners(ontology, path, file, source):
                owned.setdefault(owner, []).append(checked)
        except SiteError as error:
            problems += error.problems
    if problems:
        raise SiteError(problems)
    feeds = [
        _feed(ontology, ontology.sources[name], own, interpreted)
        for name, own in sorted(owned.items())
    ]
    return History(label=label, kind="recorded", feeds=tuple(feeds))


class _File(msgspec.Struct, frozen=True):
    """A file that holds what its source declares."""

    path: Path
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...] | None = None
    """Of Parquet in root form."""


def _files(path: Path, ontology: Ontology, source: str) -> Iterator[Path]:
    """A file itself; of a folder all that can be recorded files, hidden ones left out."""
    if not path.is_dir():
        if not path.exists():
            raise InvalidInput(
                f"there is no history at {path}",
                code="backtest.no_history",
                hint="name a recorded file, a folder of them, or a lake",
            )
        yield path
        return
    for file in sorted(path.rglob("*")):
        inner = file.relative_to(path)
        if not file.is_file() or any(part.startswith((".", "_")) for part in inner.parts):
            continue
        named = source or (inner.parts[0] if inner.parts[0] in ontology.sources else "")
        is_raw = bool(named) and bool(ontology.sources[named].interpretation)
        if is_raw or file.suffix.lower() in READERS:
            yield file


def _owners(ontology: Ontology, folder: Path, file: Path, source: str) -> list[tuple[str, _File]]:
    """The sources that a file has readings of; several when each has columns of its own there."""
    sources = ontology.sources
    inner = file.relative_to(folder).parts if file != folder else (file.name,)
    if source or inner[0] in sources:
        named = [sources[source or inner[0]]]
    elif len(sources) == 1:
        named = list(sources.values())
    else:
        named = [one for one in sources.values() if Path(one.events).name == file.name]
    if named:
        return [(one.name, _checked(ontology, one, file)) for one in named]
    return _by_columns(ontology, file)


def _by_columns(ontology: Ontology, file: Path) -> list[tuple[str, _File]]:
    heading = read_heading(file)
    fitting = [
        one
        for one in ontology.sources.values()
        if not one.interpretation and _has_all(heading, _wanted(ontology, one))
    ]
    alike = {(one.stream, _wanted(ontology, one).fields()) for one in fitting}
    if not fitting or len(alike) < len(fitting):
        raise InvalidInput(
            f"nobody can tell which source {file} was recorded from",
            code="replay.whose_events",
            hint=f"write SOURCE={file} with one of: {', '.join(sorted(ontology.sources))}",
        )
    return [(one.name, _checked(ontology, one, file)) for one in fitting]


def _checked(ontology: Ontology, source: PushSource, file: Path) -> _File:
    """Raises SiteError when the file is not what the source declares."""
    if source.interpretation:
        return _File(file, ())
    heading, kind = read_heading(file), file.suffix.lower()
    wanted = _wanted(ontology, source)
    if kind == ".csv":
        check_fields(file, wanted, heading.columns, line=1)
    if kind != ".parquet":
        return _File(file, heading.columns)
    _size, groups = read_footer(file, wanted.fields(), source.time)
    _check_units(ontology, source, file, heading)
    return _File(file, heading.columns, groups)


def _check_units(ontology: Ontology, source: PushSource, file: Path, heading: Heading) -> None:
    """A file that says its units must say those of the site."""
    declared = ontology.units.get(source.concept, {}).get(source.attribute, "")
    kind = ontology.streams()[source.stream]
    expected = PART_UNITS.get(kind, declared)
    problems = [
        Problem(
            file=file.name,
            code="events.other_unit",
            message=f"{field!r} is in {heading.units[field]}, but {source.stream} is in "
            f"{expected or 'no unit'}",
            hint=f"give the source {source.name!r} an interpretation that says the unit",
        )
        for field in source.value
        if heading.units.get(field, expected) != expected
    ]
    if problems:
        raise SiteError(problems)


def _feed(
    ontology: Ontology, source: PushSource, own: Sequence[_File], interpreted: Interpreted
) -> Feed:
    pieces: list[Piece] = []
    # What corrects a reading may stand in the file of another day; read once, when it is needed.
    gone = cache(partial(_corrected, [file.path for file in own], source.id))
    for file in own:
        if source.interpretation:
            pieces.append(Piece(read=partial(_whole, interpreted(source, file.path), ontology)))
        elif file.groups is None:
            recording = Recording(source, file.path)
            pieces.append(Piece(read=partial(_standing, recording, ontology, gone)))
        else:
            pieces += _groups(ontology, source, file, gone)
    is_parquet = all(file.groups is not None for file in own)
    return Feed(
        name=source.name,
        streams=source.streams,
        files=tuple(_told(file, source.name) for file in own),
        pieces=tuple(pieces),
        source=source if is_parquet else None,
    )


def _groups(ontology: Ontology, source: PushSource, file: _File, gone: Gone) -> Iterator[Piece]:
    wanted, schema = _wanted(ontology, source), readings_schema(ontology)

    def read(number: int, report: Report) -> Iterator[pa.RecordBatch]:
        rows = parquet_batches(file.path, wanted, report, groups=(number,))
        for some in in_batches(_without(rows, gone()), BATCH):
            yield as_readings(some, source, wanted, schema)

    for number, group in enumerate(file.groups or ()):
        yield Piece(read=partial(read, number), rows=group.rows, first=group.first, last=group.last)


def _whole(recording: Recording, ontology: Ontology, report: Report) -> Iterator[pa.RecordBatch]:
    return recording.batches(ontology, BATCH, report)


def _standing(
    recording: Recording, ontology: Ontology, gone: Gone, report: Report
) -> Iterator[pa.RecordBatch]:
    return _without(_whole(recording, ontology, report), gone())


def _corrected(paths: Sequence[Path], id_field: str) -> pa.Array:
    """Ids of the readings that others stand in for."""
    return pa.array(sorted(superseded_in(paths, id_field)), pa.string())


def _without(batches: Iterator[pa.RecordBatch], gone: pa.Array) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        left = rows.filter(pc.invert(pc.is_in(rows.column("id"), gone))) if len(gone) else rows
        if len(left):
            yield left


def _told(file: _File, feed: str) -> HistoryFile:
    groups = file.groups or ()
    firsts = [group.first for group in groups if group.first is not None]
    lasts = [group.last for group in groups if group.last is not None]
    is_known = all(group.is_known for group in groups)
    return HistoryFile(
        path=file.path,
        feed=feed,
        bytes=file.path.stat().st_size,
        rows=None if file.groups is None else sum(group.rows for group in groups),
        first=min(firsts) if firsts and is_known else None,
        last=max(lasts) if lasts and is_known else None,
    )


def _wanted(ontology: Ontology, source: PushSource) -> FieldMapping:
    return FieldMapping.of(source, ontology.streams()[source.stream])


def _has_all(heading: Heading, wanted: FieldMapping) -> bool:
    """Fields of JSON lines may be paths: their beginnings must be there."""
    names = set(heading.columns)
    return all(field in names or field.partition(".")[0] in names for field in wanted.fields())
