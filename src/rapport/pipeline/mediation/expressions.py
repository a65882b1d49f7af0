"""Raw events of channels as readings, by the interpretations that the node uses. [ME-14, PI-4]

If an interpretation can be written as column operations, Spark evaluates it: the payload is parsed
by Spark's JSON reader, every row gets its reading by columns and a verdict whether that is certain,
and only uncertain rows go to the generated Python. Other interpretations run in Python for all
rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.core.event import MAX_NAME
from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.pipeline.datasource.rows import CHANNEL_ROWS
from rapport.pipeline.mediation.meanings import Meanings
from rapport.pipeline.mediation.operations import (
    NativePlan,
    ReadingColumns,
    fields_of,
)
from rapport.pipeline.mediation.payload import doubts_of_payload, parsed
from rapport.pipeline.mediation.python_rows import ByRows, part_columns
from rapport.pipeline.mediation.source_plans import SourceWay, ways_of
from rapport.pipeline.mediation.spark_columns import ColumnWriter
from rapport.pipeline.mediation.worker_rows import (
    OUTCOME_ROWS,
    PART_COLUMNS,
    RAW_COLUMNS,
    WorkerMediation,
)
from rapport.policy.readings import FARTHEST_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PAYLOAD, _CERTAIN, _PYTHON = "payload", "certain", "python"
_EXACTLY = {"mode": "FAILFAST"}
_PRINTABLE = r"^[ -~\u00A1-\u00AC\u00AE-\u02C1]+$"
"""Names that can be in an envelope, as far as that is quickly said."""
_COLUMNS = [each.split() for each in OUTCOME_ROWS.split(", ")]
_OUTCOMES = f"array<struct<{','.join(f'{name}:{kind}' for name, kind in _COLUMNS)}>>"


def native_outcomes(
    spark: SparkSession, rows: DataFrame, plan: NativePlan, meanings: Meanings
) -> DataFrame:
    """Readings as the operations give them; rows in doubt as Python does."""
    from pyspark.sql import functions

    frame = rows.select(*RAW_COLUMNS).withColumn(_PAYLOAD, parsed(fields_of(plan)))
    writer = ColumnWriter(spark, frame, _PAYLOAD)
    wanted = [plan.time, plan.key, *plan.looked_at, *(need.node for need in plan.needed)]
    writer.put([*wanted, *(part for given in plan.given for part in given.parts)])
    doubt = _any(
        [
            *doubts_of_payload(plan, functions.col(_PAYLOAD)),
            *writer.doubts,
            *_doubts_of_results(plan, writer),
        ]
    )
    certain = ~functions.coalesce(doubt, functions.lit(True))
    judged = writer.frame.withColumn(_CERTAIN, certain)
    asked = judged.withColumn(_PYTHON, _asked(meanings))
    lay_out = _single if plan.single else _spread
    return lay_out(plan, asked, writer, meanings)


def _asked(meanings: Meanings) -> Column:
    """What Python says of a row in doubt, as JSON; null for others."""
    from pyspark.sql import functions
    from pyspark.sql.functions import arrow_udf

    fields = [name for name in RAW_COLUMNS if name not in ("position", "received", "data")]
    data = functions.base64("data").alias("data")
    row = functions.to_json(functions.struct(*fields, data), {"ignoreNullFields": "true"})
    ask = arrow_udf(WorkerMediation(*meanings.sent).outcomes, "string")
    return ask(functions.when(~functions.col(_CERTAIN), row))


def _single(
    plan: NativePlan, frame: DataFrame, writer: ColumnWriter, meanings: Meanings
) -> DataFrame:
    """Where each row has exactly one outcome."""
    from pyspark.sql import functions

    python, certain = functions.col(_PYTHON), functions.col(_CERTAIN)
    read = functions.from_json(python, _OUTCOMES, _EXACTLY)
    told = frame.withColumn(_PYTHON, functions.when(python.isNotNull(), functions.get(read, 0)))
    values = _values(plan, plan.given[0], writer, meanings)
    columns = [
        functions.when(certain, values.get(name, functions.lit(None)).cast(kind))
        .otherwise(python[name])
        .alias(name)
        for name, kind in _COLUMNS
    ]
    return told.select(
        *columns,
        "channel",
        "position",
        "received",
        functions.when(python["reason"].isNotNull(), functions.struct(*RAW_COLUMNS)).alias("raw"),
        certain.alias("native"),
    )


def _spread(
    plan: NativePlan, frame: DataFrame, writer: ColumnWriter, meanings: Meanings
) -> DataFrame:
    """Where a row may have several, or none."""
    from pyspark.sql import functions

    readings = functions.array(*(_reading(plan, each, writer, meanings) for each in plan.given))
    there = functions.filter(readings, lambda each: each.isNotNull())
    told = functions.from_json(_PYTHON, _OUTCOMES, _EXACTLY)
    outcome = functions.when(functions.col(_CERTAIN), there).otherwise(told)
    spread = frame.select(
        functions.explode(outcome).alias("o"),
        functions.struct(*RAW_COLUMNS).alias("raw"),
        _CERTAIN,
    )
    rejected = functions.col("o.reason").isNotNull()
    return spread.select(
        *(f"o.{name}" for name, _ in _COLUMNS),
        *(functions.col(f"raw.{name}").alias(name) for name in ("channel", "position", "received")),
        functions.when(rejected, functions.col("raw")).alias("raw"),
        functions.col(_CERTAIN).alias("native"),
    )


def _doubts_of_results(plan: NativePlan, writer: ColumnWriter) -> list[Column]:
    from pyspark.sql import functions

    key, time = writer.column(plan.key), writer.column(plan.time)
    inside = (time > -FARTHEST_MS) & (time < FARTHEST_MS)
    longest = MAX_NAME - len(plan.concept) - 1
    fits = key.rlike(_PRINTABLE) & (functions.length(key) <= longest)
    found = [~functions.coalesce(each, functions.lit(False)) for each in (inside, fits)]
    for need in plan.needed:
        missing = writer.column(need.node).isNull()
        found.append(missing & writer.present(need.within) if need.within else missing)
    for given in plan.given:
        if given.needed:
            found.append(_lacks(given, writer))
        elif given.within:
            found.append(_lacks(given, writer) & writer.present(given.within))
    if not any(given.needed for given in plan.given):
        missing = [~_is_there(each, writer) for each in plan.given]
        found.append(reduce(lambda one, other: one & other, missing, functions.lit(True)))
    if plan.several:
        name = max((len(each.attribute) for each in plan.given), default=0) + 1
        found.append(functions.length("id") > MAX_NAME - name)
    return found


def _lacks(given: ReadingColumns, writer: ColumnWriter) -> Column:
    return _any([writer.column(part).isNull() for part in given.parts])


def _is_there(given: ReadingColumns, writer: ColumnWriter) -> Column:
    if given.within and not given.needed:
        return writer.present(given.within)
    return ~_lacks(given, writer)


def _reading(
    plan: NativePlan, given: ReadingColumns, writer: ColumnWriter, meanings: Meanings
) -> Column:
    """One reading as a struct; null where the attribute is not there."""
    from pyspark.sql import functions

    values = _values(plan, given, writer, meanings)
    fields = [
        values.get(name, functions.lit(None)).cast(kind).alias(name) for name, kind in _COLUMNS
    ]
    made = functions.struct(*fields)
    return made if given.needed else functions.when(_is_there(given, writer), made)


def _values(
    plan: NativePlan, given: ReadingColumns, writer: ColumnWriter, meanings: Meanings
) -> dict[str, Any]:
    """The columns of a reading; those that it does not name are null."""
    from pyspark.sql import functions

    source = functions.col("source")
    identity: Any = functions.col("id")
    if plan.several:
        identity = functions.concat(identity, functions.lit(f"/{given.attribute}"))
    own = functions.when(source.isin(*sorted(meanings.named())), source)
    values = {
        "time": writer.column(plan.time),
        "id": identity,
        "stream": functions.lit(given.stream),
        "source": own.otherwise(functions.lit(plan.source)),
        "key": writer.column(plan.key),
        "interpretation": functions.lit(plan.stamp),
    }
    parts = zip(given.columns, given.parts, strict=True)
    return values | {column: writer.column(part) for column, part in parts}


def _any(conditions: list[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions)


ENVELOPE = ("time", "id", "stream", "source", "key")
PLACE = ("channel", "position", "received")
REJECTION = ("interpretation", "reason", "message", "hint")


class MediationOutcomes(msgspec.Struct, frozen=True):
    """What became of raw events. `outcomes` has a row for each reading and each rejection; to use
    both, persist it or write it once, since each use does the work again. Its column `native` says
    whether columns alone were certain, or Python was asked.
    """

    outcomes: DataFrame
    streams: dict[str, AttributeType]
    """The types of all streams of the site."""

    @property
    def readings(self) -> DataFrame:
        """Readings of all streams: five columns of every one, then `<stream>.<part>`, as policies
        are executed on them; then where the raw event lies and its interpretation.
        """
        from pyspark.sql import functions

        parts = [
            functions.when(functions.col("stream") == stream, functions.col(column)).alias(
                f"{stream}.{part}"
            )
            for stream, kind in sorted(self.streams.items())
            for part, column in part_columns(kind).items()
        ]
        return self._accepted().select(*ENVELOPE, *parts, *PLACE, "interpretation")

    def stream(self, name: str) -> DataFrame:
        """Readings of one stream, its parts under their own names, as the silver lake has them;
        raises UnknownName.
        """
        from pyspark.sql import functions

        if name not in self.streams:
            raise UnknownName("stream", name, list(self.streams), code="stream.unknown")
        kind = self.streams[name]
        columns = part_columns(kind)
        parts = [functions.col(columns[part]).alias(part) for part in PARTS[kind]]
        chosen = self._accepted().where(functions.col("stream") == name)
        return chosen.select(*ENVELOPE, *parts, *PLACE, "interpretation")

    @property
    def rejected(self) -> DataFrame:
        """Raw events without a meaning, whole, and why, in the words of the quarantine."""
        from pyspark.sql import functions

        chosen = self.outcomes.where(functions.col("reason").isNotNull())
        return chosen.select(*(f"raw.{name}" for name in RAW_COLUMNS), *REJECTION)

    def _accepted(self) -> DataFrame:
        from pyspark.sql import functions

        return self.outcomes.where(functions.col("reason").isNull())


def mediated(
    spark: SparkSession,
    rows: DataFrame,
    meanings: Meanings,
    *,
    sources: Iterable[str] | None = None,
    native: bool = True,
) -> MediationOutcomes:
    """What the rows of raw channels mean; batch or stream, lazily.

    Args:
        rows: as the source `rapport` and bronze have them; other channels are left out.
        sources: only these; None: all whose rows are there, also ones that nobody bound.
        native: False: everything by the generated Python, for comparison.

    Raises Unsupported for a source whose events mean what other sources say at the time, and in a
    stream for one whose events depend on earlier ones; in a batch these are taken in the order of
    their positions, by one task. Raises UnknownName for a source that the site does not have.
    """
    from pyspark.sql import functions

    _check_columns(rows)
    ways = ways_of(meanings, sources, native=native)
    _check_possible(ways, is_stream=rows.isStreaming)
    found: list[DataFrame] = []
    for way in ways:
        own = rows.where(functions.col("channel") == RAW_PREFIX + way.source)
        if way.plan is not None:
            found.append(native_outcomes(spark, own, way.plan, meanings))
        elif way.kind == "in order":
            ordered = own.coalesce(1).sortWithinPartitions("position")
            found.append(_by_rows(ordered, ByRows(meanings, in_order=True)))
    others = _others(rows, ways, sources)
    if others is not None or not found:
        nothing = rows.where(functions.lit(False))
        found.append(_by_rows(nothing if others is None else others, ByRows(meanings)))
    outcomes = reduce(lambda one, other: one.unionByName(other), found)
    return MediationOutcomes(outcomes, dict(meanings.ontology.streams()))


def _others(
    rows: DataFrame, ways: Sequence[SourceWay], sources: Iterable[str] | None
) -> DataFrame | None:
    """What goes through Python in any order; None when that is nothing."""
    from pyspark.sql import functions

    named = functions.col("channel")
    if sources is None:
        raw = rows.where(named.startswith(RAW_PREFIX))
        done = [RAW_PREFIX + way.source for way in ways if way.kind != "rows"]
        return raw.where(~named.isin(*done)) if done else raw
    rest = [RAW_PREFIX + way.source for way in ways if way.kind == "rows"]
    return rows.where(named.isin(*rest)) if rest else None


def outcomes_schema() -> str:
    """What `ByRows.stream` gives, in Spark's words: outcomes and the raw event of each."""
    raw = re.sub(r"(\w+) (BIGINT|STRING|BINARY|MAP)", r"\1: \2", CHANNEL_ROWS)
    return f"{OUTCOME_ROWS}, raw STRUCT<{raw}>"


