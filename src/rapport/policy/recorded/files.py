"""Recorded events in files: CSV with header, JSON lines and Parquet, read in arrival order. [PO-2,
UX-3]

Columns are converted in bulk. Where that fails the rest of the file is read row by row, so that a
faulty row is reported with its line and column and all others still count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from rapport.core.errors import Problem, SiteError, Unsupported
from rapport.core.schema import PARTS
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.readings import readings_schema
from rapport.policy.recorded.corrections import without_corrected
from rapport.policy.recorded.csv_files import csv_batches
from rapport.policy.recorded.json_lines import json_batches
from rapport.policy.recorded.parquet_files import parquet_batches
from rapport.policy.recorded.rows import FieldMapping, Report, unreadable

Reader = Callable[[Path, FieldMapping, Report], Iterator[pa.RecordBatch]]

READERS: dict[str, Reader] = {
    ".csv": csv_batches,
    ".jsonl": json_batches,
    ".ndjson": json_batches,
    ".parquet": parquet_batches,
}


def read_recorded(
    path: Path,
    source: PushSource,
    ontology: Ontology,
    *,
    batch: int = 10_000,
    report: Callable[[Problem], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Readings of a file in the order they stand there, `batch` at a time.

    A row that cannot be read is given to `report` and left out; without `report` it raises
    SiteError, as does a file that cannot be read at all (missing, empty, without a column the
    source names).
    """
    path = Path(path)
    if source.interpretation:
        raise Unsupported(
            f"replaying {path.name} of source {source.name!r}, which needs an interpretation,",
            "files in root form",
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
    wanted = FieldMapping.of(source, ontology.streams()[source.stream])
    schema = readings_schema(ontology)
    try:
        raw = without_corrected(reader(path, wanted, report or refuse), path, wanted.id)
        for rows in in_batches(raw, batch):
            yield as_readings(rows, source, wanted, schema)
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
    """As `report`: the first row that cannot be used raises SiteError."""
    raise SiteError([problem])


def as_readings(
    rows: pa.RecordBatch, source: PushSource, wanted: FieldMapping, schema: pa.Schema
) -> pa.RecordBatch:
    """The columns time, id, key and parts of one source as readings."""
    parts = enumerate(PARTS[wanted.kind])
    own = {f"{source.stream}.{part}": f"part{place}" for place, part in parts}
    arrays = [rows.column("time"), rows.column("id")]
    arrays += [pa.repeat(pa.scalar(name), len(rows)) for name in (source.stream, source.name)]
    arrays.append(rows.column("key"))
    for field in list(schema)[len(arrays) :]:
        name = own.get(field.name)
        arrays.append(pa.nulls(len(rows), field.type) if name is None else rows.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
