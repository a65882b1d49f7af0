"""Recorded events in files, read in order of arrival; several files merged into one stream. [PO-2,
PO-7, PO-8, ME-16, UX-3]

Columns are converted in bulk. Where that fails, the rest of the file is read row by row, so that a
faulty row is reported with line and column and all others still count.

Exported readings carry `corrects` (a JSON field or a column) where one replaces another; replaced
rows are left out.

Merging orders files by their clock, the largest time a file has shown so far; equal clocks keep the
order of the files. So files of the same day interleave, and a reading is late exactly when it is
late in its own file.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rapport.core.errors import Problem, SiteError, Unsupported
from rapport.core.release import CORRECTS, Corrections
from rapport.core.schema import PARTS
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.readings import readings_schema
from rapport.policy.recordings.formats import (
    FieldMapping,
    Report,
    csv_batches,
    json_batches,
    parquet_batches,
    unreadable,
)

_LONGEST_LINE = 1 << 22
_MARK = f'"{CORRECTS}"'.encode()
_READ = msgspec.json.Decoder(dict[str, Any])
Pair = tuple[Any, Any]
"""Id of a row and the id it corrects."""
Reader = Callable[[Path, FieldMapping, Report], Iterator[pa.RecordBatch]]
READERS: dict[str, Reader] = {
    ".csv": csv_batches,
    ".jsonl": json_batches,
    ".ndjson": json_batches,
    ".parquet": parquet_batches,
}
Clocks = npt.NDArray[np.int64]


def without_corrected(
    batches: Iterator[pa.RecordBatch], path: Path, id_field: str
) -> Iterator[pa.RecordBatch]:
    """Drops corrected rows (by the column `id`). A file with corrections is read twice; others cost
    a look at their heading or bytes.
    """
    gone = superseded_in(path, id_field)
    if not gone:
        yield from batches
        return
    ids = pa.array(sorted(gone), pa.string())
    for rows in batches:
        yield rows.filter(pc.invert(pc.is_in(rows.column("id"), ids)))


def superseded_in(paths: Path | Sequence[Path], id_field: str) -> frozenset[str]:
    """Ids of rows that a later row corrects; with several files of one source, in their order, also
    a row of a later file. Unreadable rows are skipped; reading the rows reports them.
    """
    corrections = Corrections()
    for path in [paths] if isinstance(paths, Path) else paths:
        pairs = _PAIRS.get(path.suffix.lower())
        for id, original in pairs(path, id_field) if pairs is not None else ():
            if id not in (None, "") and original not in (None, ""):
                corrections.note("", str(id), str(original))
    return frozenset(corrections.superseded())


def _in_json(path: Path, id_field: str) -> Iterator[Pair]:
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
            if _MARK not in line:
                continue
            try:
                found = _READ.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            yield found.get(id_field), found.get(CORRECTS)


def _in_csv(path: Path, id_field: str) -> Iterator[Pair]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file)
        heading = next(rows, [])
        if CORRECTS not in heading or id_field not in heading:
            return
        id_place, place = heading.index(id_field), heading.index(CORRECTS)
        try:
            for row in rows:
                if len(row) == len(heading):
                    yield row[id_place], row[place]
        except csv.Error:
            return  # reading the rows reports it with its line


def _in_parquet(path: Path, id_field: str) -> Iterator[Pair]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if not {CORRECTS, id_field} <= set(file.schema_arrow.names):
                return
            for rows in file.iter_batches(columns=[id_field, CORRECTS]):
                marked = rows.filter(rows.column(CORRECTS).is_valid())
                columns = (marked.column(name).to_pylist() for name in (id_field, CORRECTS))
                yield from zip(*columns, strict=True)
    except pa.ArrowInvalid:
        return  # not a Parquet file: reading the rows reports it


_PAIRS: dict[str, Callable[[Path, str], Iterator[Pair]]] = {
    ".csv": _in_csv,
    ".jsonl": _in_json,
    ".ndjson": _in_json,
    ".parquet": _in_parquet,
}


def read_recorded(
    path: Path,
    source: PushSource,
    ontology: Ontology,
    *,
    batch: int = 10_000,
    report: Callable[[Problem], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Readings of a file in its order, `batch` at a time.

    An unusable row is given to `report` and left out; without `report` it raises SiteError, as does
    an unusable file (missing, empty, without a named column).
    """
    path = Path(path)
    if source.interpretation:
        raise Unsupported(
            f"replaying {path.name} of source {source.name!r}, which needs an interpretation,",
            "files in canonical form",
            hint="read it through the site, which has the interpretation",
        )
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(sorted(READERS))
        message = f"files that end in {path.suffix!r} cannot be replayed"
        raise SiteError(
            [
                Problem(
                    file=path.name,
                    code="events.unknown_format",
                    message=message,
                    hint=f"known: {known}",
                )
            ]
        )
    mapping = FieldMapping.of(source, ontology.streams()[source.stream])
    schema = readings_schema(ontology)
    try:
        raw = without_corrected(reader(path, mapping, report or refuse), path, mapping.id)
        for rows in in_batches(raw, batch):
            yield as_readings(rows, source, mapping, schema)
    except OSError as error:
        raise SiteError([unreadable(path, error)]) from None


