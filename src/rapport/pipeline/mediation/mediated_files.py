"""Recorded raw files and bronze as readings, written to files. [ME-13, ME-14, PI-4]

Parquet of plain columns is read by Spark and mediated like channel rows; other files (CSV, JSON
lines and the formats of an interpretation) are read by Python. Readings are written by stream,
rejected events with their reasons.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from rapport.core.errors import Conflict, InvalidInput, Problem, SiteError, UnknownName, Unsupported
from rapport.core.event import StoredEvent
from rapport.lake.places import BRONZE, Lake
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.spark_tables import chosen_channels, read_bronze, spark_path
from rapport.pipeline.mediation.expressions import (
    MediationOutcomes,
    laid_out,
    mediated,
    outcomes_schema,
)
from rapport.pipeline.mediation.meanings import Meanings, why_with_others
from rapport.pipeline.mediation.python_rows import ByRows
from rapport.pipeline.mediation.worker_rows import NAMES, OUTCOME
from rapport.policy.readings import FARTHEST_MS
from rapport.site.raw_files import NO_TIME, EnvelopeFields, RawFile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_AT_ONCE = 5_000
_TOO_FAR = "reading.bad_time"
_NO_TIME = (
    "events.no_time",
    "nothing says when this was",
    "declare the field in the interpretation, or time = FIELD of the source when it is in "
    "milliseconds or ISO 8601",
)


def mediated_files(
    spark: SparkSession,
    meanings: Meanings,
    source: str,
    paths: Sequence[Path],
    *,
    id: str = "",
    time: str = "",
) -> MediationOutcomes:
    """What the rows of recorded files mean, lazily; `position` is the line or row, counted from 1.

    `id`, `time`: fields that say what a door would know from the envelope, as the source declares
    them. A row that is none is rejected with its line. Raises UnknownName for a source that is not
    bound, Unsupported for one whose events mean what other sources say at the time.
    """
    if source not in meanings.bindings:
        raise UnknownName("source", source, list(meanings.bindings), code="source.unbound")
    why = why_with_others(meanings, source)
    if why:
        raise Unsupported(f"mediating {source!r}: {why},", "Spark")
    naming = EnvelopeFields(source=source, id=id, time=time, zone=meanings.bindings[source].zone)
    plain = [path for path in paths if _is_plain(path, naming)]
    others = [path for path in paths if path not in plain]
    found = [
        mediated(spark, _parquet_rows(spark, path, naming), meanings, sources=[source]).outcomes
        for path in plain
    ]
    if others or not found:
        found.append(_read_in_tasks(spark, meanings, naming, others))
    outcomes = found[0]
    for each in found[1:]:
        outcomes = outcomes.unionByName(each)
    return MediationOutcomes(_with_times(outcomes), dict(meanings.ontology.streams()))


def _with_times(outcomes: DataFrame) -> DataFrame:
    """A row that says no time is told so in words of its own."""
    from pyspark.sql import functions

    untimed = (functions.col("reason") == _TOO_FAR) & (functions.col("time") <= -FARTHEST_MS)
    return outcomes.withColumns(
        {
            name: functions.when(untimed, said).otherwise(functions.col(name))
            for name, said in zip(("reason", "message", "hint"), _NO_TIME, strict=True)
        }
    )


# --- Parquet


def _is_plain(path: Path, naming: EnvelopeFields) -> bool:
    """Spark writes its columns as JSON that reads back as what Python would have read."""
    if path.suffix.lower() != ".parquet":
        return False
    try:
        schema = pyarrow.parquet.read_schema(path)
    except (OSError, pa.ArrowInvalid):
        return False  # reading it in a task says what is wrong
    lower = {name.lower() for name in schema.names}
    if len(lower) < len(schema.names) or "specversion" in lower or "_metadata" in lower:
        return False
    named = [name for name in (naming.id, naming.time) if name]
    return all(map(_is_plain_type, schema.types)) and not any(
        name in schema.names for name in named
    )


def _is_plain_type(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_int64(kind)
        or pa.types.is_int32(kind)
    )


def _parquet_rows(spark: SparkSession, path: Path, naming: EnvelopeFields) -> DataFrame:
    """Rows of a file as the events a door would have received."""
    from pyspark.sql import functions

    rows = spark.read.parquet(spark_path(str(path)))
    number = functions.col("_metadata.row_index") + 1
    values = [_as_json(rows, name, kind) for name, kind in rows.dtypes]
    written = functions.to_json(functions.struct(*values), {"ignoreNullFields": "false"})
    return rows.select(
        functions.lit(RAW_PREFIX + naming.source).alias("channel"),
        number.alias("position"),
        functions.lit(NO_TIME).cast("bigint").alias("received"),
        functions.lit(NO_TIME).cast("bigint").alias("time"),
        functions.lit(naming.source).alias("source"),
        functions.concat(functions.lit(f"{path.name}:"), number.cast("string")).alias("id"),
        functions.lit(f"{naming.source}.raw").alias("type"),
        functions.lit("").alias("subject"),
        functions.create_map().cast("map<string,string>").alias("headers"),
        functions.encode(written, "utf-8").alias("data"),
    )


def _as_json(rows: DataFrame, name: str, kind: str) -> Column:
    """JSON knows no numbers that are not finite: null, as the node has it."""
    from pyspark.sql import functions

    column = rows[f"`{name}`"]
    if kind == "double":
        finite = functions.abs(column) <= 1.7976931348623157e308
        column = functions.when(finite, column)
    return column.alias(name)


# --- other files


def _read_in_tasks(
    spark: SparkSession, meanings: Meanings, naming: EnvelopeFields, paths: Sequence[Path]
) -> DataFrame:
    listed = spark.createDataFrame([(str(path),) for path in paths], "path string")
    spread = listed.repartition(max(1, len(paths)))
    made = spread.mapInArrow(_Reading(meanings, naming).stream, outcomes_schema())
    return laid_out(made)


class _Reading:
    """Made on the driver, called in tasks."""

    def __init__(self, meanings: Meanings, naming: EnvelopeFields) -> None:
        self._rows, self._naming = ByRows(meanings, in_order=True), naming
        name = meanings.bindings[naming.source].interpretation
        in_force = meanings.in_force
        known = name in in_force.typed or name in in_force.fields
        self._choice = in_force.format_of(name) if known else in_force.format_of("")

    def stream(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: from paths to rows of outcomes."""
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from self._file(Path(path))

    def _file(self, path: Path) -> Iterator[pa.RecordBatch]:
        """What conversions remember begins anew with each file."""
        problems: list[Problem] = []
        file = RawFile(path, self._choice, self._naming)
        events = file.events(problems.append)
        yield from self._rows.stream(self._batches(events, problems))
        if problems:
            yield _faults(problems, self._naming.source)

    def _batches(
        self, events: Iterator[StoredEvent], problems: list[Problem]
    ) -> Iterator[pa.RecordBatch]:
        try:
            while some := list(islice(events, _AT_ONCE)):
                yield _raw_batch(some, self._naming.source)
        except SiteError as error:
            problems.extend(error.problems_found())


