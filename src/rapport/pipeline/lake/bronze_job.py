"""Bronze by Spark: tasks read ranges of the channels and write their files, one commit a channel
names them. [LK-3]

For a long backlog, and for channels in PostgreSQL or NATS, which serve many readers at once. The
tables, their rows and the writer's progress are those of `lake/bronze.py`: a node, or another job,
may export the same channel meanwhile, and each event is written by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.errors import Conflict
from rapport.kernel.telemetry import get_logger
from rapport.lake.bronze import (
    WRITER,
    ExportResult,
    bronze_rows,
    ensure_bronze,
    other_log,
)
from rapport.lake.places import Lake
from rapport.lake.table import Table
from rapport.pipeline.datasource.locations import location_of
from rapport.pipeline.datasource.offsets import ChannelSpan
from rapport.pipeline.datasource.source_options import LocationOptions
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.spark_tables import TABLE_FILES, TableFiles, collect_table_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_AT_ONCE = 64_000_000
"""Rows of a channel in one commit: what a job that is killed has to write again."""
_log = get_logger(__name__)


class ChannelStep(msgspec.Struct, frozen=True):
    """The positions of a channel that one job writes."""

    table: Table
    progress: int | None
    after: int
    last: int


def export_by_spark(
    spark: SparkSession,
    site: Path,
    lake: Lake | Path | str,
    *,
    names: Sequence[str] | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> ExportResult:
    """Appends the events of each channel (default: all) since the last export, up to its present
    end, with a task for each range of positions.

    Raises Corrupt for damaged positions, which `export_channels` passes over and records, and
    Conflict when the lake has more than the log.
    """
    lake = Lake.at(lake)
    lake.refuse_former_format()
    with location_of(LocationOptions(site=str(site))).opened() as channels:
        spans = {name: channels.span(name) for name in names or channels.names()}
    total, done = ExportResult(), False
    while not done:
        steps = {
            name: step
            for name, span in spans.items()
            if (step := _next_step(lake, name, span, rows_at_once)) is not None
        }
        done = not steps
        if steps:
            total = _added(total, _run(spark, site, lake, steps))
    return msgspec.structs.replace(total, positions={name: one.last for name, one in spans.items()})


def _next_step(lake: Lake, name: str, span: ChannelSpan, most: int) -> ChannelStep | None:
    if span.last == 0:
        return None
    table = ensure_bronze(lake, name)
    progress = table.progress(WRITER)
    if span.last < (progress or 0):
        raise other_log(name)
    after = max(progress or 0, span.first - 1)
    if after >= span.last:
        return None
    return ChannelStep(table, progress, after, min(span.last, after + most))


def _run(
    spark: SparkSession, site: Path, lake: Lake, steps: dict[str, ChannelStep]
) -> ExportResult:
    """One job for all channels; each of them is committed by itself."""
    rows = _rows(
        spark,
        site,
        {name: step.after for name, step in steps.items()},
        {name: step.last for name, step in steps.items()},
    )
    write = _writer({name: step.table.uri for name, step in steps.items()}, lake)
    with spark_errors("exporting channels"):
        written = collect_table_files(rows.mapInArrow(write, TABLE_FILES))
    total = ExportResult()
    for name, step in steps.items():
        files = written.get(name, [])
        before = step.progress or 0
        try:
            step.table.commit(files, progress={WRITER: step.last}, after={WRITER: before})
        except Conflict:  # another process was quicker: the next step begins behind what it wrote
            continue
        count = sum(file.rows for file in files)
        missing = step.last - before - count
        if missing:
            _log.warning("not in the log any more", channel=name, events=missing)
        total = _added(total, ExportResult(rows=count, files=len(files), passed_over=missing))
    return total


def _rows(
    spark: SparkSession, site: Path, after: dict[str, int], last: dict[str, int]
) -> DataFrame:
    return (
        spark.read.format("rapport")
        .option("site", str(site))
        .option("channels", ",".join(last))
        .option("from", msgspec.json.encode(after).decode())
        .option("until", msgspec.json.encode(last).decode())
        .load()
    )


def _writer(
    uris: dict[str, str], lake: Lake
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    options = lake.options

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = TableFiles(uris, options)
        for batch in batches:
            for name in batch.column("channel").unique().to_pylist():
                rows = pa.Table.from_batches([batch])
                own = rows.filter(pc.equal(rows["channel"], name))
                yield from files.add(name, bronze_rows(own))
        yield from files.finish()

    return write


def _added(total: ExportResult, more: ExportResult) -> ExportResult:
    return ExportResult(
        rows=total.rows + more.rows,
        files=total.files + more.files,
        passed_over=total.passed_over + more.passed_over,
    )
