"""Raw events of channels as readings, by the interpretations that the node uses. [ME-14, PI-4]

Where an interpretation can be said as column operations, Spark does it by itself; rows it is not
certain about, and all rows of other sources, go through the generated Python in Arrow batches. So
readings and reasons are the node's own, and no row can end a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.pipeline.datasource.rows import CHANNEL_ROWS
from rapport.pipeline.mediating.by_rows import ByRows
from rapport.pipeline.mediating.meanings import Meanings
from rapport.pipeline.mediating.native import native_outcomes
from rapport.pipeline.mediating.outcome_rows import OUTCOME_ROWS, PART_COLUMNS, RAW_COLUMNS
from rapport.pipeline.mediating.outcomes import part_columns
from rapport.pipeline.mediating.planning import Ways, ways_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENVELOPE = ("time", "id", "stream", "source", "key")
PLACE = ("channel", "position", "received")
REJECTION = ("interpretation", "reason", "message", "hint")


class Mediated(msgspec.Struct, frozen=True):
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
) -> Mediated:
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
    named = functions.col("channel")
    found = [
        native_outcomes(spark, rows.where(named == RAW_PREFIX + plan.source), plan, meanings)
        for plan in ways.native
    ]
    for source in ways.in_order:
        chosen = rows.where(named == RAW_PREFIX + source)
        ordered = chosen.coalesce(1).sortWithinPartitions("position")
        found.append(_by_rows(ordered, ByRows(meanings, in_order=True)))
    others = _others(rows, ways, sources)
    if others is not None:
        found.append(_by_rows(others, ByRows(meanings)))
    outcomes = reduce(lambda one, other: one.unionByName(other), found)
    return Mediated(outcomes, dict(meanings.ontology.streams()))


def _others(rows: DataFrame, ways: Ways, sources: Iterable[str] | None) -> DataFrame | None:
    """What goes through Python in any order; None when that is nothing."""
    from pyspark.sql import functions

    named = functions.col("channel")
    done = [plan.source for plan in ways.native] + list(ways.in_order) + list(ways.into)
    if sources is None:
        raw = rows.where(named.startswith(RAW_PREFIX))
        names = [RAW_PREFIX + each for each in done]
        return raw.where(~named.isin(*names)) if names else raw
    rest = [RAW_PREFIX + each for each in ways.by_rows]
    if not rest and (ways.native or ways.in_order):
        return None
    return rows.where(named.isin(*rest))


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


def _check_possible(ways: Ways, *, is_stream: bool) -> None:
    for source, why in ways.refused.items():
        raise Unsupported(
            f"mediating {source!r}: {why},",
            "Spark",
            hint="let the node mediate it, or name the other sources: sources = [...]",
        )
    if is_stream and ways.in_order:
        source = ways.in_order[0]
        raise Unsupported(
            f"mediating {source!r} in a stream: {ways.why[source]},",
            "Spark",
            hint="mediate its history in a batch, or let the node mediate it",
        )