def _raw_batch(events: Sequence[StoredEvent], source: str) -> pa.RecordBatch:
    rows = [
        {
            "channel": RAW_PREFIX + source,
            "position": one.position,
            "received": one.received,
            **msgspec.structs.asdict(one.event),
        }
        for one in events
    ]
    return pa.RecordBatch.from_pylist(rows, CHANNEL_SCHEMA)


def _faults(problems: Sequence[Problem], source: str) -> pa.RecordBatch:
    """Lines that are no rows; there is no raw event, only its place."""
    rows: list[dict[str, Any]] = [
        {
            "source": source,
            "interpretation": "",
            "reason": problem.code,
            "message": f"{problem.file}: {problem.message}",
            "hint": problem.hint,
            "raw": {"channel": RAW_PREFIX + source, "position": problem.line, "received": NO_TIME},
        }
        for problem in problems
    ]
    fields = [OUTCOME.field(name) for name in NAMES]
    schema = pa.schema([*fields, pa.field("raw", pa.struct(list(CHANNEL_SCHEMA)))])
    return pa.RecordBatch.from_pylist(rows, schema)


READINGS, REJECTED = "readings", "rejected"
_RAW = "raw."


class MediatedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What became of raw history."""

    into: str
    readings: dict[str, int]
    """How many of each stream."""
    rejected: dict[str, int]
    """How many events had no meaning, by source and reason."""
    by_columns: int
    """Readings of which Spark's own columns were certain; Python was asked about the others."""


