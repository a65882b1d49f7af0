"""Recorded raw files of a source as readings. [ME-13, ME-14, PI-4]

Parquet of plain columns is read by Spark and goes the way of its source. Other files (CSV, JSON
lines, XML, ...) are read in tasks, one file each, by the reader that `rapport replay` uses, and go
through the generated Python there: the reader has made Python values of them already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from rapport.core.errors import Problem, SiteError, UnknownName, Unsupported
from rapport.core.event import StoredEvent
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA
from rapport.pipeline.lake.spark_tables import spark_path
from rapport.pipeline.mediating.by_rows import ByRows
from rapport.pipeline.mediating.expressions import Mediated, laid_out, mediated, outcomes_schema
from rapport.pipeline.mediating.meanings import Meanings, why_with_others
from rapport.pipeline.mediating.outcome_rows import NAMES, OUTCOME
from rapport.policy.readings import FARTHEST_MS
from rapport.site.raw_files import NO_TIME, Naming, RawFile

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
) -> Mediated:
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
    naming = Naming(source=source, id=id, time=time, zone=meanings.bindings[source].zone)
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
    return Mediated(_with_times(outcomes), dict(meanings.ontology.streams()))


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


def _is_plain(path: Path, naming: Naming) -> bool:
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


def _parquet_rows(spark: SparkSession, path: Path, naming: Naming) -> DataFrame:
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
    spark: SparkSession, meanings: Meanings, naming: Naming, paths: Sequence[Path]
) -> DataFrame:
    listed = spark.createDataFrame([(str(path),) for path in paths], "path string")
    spread = listed.repartition(max(1, len(paths)))
    made = spread.mapInArrow(_Reading(meanings, naming).stream, outcomes_schema())
    return laid_out(made)


class _Reading:
    """Made on the driver, called in tasks."""

    def __init__(self, meanings: Meanings, naming: Naming) -> None:
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
