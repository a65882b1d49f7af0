"""A lake as the history of a back-test. [PI-9, PI-3]

Silver: readings that counted, day by day in the order of time. Bronze: the readings that a node
exported, in the order of its log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import Event, StoredEvent
from rapport.core.release import CORRECTS, Corrections
from rapport.lake.bronze import SCHEMA, envelope_rows
from rapport.lake.places import BRONZE, Lake
from rapport.lake.table import TableFile
from rapport.pipeline.backtest.pieces import BATCH, Feed, History, HistoryFile, Piece
from rapport.pipeline.history.files import ReadingsFile, Series, bad_file
from rapport.pipeline.lake.silver import silver_due
from rapport.pipeline.lake.silver_readings import silver_history
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.engine.stream_steps import ahead_problem
from rapport.policy.ontology import Ontology
from rapport.policy.readings import readings_schema, split_events
from rapport.policy.recordings.formats import Report, in_ms

_EVENTS = "events"
_COLUMNS = [name for name in SCHEMA.names if name != "day"]


def bronze_history(ontology: Ontology, label: str, lake: Path) -> History:
    """The readings that a node exported, in the order of its log, without those that it set aside
    because their time lay ahead of its clock. Of a corrected reading only the newest form counts.
    Raises InvalidInput when there are none, Corrupt for a damaged table.
    """
    place = Lake.at(lake)
    table = place.open(BRONZE, _EVENTS) if place.has(BRONZE, _EVENTS) else None
    types = [] if table is None else pc.unique(table.read(["type"])["type"]).to_pylist()
    streams = frozenset(types) & ontology.streams().keys()
    if table is None or not streams:
        raise _nothing(lake, sorted(types))
    files = sorted((_file(file) for file in table.files()), key=lambda one: one.low)
    newest = cache(partial(_corrections, [one.file.path for one in files]))
    pieces = [
        Piece(
            read=partial(_read_bronze, [one.file.path for one in some], ontology, streams, newest),
            rows=sum(one.file.rows or 0 for one in some),
            first=min((one.file.first for one in some if one.file.first is not None), default=None),
            last=max((one.file.last for one in some if one.file.last is not None), default=None),
        )
        for some in _together(files)
    ]
    feed = Feed(
        name=_EVENTS,
        streams=streams,
        files=tuple(one.file for one in files),
        pieces=tuple(pieces),
    )
    return History(label=label, kind="bronze", feeds=(feed,), lake=lake)


class _PositionedFile(msgspec.Struct, frozen=True):
    """A file and the positions it goes from and to."""

    file: HistoryFile
    low: int
    high: int


def _file(file: TableFile) -> _PositionedFile:
    """By what the table's log says; a time that no timestamp holds leaves its range open."""
    low, high = file.low.get("time"), file.high.get("time")
    whole = "time_ms" not in file.low
    told = HistoryFile(
        path=Path(file.uri),
        feed=_EVENTS,
        bytes=file.size,
        rows=file.rows,
        first=int(low.timestamp() * 1_000) if low is not None and whole else None,
        last=int(high.timestamp() * 1_000) if high is not None and whole else None,
    )
    return _PositionedFile(told, file.low.get("position", 0), file.high.get("position", 0))


def _together(files: Sequence[_PositionedFile]) -> Iterator[list[_PositionedFile]]:
    """Files whose positions interleave are read as one, such as those of two days."""
    some: list[_PositionedFile] = []
    reached = -1
    for one in files:
        if some and one.low > reached:
            yield some
            some = []
        some.append(one)
        reached = max(reached, one.high)
    if some:
        yield some


def _read_bronze(
    paths: Sequence[Path],
    ontology: Ontology,
    streams: Collection[str],
    newest: Any,
    report: Report,
) -> Iterator[pa.RecordBatch]:
    tables = [envelope_rows(_bronze_table(path, _COLUMNS)) for path in paths]
    rows = pa.concat_tables(tables).sort_by("position")
    rows = rows.filter(pc.is_in(rows["type"], pa.array(sorted(streams))))
    corrections: Corrections = newest()
    for batch in rows.to_batches(max_chunksize=BATCH):
        events = [_event(row) for row in batch.to_pylist()]
        ahead = batch["time"].to_numpy() > batch["received"].to_numpy() + ALLOWED_SKEW_MS
        for row in np.flatnonzero(ahead).tolist():
            stored = StoredEvent(0, batch["received"][row].as_py(), events[row])
            _tell(report, events[row], ahead_problem(stored))
        standing = [
            one
            for one, is_ahead in zip(events, ahead.tolist(), strict=True)
            if not is_ahead
            and corrections.stands(one.source, one.id, one.headers.get(CORRECTS, ""))
        ]
        readings, rejected = split_events(standing, ontology)
        for event, fault in rejected:
            _tell(report, event, fault)
        if len(readings):
            yield readings


def _tell(report: Report, event: Event, fault: Problem) -> None:
    told = f"event {event.id!r}: {fault.message}"
    report(Problem(file=_EVENTS, code=fault.code, message=told, hint=fault.hint))


def _corrections(paths: Sequence[Path]) -> Corrections:
    """What corrects what; reads the ids and headers of all files once."""
    found = Corrections()
    for path in paths:
        rows = _bronze_table(path, ["source", "id", "headers"])
        corrects = pc.map_lookup(rows.column("headers"), pa.scalar(CORRECTS), "first")
        rows = rows.drop_columns("headers").append_column("of", corrects)
        for row in rows.filter(pc.is_valid(corrects)).to_pylist():
            found.note(row["source"], row["id"], row["of"])
    return found


def _bronze_table(path: Path, columns: list[str]) -> pa.Table:
    try:
        return pq.ParquetFile(path).read(columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise bad_file(path, error) from None


def _event(row: dict[str, Any]) -> Event:
    return Event(
        source=row["source"],
        id=row["id"],
        type=row["type"],
        subject=row["subject"],
        time=row["time"],
        data=row["data"],
        headers=dict(row["headers"]),
    )


def _nothing(lake: Path, types: Sequence[str]) -> InvalidInput:
    has = f"it has {', '.join(types[:8])}" if types else "nothing was exported into it yet"
    return InvalidInput(
        f"the lake {lake} has no readings of this site",
        code="backtest.no_readings",
        hint=f"{has}; rapport pipeline export fills it from the site's log",
    )


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
        read=partial(_read_silver, ontology, series, files),
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


def _read_silver(
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