def mediate_lake(
    spark: SparkSession,
    meanings: Meanings,
    lake: Path,
    into: Path,
    *,
    sources: Sequence[str] | None = None,
) -> MediatedHistory:
    """Mediates the raw events of a lake's bronze again, by what `meanings` say now.

    Raises Conflict when `into` holds something, InvalidInput when there are no raw events, and what
    `expressions.mediated` raises.
    """
    names = [f"{_RAW}{name}" for name in sources] if sources else [f"{_RAW}*"]
    if not chosen_channels(Lake.at(lake).names(BRONZE), names):
        raise InvalidInput(
            f"there are no raw events of {', '.join(sources or ('any source',))} in {lake}",
            code="mediate.no_raw_events",
            hint="rapport pipeline export fills the lake of a site",
        )
    with spark_errors("mediating the lake"):
        found = mediated(
            spark, read_bronze(spark, Lake.at(lake), *names), meanings, sources=sources
        )
        return _written(found, into)


def mediate_files(
    spark: SparkSession,
    meanings: Meanings,
    files: Mapping[EnvelopeFields, Sequence[Path]],
    into: Path,
) -> MediatedHistory:
    """Mediates recorded raw files, by whose they are; raises what `recorded.mediated_files` raises,
    and Conflict when `into` holds something.
    """
    with spark_errors("mediating recorded files"):
        frames = [
            mediated_files(
                spark, meanings, naming.source, paths, id=naming.id, time=naming.time
            ).outcomes
            for naming, paths in files.items()
        ]
        whole = frames[0]
        for each in frames[1:]:
            whole = whole.unionByName(each)
        return _written(MediationOutcomes(whole, dict(meanings.ontology.streams())), into)


def _written(found: MediationOutcomes, into: Path) -> MediatedHistory:
    """Writes beside and renames: the folder is there whole, or not at all."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise Conflict(
            f"{into} holds something already",
            code="mediate.not_empty",
            hint="name a folder that is not there yet",
        )
    beside = into.with_name(f".{into.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    outcomes = found.outcomes.persist()
    kept = MediationOutcomes(outcomes, found.streams)
    try:
        told = _counted(outcomes, into)
        for stream in told.readings:
            _write(kept.stream(stream), beside / READINGS / f"stream={stream}")
        if told.rejected:
            _write(kept.rejected, beside / REJECTED)
    finally:
        outcomes.unpersist()
    beside.mkdir(parents=True, exist_ok=True)
    if into.exists():
        into.rmdir()
    beside.rename(into)
    return told


def _write(rows: DataFrame, folder: Path) -> None:
    rows.write.parquet(spark_path(str(folder.resolve()), pattern=False))


def _counted(outcomes: DataFrame, into: Path) -> MediatedHistory:
    groups = outcomes.groupBy("stream", "source", "reason", "native").count().collect()
    readings: dict[str, int] = {}
    rejected: dict[str, int] = {}
    by_columns = 0
    for row in groups:
        if row["reason"] is None:
            readings[row["stream"]] = readings.get(row["stream"], 0) + row["count"]
            by_columns += row["count"] if row["native"] else 0
        else:
            why = f"{row['source']}: {row['reason']}"
            rejected[why] = rejected.get(why, 0) + row["count"]
    return MediatedHistory(
        into=str(into),
        readings=dict(sorted(readings.items())),
        rejected=dict(sorted(rejected.items())),
        by_columns=by_columns,
    )