def in_batches(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows, `size` at a time; the last batch may be smaller."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch)
        if rows < size:
            continue
        whole = held[0] if len(held) == 1 else pa.concat_batches(held)
        first = 0
        while rows - first >= size:
            yield whole.slice(first, size)
            first += size
        rows -= first
        held = [whole.slice(first)] if rows else []
    if rows:
        yield held[0] if len(held) == 1 else pa.concat_batches(held)


def refuse(problem: Problem) -> None:
    """A `report` that raises SiteError for the first unusable row."""
    raise SiteError([problem])


def as_readings(
    rows: pa.RecordBatch, source: PushSource, mapping: FieldMapping, schema: pa.Schema
) -> pa.RecordBatch:
    parts = enumerate(PARTS[mapping.kind])
    own = {f"{source.stream}.{part}": f"part{place}" for place, part in parts}
    arrays = [rows.column("time"), rows.column("id")]
    arrays += [pa.repeat(pa.scalar(name), len(rows)) for name in (source.stream, source.name)]
    arrays.append(rows.column("key"))
    for field in list(schema)[len(arrays) :]:
        name = own.get(field.name)
        arrays.append(pa.nulls(len(rows), field.type) if name is None else rows.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _OpenRecording:
    """Rows read ahead from one file, with the file's clock at each."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows: pa.RecordBatch | None = None
        self.clocks: Clocks = np.zeros(0, np.int64)
        self._latest = -(2**62)
        self.refill()

    def refill(self) -> None:
        """Reads on when nothing is left; `rows` is None at the end."""
        if self.rows is None or not len(self.rows):
            self.rows = next(self._batches, None)
            if self.rows is not None:
                times = self.rows.column("time").to_numpy()
                self.clocks = np.maximum(np.maximum.accumulate(times), self._latest)
                self._latest = int(self.clocks[-1])

    def take(self, count: int) -> tuple[pa.RecordBatch, Clocks]:
        assert self.rows is not None
        taken = self.rows.slice(0, count), self.clocks[:count]
        self.rows, self.clocks = self.rows.slice(count), self.clocks[count:]
        self.refill()
        return taken


def merge_recordings(
    files: Sequence[Iterator[pa.RecordBatch]], *, batch: int
) -> Iterator[pa.RecordBatch]:
    """The rows of all files, `batch` at a time; a single file passes through unchanged."""
    if len(files) == 1:
        yield from files[0]
        return
    yield from in_batches(_merged([_OpenRecording(file) for file in files]), batch)


def _merged(files: list[_OpenRecording]) -> Iterator[pa.RecordBatch]:
    while files := [file for file in files if file.rows is not None]:
        # Beyond the earliest end of the buffers another file may still have rows.
        safe = min(int(file.clocks[-1]) for file in files)
        ending = next(place for place, file in enumerate(files) if file.clocks[-1] == safe)
        parts, clocks = [], []
        for place, file in enumerate(list(files)):
            side = "right" if place <= ending else "left"
            count = int(np.searchsorted(file.clocks, safe, side=side))  # type: ignore[call-overload]
            if count:
                rows, times = file.take(count)
                parts.append(rows)
                clocks.append(times)
        order = np.argsort(np.concatenate(clocks), kind="stable")
        yield pa.concat_batches(parts).take(pa.array(order))
