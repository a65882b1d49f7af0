"""What becomes of readings: repeated, late, set aside, corrected; decided by Spark joins.
[LK-4, ME-16, PI-3]

Few events are repeated or judged, so nothing wide is shuffled for them. A narrow pass over 64-bit
hashes finds the events that may be concerned (`suspect_positions`); only these are decoded, and
exact joins over them and the matching rows of silver give `Marks`: by position for rows that are
about to be written, by file and position for rows that silver has.

The rules, each a function of the events alone, however they are split into runs:
- Of events with one identity (event_source, id) the first reading counts, the others are dropped.
  Silver is searched on the days of the new events, one before and one after: an event that is
  repeated with a time more than a day away is another reading.
- `late` names a reading by time and id, as the policy engine reports it; `aside` by source and id,
  and removes it. Either applies to readings received up to an hour after the verdict.
- A reading that corrects another replaces it and its former corrections: `corrected by` names the
  next one. Corrected wins over late.
- An event is in `silver/quarantined` once for each reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rapport.core.errors import Problem
from rapport.core.release import CORRECTS, REEVALUATION
from rapport.lake.bronze import DAY_MS, FIRST_MS, LAST_MS
from rapport.pipeline.lake.silver_rows import (
    CHECK_SCHEMA,
    CORRECTED,
    COUNTED,
    FINDING_SCHEMA,
    HELD_SCHEMA,
    LATE,
    LATE_REASON,
    check_events,
    detection_rows,
    quarantine_rows,
)
from rapport.pipeline.lake.spark_tables import spark_schema
from rapport.policy.ontology import Ontology

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SLACK_MS = 3_600_000
"""A verdict applies to readings received up to so much later: the channels' clocks may be set."""
ASIDE, REPEATED = "aside", "repeated"

FOUND_COLUMNS = (
    "time TIMESTAMP, time_ms BIGINT, id STRING, event_source STRING, corrects STRING, "
    "position BIGINT, received TIMESTAMP, status STRING"
)
"""The columns of silver by which rows are found, of whatever stream."""
HELD_COLUMNS = "source STRING, id STRING, reason STRING"


class Marks(msgspec.Struct, frozen=True):
    """Decisions. `rows`: file (null for new ones), position, mark, reason; None without any. A mark
    is `repeated` or `aside` (the row goes), `late` or `corrected`. `held`: rows of the channel
    quarantine that `silver/quarantined` does not have."""

    rows: DataFrame | None
    held: DataFrame | None


# --- channels of bronze ---------------------------------------------------------------------------


def event_columns(events: DataFrame, *more: Column) -> DataFrame:
    """Rows of bronze as the decoding functions need them."""
    from pyspark.sql import functions as F

    return events.select(
        "position",
        "received",
        event_time().alias("time_ms"),
        "source",
        "id",
        "type",
        F.element_at("headers", "rawchannel").alias("rawchannel"),
        F.element_at("headers", CORRECTS).alias("corrects"),
        F.coalesce(F.col("data").cast("binary"), F.col("data_bytes")).alias("data"),
        *more,
    )


def event_time() -> Column:
    """Event time in milliseconds, of rows of bronze or silver."""
    from pyspark.sql import functions as F

    return F.coalesce(F.unix_millis("time"), F.col("time_ms"))


def utc_day(milliseconds: Column) -> Column:
    """The day of a time, whatever the session's zone; null outside of the years 1 to 9999."""
    from pyspark.sql import functions as F

    day = F.date_from_unix_date(F.floor(milliseconds / DAY_MS).cast("int"))
    return F.when(milliseconds.between(FIRST_MS, LAST_MS), day)


def decode_findings(events: DataFrame) -> DataFrame:
    """The channel detections: rows of `gold/detected`, and late readings."""
    from pyspark.sql import functions as F

    decode = _each_batch(detection_rows)
    release = F.element_at("headers", REEVALUATION).alias(REEVALUATION)
    return event_columns(events, release).mapInArrow(decode, spark_schema(FINDING_SCHEMA))


def decode_held(events: DataFrame) -> DataFrame:
    """The channel quarantine: rows of `silver/quarantined`."""
    decode = _each_batch(quarantine_rows)
    return event_columns(events).mapInArrow(decode, spark_schema(HELD_SCHEMA))