def _by_rows(rows: DataFrame, by_rows: ByRows) -> DataFrame:
    return laid_out(rows.select(*RAW_COLUMNS).mapInArrow(by_rows.stream, outcomes_schema()))


def laid_out(made: DataFrame) -> DataFrame:
    """Outcomes with the place of the raw event; the whole of it only where it was rejected."""
    from pyspark.sql import functions

    raw = functions.col("raw")
    return made.select(
        *ENVELOPE,
        *PART_COLUMNS,
        *REJECTION,
        *(raw[name].alias(name) for name in PLACE),
        functions.when(functions.col("reason").isNotNull(), raw).alias("raw"),
        functions.lit(False).alias("native"),
    )


def _check_columns(rows: DataFrame) -> None:
    missing = [name for name in RAW_COLUMNS if name not in rows.columns]
    if missing:
        raise InvalidInput(
            f"rows of channels have a column {missing[0]!r}",
            code="pipeline.not_channel_rows",
            hint='read them by spark.read.format("rapport"), or from lake/bronze',
        )


def _check_possible(ways: Iterable[SourceWay], *, is_stream: bool) -> None:
    for way in ways:
        if way.kind == "refused":
            raise Unsupported(
                f"mediating {way.source!r}: {way.why},",
                "Spark",
                hint="let the node mediate it, or name the other sources: sources = [...]",
            )
        if is_stream and way.kind == "in order":
            raise Unsupported(
                f"mediating {way.source!r} in a stream: {way.why},",
                "Spark",
                hint="mediate its history in a batch, or let the node mediate it",
            )
