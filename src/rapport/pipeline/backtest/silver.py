"""Silver of a lake as history: readings that counted, day by day in the order of time. [PI-9,
PI-3]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.core.errors import Problem
from rapport.pipeline.backtest.history import BATCH, Feed, History, HistoryFile, Piece
from rapport.pipeline.history.files import ReadingsFile, Series, bad_file
from rapport.pipeline.lake.silver import silver_due
from rapport.pipeline.lake.silver_readings import silver_history
from rapport.policy.ontology import Ontology
from rapport.policy.readings import readings_schema
from rapport.policy.recordings.formats import Report, in_ms

_EVENTS = "events"


def silver_as_history(ontology: Ontology, label: str, lake: Path) -> History | None:
    """All streams of the site that silver has; None when it has no rows. Raises SiteError for a
    damaged file.
    """
    found = silver_history(lake, ontology, ontology.streams())
    if not found.rows:
        return None
    feeds = tuple(_feed(ontology, series) for series in found.series if series.files)
    return History(label=label, kind="silver", feeds=feeds, lake=lake)


def behind(lake: Path) -> list[Problem]:
    """A warning when bronze has readings that silver has not taken in yet."""
    positions = silver_due(lake).positions.get(_EVENTS, 0)
    if not positions:
        return []
    return [
        Problem(
            severity="warning",
            code="backtest.silver_behind",
            message=f"{positions:,} readings of the lake are not in silver yet and not counted",
            hint="rapport pipeline run takes them in",
        )
    ]


def _feed(ontology: Ontology, series: Series) -> Feed:
    by_day = sorted(series.files, key=_day)
    pieces = [_piece(ontology, series, list(files)) for _name, files in groupby(by_day, key=_day)]
    return Feed(
        name=series.stream,
        streams=frozenset({series.stream}),
        files=tuple(_told(series, file) for file in by_day),
        pieces=tuple(pieces),
        is_judged=True,
    )


def _day(file: ReadingsFile) -> str:
    return Path(file.path).parent.name


def _piece(ontology: Ontology, series: Series, files: Sequence[ReadingsFile]) -> Piece:
    first, last = _span(files)
    return Piece(
        read=partial(_read, ontology, series, files),
        rows=sum(file.rows for file in files),
        first=first,
        last=last,
    )


def _span(files: Sequence[ReadingsFile]) -> tuple[int | None, int | None]:
    groups = [group for file in files for group in file.groups if group.rows]
    if not all(group.is_known for group in groups):
        return None, None
    firsts = [group.first for group in groups if group.first is not None]
    lasts = [group.last for group in groups if group.last is not None]
    return min(firsts, default=None), max(lasts, default=None)


def _told(series: Series, file: ReadingsFile) -> HistoryFile:
    first, last = _span([file])
    return HistoryFile(
        path=Path(file.path),
        feed=series.stream,
        bytes=file.size,
        rows=file.rows,
        first=first,
        last=last,
    )


def _read(
    ontology: Ontology, series: Series, files: Sequence[ReadingsFile], _report: Report
) -> Iterator[pa.RecordBatch]:
    tables = [_table(Path(file.path), series) for file in files]
    rows = pa.concat_tables(tables).sort_by([(series.time, "ascending"), (series.id, "ascending")])
    schema = readings_schema(ontology)
    own = {name: column for column, name in series.parts().items()}
    own |= {"time": series.time, "id": series.id, "key": series.key, "source": series.source_column}
    arrays = [
        pa.repeat(pa.scalar(series.stream), len(rows))
        if field.name == "stream"
        else rows.column(own[field.name]).cast(field.type)
        if field.name in own
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(max_chunksize=BATCH)


def _table(path: Path, series: Series) -> pa.Table:
    """The rows of a file that count."""
    try:
        rows = pq.ParquetFile(path).read(columns=list(series.columns()))
    except (pa.ArrowException, OSError) as error:
        raise bad_file(path, error) from None
    allowed = pa.array(series.only, pa.string())
    rows = rows.filter(pc.is_in(rows.column(series.only_column), allowed))
    times = in_ms(rows.column(series.time)).cast(pa.int64())
    return rows.set_column(rows.schema.get_field_index(series.time), series.time, times)