def late_verdicts(findings: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return findings.where(F.col("kind") == LATE).select(
        utc_day(F.unix_millis("received")).alias("day"),
        F.lit(LATE).alias("kind"),
        event_time().alias("time_ms"),
        F.lit(None).cast("string").alias("source"),
        "id",
        "received",
    )


def aside_verdicts(held: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return held.where("aside").select(
        utc_day(F.unix_millis("received")).alias("day"),
        F.lit(ASIDE).alias("kind"),
        F.col("about_ms").alias("time_ms"),
        "source",
        "id",
        "received",
    )


def _each_batch(
    decode: Callable[[pa.RecordBatch], pa.Table],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from decode(batch).to_batches()

    return run


# --- suspects -------------------------------------------------------------------------------------


def repeated_hashes(
    events: DataFrame, held: DataFrame | None, known: Iterable[DataFrame]
) -> DataFrame:
    """Hashes of identities that occur more than once among new events, or are in `known` tables
    (event_source or source, id); other identities with the same hash may be among them.
    """
    from pyspark.sql import functions as F

    new = events.select(F.xxhash64("source", "id").alias("hash"))
    if held is not None:
        new = new.unionAll(held.select(F.xxhash64("source", "id").alias("hash")))
    found = new.groupBy("hash").count().where("count > 1").select("hash")
    for table in known:
        source = "event_source" if "event_source" in table.columns else "source"
        there = table.select(F.xxhash64(source, "id").alias("hash"))
        found = found.unionAll(there.join(new, "hash", "left_semi"))
    return found.distinct()


def corrected_groups(events: DataFrame) -> DataFrame:
    """Source and id of the readings that new events correct."""
    from pyspark.sql import functions as F

    new = events.where("corrects IS NOT NULL")
    return new.select("source", F.col("corrects").alias("original")).distinct()


def suspect_positions(
    events: DataFrame,
    repeated: DataFrame | None,
    verdicts: DataFrame | None,
    groups: DataFrame | None,
) -> DataFrame | None:
    """Positions of new events that need a decision; None without any. `groups`: source and original
    of readings that are corrected now."""
    from pyspark.sql import functions as F

    parts: list[DataFrame] = []
    if repeated is not None:
        hashed = events.withColumn("hash", F.xxhash64("source", "id"))
        parts.append(hashed.join(repeated, "hash", "left_semi").select("position"))
    if verdicts is not None:
        late = verdicts.where(F.col("kind") == LATE).select("time_ms", "id")
        aside = verdicts.where(F.col("kind") == ASIDE).select("source", "id")
        parts.append(events.join(late, ["time_ms", "id"], "left_semi").select("position"))
        parts.append(events.join(aside, ["source", "id"], "left_semi").select("position"))
    if groups is not None:
        grouped = events.withColumn("original", _original("corrects", "id"))
        parts.append(grouped.join(groups, ["source", "original"], "left_semi").select("position"))
    if not parts:
        return None
    return _union(parts).distinct()


def checked_suspects(
    events: DataFrame, positions: DataFrame, ontology: Ontology, conflicts: Mapping[str, Problem]
) -> DataFrame:
    """The suspects, decoded: `reason` is null for readings."""
    from pyspark.sql import functions as F

    problems = dict(conflicts)

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from check_events(batch, ontology, problems)

    chosen = events.join(positions, "position", "left_semi")
    nothing = F.lit(None).cast("string")
    return (
        chosen.withColumn("status", nothing)
        .withColumn("reason", nothing)
        .mapInArrow(check, spark_schema(CHECK_SCHEMA))
    )


# --- decisions ------------------------------------------------------------------------------------


def decide(
    checked: DataFrame,
    verdicts: DataFrame | None,
    rows: DataFrame,
    held: DataFrame | None,
    held_before: DataFrame,
) -> Marks:
    """`checked`: the suspects among new events. `rows`: those of silver that have an id of a
    suspect, a verdict or a correction (`FOUND_COLUMNS`, `file`). `held`: what the node rejected
    now; `held_before`: rows of `silver/quarantined` that may be the same.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    readings = checked.where("reason IS NULL")
    known = rows.select(F.col("event_source").alias("source"), "id")
    order = Window.partitionBy("source", "id").orderBy("position")
    numbered = readings.withColumn("number", F.row_number().over(order))
    first = numbered.where("number = 1").join(known, ["source", "id"], "left_anti")
    kept = first.select(
        F.lit(None).cast("string").alias("file"),
        *("position", "source", "id", "corrects", "time_ms", "received"),
        F.lit(COUNTED).alias("status"),
    )
    members = kept.unionByName(
        rows.select(
            *("file", "position", F.col("event_source").alias("source"), "id", "corrects"),
            *(event_time().alias("time_ms"), "received", "status"),
        )
    )
    marked = _judged(_with_successors(members, kept), verdicts)
    again = readings.join(first.select("position"), "position", "left_anti")
    rejected, new_held = _quarantined(checked, held, held_before)
    repeated = again.select("position").unionAll(rejected)
    dropped = repeated.select(
        F.lit(None).cast("string").alias("file"),
        "position",
        F.lit(REPEATED).alias("mark"),
        F.lit("").alias("reason"),
    )
    return Marks(marked.unionAll(dropped), new_held)


def _with_successors(members: DataFrame, new: DataFrame) -> DataFrame:
    """Readings that a new correction is about get `successor`, the next one of their group."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    members = members.withColumn("original", _original("corrects", "id"))
    concerned = corrected_groups(new).withColumn("is_concerned", F.lit(True))
    members = members.join(concerned, ["source", "original"], "left")
    is_open = F.col("is_concerned") & (F.col("status") != CORRECTED)
    order = Window.partitionBy("source", "original", is_open).orderBy("position")
    return members.withColumn("successor", F.when(is_open, F.lead("id").over(order)))


def _judged(members: DataFrame, verdicts: DataFrame | None) -> DataFrame:
    """The members whose state changes, with mark and reason."""
    from pyspark.sql import functions as F

    is_late = is_aside = F.lit(False)
    if verdicts is not None:
        until = (F.unix_millis(F.max("received")) + SLACK_MS).alias
        late = verdicts.where(F.col("kind") == LATE).groupBy("time_ms", "id")
        aside = verdicts.where(F.col("kind") == ASIDE).groupBy("source", "id")
        members = members.join(late.agg(until("late_until")), ["time_ms", "id"], "left")
        members = members.join(aside.agg(until("aside_until")), ["source", "id"], "left")
        received = F.unix_millis("received")
        is_late = F.coalesce(received <= F.col("late_until"), F.lit(False))
        is_aside = F.coalesce(received <= F.col("aside_until"), F.lit(False))
    mark = (
        F.when(is_aside, ASIDE)
        .when(F.col("successor").isNotNull(), CORRECTED)
        .when(is_late & (F.col("status") == COUNTED), LATE)
    )
    reason = F.when(F.col("mark") == CORRECTED, F.concat(F.lit("corrected by "), "successor"))
    reason = reason.when(F.col("mark") == LATE, LATE_REASON).otherwise("")
    marked = members.withColumn("mark", mark).where("mark IS NOT NULL")
    return marked.select("file", "position", "mark", reason.alias("reason"))


def _quarantined(
    checked: DataFrame, held: DataFrame | None, before: DataFrame
) -> tuple[DataFrame, DataFrame | None]:
    """Positions of rejected events that are repeated, and the new rows of the channel quarantine:
    each identity once for each reason."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    names = ["source", "id", "reason"]
    rejected = checked.where("reason IS NOT NULL")
    all_rows = rejected.select(F.lit("events").alias("channel"), "position", *names)
    if held is not None:
        all_rows = all_rows.unionAll(held.select("channel", "position", *names))
    order = Window.partitionBy(*names).orderBy("position", "channel")
    first = all_rows.withColumn("number", F.row_number().over(order)).where("number = 1")
    first = first.join(before.select(*names), names, "left_anti").select("channel", "position")
    from_events = first.where("channel = 'events'").select("position")
    again = rejected.select("position").join(from_events, "position", "left_anti")
    if held is None:
        return again, None
    return again, held.join(first, ["channel", "position"], "left_semi")


def _original(corrects: str, id: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(corrects), F.col(id))


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    first, *rest = frames
    for frame in rest:
        first = first.unionAll(frame)
    return first
