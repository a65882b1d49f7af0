"""Silver: mediated readings, typed, each once, with what became of them; and `gold/detected`.
[LK-2, LK-4, LK-10, LK-11, PI-3, PI-10]

`update_silver` takes what bronze has beyond the last run: `events`, and from `detections` and
`quarantine` what the node found out about them. It is a Spark job without state in the driver.
Bronze is scanned, executors decode events and write the files of all streams in one pass; the few
events that are repeated, judged or corrected are decided by joins before (`silver_marks.py`). The
driver sees file names and counts.

A step is a range of positions of each channel. Each table gets it in one commit that carries these
positions (`Table.progress`); `silver/quarantined` is committed last and marks the step as done.
After a kill between two commits the next run repeats exactly this step for the other tables. Of two
runs at once one gets Conflict.

Units: the unit of a stream's values is in its table's schema. Bronze does not record the unit of an
event, so events after the position at which silver first sees the changed site have the new unit;
rows before are converted, in one commit with the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rapport.core.errors import Conflict, InvalidInput, Problem
from rapport.core.schema import PARTS
from rapport.lake.bronze import exported_position
from rapport.lake.places import BRONZE, DETECTED, GOLD, QUARANTINED, SILVER, Lake
from rapport.lake.table import NewFile, Table, TableFile
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.silver_marks import (
    ASIDE,
    FOUND_COLUMNS,
    HELD_COLUMNS,
    REPEATED,
    SLACK_MS,
    Marks,
    aside_verdicts,
    checked_suspects,
    corrected_groups,
    decide,
    decode_findings,
    decode_held,
    event_columns,
    late_verdicts,
    repeated_hashes,
    suspect_positions,
    utc_day,
)
from rapport.pipeline.lake.silver_rows import (
    CHECK_SCHEMA,
    CORRECTED,
    DETECTED_SCHEMA,
    LATE,
    QUARANTINED_SCHEMA,
    VERDICT_SCHEMA,
    decode_events,
    rows_by_type,
    stream_schema,
    stream_unit,
    type_conflict,
)
from rapport.pipeline.lake.spark_tables import (
    TABLE_FILES,
    TableFiles,
    collect_table_files,
    plan_text,
    read_files,
    spark_path,
    spark_schema,
    spark_type,
    write_rows,
)
from rapport.policy.ontology import Ontology
from rapport.units.quantities import converter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS, DETECTIONS, QUARANTINE = "events", "detections", "quarantine"
CHANNELS = (EVENTS, DETECTIONS, QUARANTINE)
VERDICTS = "verdicts"
ROWS_PER_STEP = 50_000_000
"""Positions of a channel per step: at most so much is repeated after a kill."""
_BROADCAST_ROWS = 100_000
_UNIT = "silver.unit"

Ranges = dict[str, tuple[int, int]]
"""Positions after one up to another of each channel."""
Progress = Callable[[int, int], None]
"""Positions taken, and how many there are to take."""


class SilverResult(msgspec.Struct, kw_only=True):
    """What a run did; `problems` are warnings for people."""

    readings: int = 0
    quarantined: int = 0
    detections: int = 0
    duplicates: int = 0
    late: int = 0
    corrected: int = 0
    set_aside: int = 0
    files: int = 0
    rewritten: int = 0
    """Files that were written again since the state of their rows changed."""
    steps: int = 0
    positions: dict[str, int] = {}
    problems: tuple[Problem, ...] = ()


class SilverDue(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would take: positions per channel."""

    positions: dict[str, int]


def update_silver(
    spark: SparkSession,
    lake: Lake | Path | str,
    ontology: Ontology,
    *,
    rows_per_step: int = ROWS_PER_STEP,
    rebuild: bool = False,
    progress: Progress | None = None,
    at_commit: Callable[[str], None] = lambda _table: None,
) -> SilverResult:
    """Takes what bronze has beyond the last run into silver and `gold/detected`, exactly once.

    `rebuild` makes silver anew from bronze, refused when bronze no longer has everything.
    `at_commit` is called before each commit with the table's name, and with "" after the last one
    of a step. Raises Conflict when another run commits meanwhile (`lake.concurrent_writer`: run it
    again), or for a unit whose values cannot be converted; Corrupt for a damaged file.
    """
    place = Lake.at(lake)
    place.refuse_former_format()
    with spark_errors("making silver"):
        if rebuild:
            _clear(spark, place)
        run = _Run(spark, place, ontology, at_commit)
        return run.run(rows_per_step, progress or (lambda _taken, _all: None))


def silver_due(lake: Lake | Path | str) -> SilverDue:
    """What `update_silver` would take now; changes nothing."""
    place, taken = Lake.at(lake), silver_positions(lake)
    ends = {name: exported_position(place, name) for name in CHANNELS}
    due = {name: end - taken.get(name, 0) for name, end in ends.items()}
    return SilverDue(positions={name: count for name, count in due.items() if count > 0})


def silver_positions(lake: Lake | Path | str) -> dict[str, int]:
    """The positions of bronze up to which silver has everything."""
    place = Lake.at(lake)
    return _taken(place.open(SILVER, QUARANTINED)) if place.has(SILVER, QUARANTINED) else {}


def explain_silver(spark: SparkSession, lake: Lake | Path | str, ontology: Ontology) -> str:
    """The physical plans of a run over all of bronze; runs nothing."""
    from pyspark.sql import functions as F

    place = Lake.at(lake)
    events = event_columns(_bronze(spark, place, EVENTS, 0, exported_position(place, EVENTS)))
    marks = spark.createDataFrame([], "file STRING, position BIGINT, mark STRING, reason STRING")
    marks = F.broadcast(marks)
    repeated = repeated_hashes(events, None, [])
    suspects = suspect_positions(events, repeated, None, None)
    assert suspects is not None
    checked = checked_suspects(events, suspects, ontology, {})
    writing = _decode_and_write(events, marks, place, ontology, {}, ())
    parts = [
        ("1. identities that occur more than once (no Python)", repeated),
        (
            "2. suspects are decoded before the joins decide about them\n"
            "   MapInArrow check: the policy engine's decoder (policy/readings.py) is the only\n"
            "   definition of a reading; it sees suspects alone",
            checked,
        ),
        (
            "3. all events are decoded and written\n"
            "   MapInArrow write: the same decoder over Arrow columns; Parquet files of all\n"
            "   streams are written in the same task, so that no row returns to the JVM; their\n"
            "   names are committed by delta-rs",
            writing,
        ),
    ]
    plans = ((title, plan_text(frame, "simple").strip()) for title, frame in parts)
    return "\n".join(f"{title}\n{plan}\n" for title, plan in plans)


# --- a run ----------------------------------------------------------------------------------------


class _Run:
    """Tables are opened once, so that a commit fails when another run came first."""

    def __init__(
        self, spark: SparkSession, lake: Lake, ontology: Ontology, at_commit: Callable[[str], None]
    ) -> None:
        self.spark, self.lake, self.ontology, self.at_commit = spark, lake, ontology, at_commit
        self.done = Table.ensure(
            lake.table_uri(SILVER, QUARANTINED),
            QUARANTINED_SCHEMA,
            partition_by=["day"],
            description="what could not be used",
            options=lake.options,
        )
        self.tables = {
            name: lake.open(SILVER, name) for name in lake.names(SILVER) if name != QUARANTINED
        }
        if lake.has(GOLD, DETECTED):
            self.tables[DETECTED] = lake.open(GOLD, DETECTED)
        self.taken = _taken(self.done)
        self.result = SilverResult()
        self.conflicts = self._find_conflicts()

    def run(self, rows_per_step: int, progress: Progress) -> SilverResult:
        self._convert_units()
        everything = sum(self._ends()[name] - self.taken[name] for name in CHANNELS)
        begun = sum(self.taken.values())
        ends = self._unfinished()
        while any(end > self.taken[name] for name, end in (ends or self._ends()).items()):
            if ends is None:
                ends = {
                    name: min(end, self.taken[name] + rows_per_step)
                    for name, end in self._ends().items()
                }
            _Step(self, {name: (self.taken[name], end) for name, end in ends.items()}).run()
            self.taken, ends = ends, None
            self.result.steps += 1
            progress(sum(self.taken.values()) - begun, everything)
        self.result.positions = dict(self.taken)
        return self.result

    def table(self, name: str) -> Table:
        """The table of a stream, of detections or of verdicts, made where there is none."""
        if name in self.tables:
            return self.tables[name]
        layer = GOLD if name == DETECTED else SILVER
        schema, description = self._schema(name)
        self.tables[name] = Table.ensure(
            self.lake.table_uri(layer, name),
            schema,
            partition_by=["day"],
            description=description,
            options=self.lake.options,
        )
        return self.tables[name]

    def _schema(self, name: str) -> tuple[pa.Schema, str]:
        if name == DETECTED:
            return DETECTED_SCHEMA, "what policies detected"
        if name == VERDICTS:
            return VERDICT_SCHEMA, "verdicts about readings that may come yet"
        return stream_schema(self.ontology, name), f"readings of {name}"

    def streams(self) -> dict[str, Table]:
        return {
            name: table for name, table in self.tables.items() if name not in (DETECTED, VERDICTS)
        }

    def _ends(self) -> dict[str, int]:
        return {
            name: max(exported_position(self.lake, name), self.taken[name]) for name in CHANNELS
        }

    def _unfinished(self) -> dict[str, int] | None:
        """The end of a step that only some tables have, since a run was killed; None without."""
        for table in self.tables.values():
            ends = _taken(table)
            if any(ends[name] > self.taken[name] for name in CHANNELS):
                return {name: max(ends[name], self.taken[name]) for name in CHANNELS}
        return None

    def _find_conflicts(self) -> dict[str, Problem]:
        """Streams of the site whose table has a column of another type; the others' tables get the
        columns that they lack."""
        found: dict[str, Problem] = {}
        for stream in self.ontology.streams().keys() & self.tables.keys():
            schema, has = stream_schema(self.ontology, stream), self.tables[stream].schema
            for field in schema:
                known = has.field(field.name).type if field.name in has.names else field.type
                if spark_type(known) != spark_type(field.type):
                    found[stream] = type_conflict(stream, field.name, str(field.type), str(known))
        return found

    def _convert_units(self) -> None:
        """Rows of tables whose unit is not that of the site are converted; then tables get the
        schema of today."""
        for stream in sorted(self.ontology.streams().keys() & self.tables.keys()):
            if stream in self.conflicts:
                continue
            table, unit = self.tables[stream], stream_unit(self.ontology, stream)
            parts = [
                one for one in PARTS[self.ontology.streams()[stream]] if one in table.schema.names
            ]
            before = next((table.unit(part) for part in parts if table.unit(part)), "")
            if before and unit and before != unit:
                self._convert(stream, table, parts, before, unit)
            schema = stream_schema(self.ontology, stream)
            self.tables[stream] = Table.ensure(table.uri, schema, options=self.lake.options)

    def _convert(
        self, stream: str, table: Table, parts: Sequence[str], before: str, unit: str
    ) -> None:
        from pyspark.sql import functions as F

        try:
            conversion = converter(before, unit)
        except InvalidInput as error:
            raise Conflict(
                f"{stream} was in {before} and is in {unit} now: {error.message}",
                code="lake.unit_conflict",
                hint="give the attribute another name; or make silver again: rapport pipeline "
                "silver --rebuild",
            ) from None
        rows = read_files(self.spark, table, [file.uri for file in table.files()])
        for part in parts:
            value = F.col(part) * conversion.multiply + conversion.add
            rows = rows.withColumn(part, value / conversion.divide)
        position = self.taken[EVENTS]
        change = f"{before} to {unit} after position {position}"
        new = write_rows(rows, table, self.lake)
        self.at_commit(stream)
        table.rewrite(
            new,
            _with_unit(table.schema, parts, unit, change),
            progress={_UNIT: (table.progress(_UNIT) or 0) + 1},
            notes={"rapport.unit": f"{stream}: {change}"},
        )
        self.result.rewritten += len(new)
        self.result.problems += (
            Problem(
                severity="warning",
                code="lake.unit_changed",
                message=f"{stream}: rows up to position {position} were converted from {before} "
                f"to {unit}; events after it count as {unit}",
                hint="bronze does not record units: run silver before a unit is changed",
            ),
        )


def _with_unit(schema: pa.Schema, parts: Sequence[str], unit: str, change: str) -> pa.Schema:
    fields = []
    for field in schema:
        if field.name in parts:
            notes = dict(field.metadata or {})
            changes = [notes[b"unit_changes"].decode()] if b"unit_changes" in notes else []
            notes[b"unit"] = unit.encode()
            notes[b"unit_changes"] = "; ".join([*changes, change]).encode()
            field = field.with_metadata(notes)
        fields.append(field)
    return pa.schema(fields)


# --- a step ---------------------------------------------------------------------------------------


class _Step:
    """A range of positions of each channel becomes rows; each table gets them in one commit."""

    def __init__(self, run: _Run, ranges: Ranges) -> None:
        self._run, self._spark, self._lake, self._ranges = run, run.spark, run.lake, ranges
        self._new: dict[str, list[NewFile]] = {}
        self._removed: dict[str, list[TableFile]] = {}
        self._newest_ms: int | None = None

    def run(self) -> None:
        self._prepare()
        self._commit()

    def _prepare(self) -> None:
        events = self._channel(EVENTS)
        found = self._channel(DETECTIONS)
        held = self._channel(QUARANTINE)
        findings = None if found is None else _computed(decode_findings(found))
        held = None if held is None else _computed(decode_held(held))
        if findings is not None:
            self._write_detections(findings)
        marks = self._decide(events, findings, held)
        if events is not None:
            self._write_events(event_columns(events), marks)
        if marks is not None:
            self._rewrite(marks)
            if marks.held is not None and held is not None:
                new = write_rows(marks.held.drop("aside", "about_ms"), self._run.done, self._lake)
                self._add(QUARANTINED, new)
                self._run.result.duplicates += held.count() - _rows(new)

    # --- deciding ---

    def _decide(
        self, events: DataFrame | None, findings: DataFrame | None, held: DataFrame | None
    ) -> Marks | None:
        """None when nothing is repeated, judged or corrected."""
        spark, result = self._spark, self._run.result
        rows = event_columns(events) if events is not None else None
        days, arrived, has_corrections = self._profile(events)
        fresh = self._fresh_verdicts(findings, held)
        verdict_days = _days_of(fresh, "time_ms") if fresh is not None else set()
        held_days = _days_of(held, "unix_millis(received)") if held is not None else set()
        held_before = self._held_before(_around(arrived | held_days))
        near = self._stream_files(_around(days))
        suspects = None
        if rows is not None:
            known = [frame for frame in (self._identities(near), held_before) if frame is not None]
            repeated = _few(repeated_hashes(rows, held, known))
            verdicts = self._verdicts(fresh)
            groups = _few(corrected_groups(rows)) if has_corrections else None
            suspects = suspect_positions(rows, repeated, verdicts, groups)
            suspects = None if suspects is None else _few(suspects)
        else:
            verdicts = fresh
        if suspects is None and fresh is None and held is None:
            return None
        if rows is None or suspects is None:
            checked = spark.createDataFrame([], spark_schema(CHECK_SCHEMA))
        else:
            ontology, conflicts = self._run.ontology, self._run.conflicts
            checked = _computed(checked_suspects(rows, suspects, ontology, conflicts))
        found = self._found(checked, fresh, {*near, *self._stream_files(verdict_days)})
        if held_before is None:
            held_before = spark.createDataFrame([], HELD_COLUMNS)
        marks = decide(checked, verdicts, found, held, held_before)
        marks = Marks(_few(marks.rows), marks.held)
        if marks.rows is None:
            return marks
        counts = {row["mark"]: row["count"] for row in marks.rows.groupBy("mark").count().collect()}
        result.duplicates += counts.get(REPEATED, 0)
        result.late += counts.get(LATE, 0)
        result.corrected += counts.get(CORRECTED, 0)
        result.set_aside += counts.get(ASIDE, 0)
        return marks

    def _profile(self, events: DataFrame | None) -> tuple[set[date | None], set[date | None], bool]:
        """Days of event time and of arrival, and whether there are corrections; a narrow scan."""
        from pyspark.sql import functions as F

        if events is None:
            return set(), set(), False
        rows = (
            events.groupBy(
                utc_day(F.unix_millis("time")).alias("day"),
                utc_day(F.unix_millis("received")).alias("arrived"),
            )
            .agg(
                F.count(F.element_at("headers", "corrects")).alias("corrections"),
                F.unix_millis(F.max("received")).alias("newest"),
            )
            .collect()
        )
        self._newest_ms = max((row["newest"] for row in rows), default=None)
        days, arrived = {row["day"] for row in rows}, {row["arrived"] for row in rows}
        return days, arrived, any(row["corrections"] for row in rows)

    def _fresh_verdicts(
        self, findings: DataFrame | None, held: DataFrame | None
    ) -> DataFrame | None:
        """Verdicts of this step; written for readings that come later."""
        parts = [] if findings is None else [late_verdicts(findings)]
        parts += [] if held is None else [aside_verdicts(held)]
        if not parts:
            return None
        verdicts = parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])
        few = _few(verdicts)
        if few is None:
            return None
        self._add(VERDICTS, write_rows(few, self._run.table(VERDICTS), self._lake))
        return few

    def _verdicts(self, fresh: DataFrame | None) -> DataFrame | None:
        """All verdicts that new events may meet."""
        table = self._run.tables.get(VERDICTS)
        files = [] if table is None else [file.uri for file in table.files()]
        if table is None or not files:
            return fresh
        waiting = read_files(self._spark, table, files).select(*VERDICT_SCHEMA.names)
        return _few(waiting if fresh is None else waiting.unionAll(fresh))

    def _found(
        self, checked: DataFrame, fresh: DataFrame | None, files: Collection[str]
    ) -> DataFrame:
        """Rows of silver that a decision may be about: in `files`, and, where a correction's former
        reading is not there, in all others."""
        from pyspark.sql import functions as F

        wanted = checked.select("id").unionAll(checked.select("corrects")).toDF("id")
        if fresh is not None:
            wanted = wanted.unionAll(fresh.select("id"))
        wanted = _few(wanted.where("id IS NOT NULL").distinct())
        if wanted is None:
            return self._rows_of(())
        found = _computed(self._matching(files, wanted))
        groups = corrected_groups(checked.where("reason IS NULL"))
        standing = found.where(F.col("status") != CORRECTED).select(
            F.col("event_source").alias("source"), F.coalesce("corrects", "id").alias("original")
        )
        others = self._stream_files(None) - set(files)
        if not others:
            return found
        missing = _few(groups.join(standing, ["source", "original"], "left_anti"))
        if missing is None:
            return found
        far = self._matching(others, missing.select(F.col("original").alias("id")))
        return _computed(found.unionAll(far))

    def _matching(self, files: Collection[str], ids: DataFrame) -> DataFrame:
        """Rows with one of the ids, or that correct one; without those of this step."""
        from pyspark.sql import functions as F

        rows = self._rows_of(files).where(F.col("position") <= self._ranges[EVENTS][0])
        by_id = rows.join(ids, "id", "left_semi").select(*rows.columns)
        originals = ids.toDF("corrects")
        by_original = rows.where("corrects IS NOT NULL").join(originals, "corrects", "left_semi")
        both = by_id.unionByName(by_original)
        return both.dropDuplicates(["file", "position"])

    def _identities(self, files: Collection[str]) -> DataFrame | None:
        from pyspark.sql import functions as F

        if not files:
            return None
        rows = self._rows_of(files).where(F.col("position") <= self._ranges[EVENTS][0])
        return rows.select("event_source", "id")

    def _rows_of(self, files: Collection[str]) -> DataFrame:
        """Rows of files of any streams, one scan; `file` is the name of the file."""
        from pyspark.sql import functions as F

        if not files:
            return self._spark.createDataFrame([], f"{FOUND_COLUMNS}, file STRING")
        reader = self._spark.read.schema(FOUND_COLUMNS).option("recursiveFileLookup", "true")
        rows = reader.parquet(*map(spark_path, sorted(files)))
        return rows.select("*", F.col("_metadata.file_name").alias("file"))

    def _stream_files(self, days: Collection[date | None] | None) -> set[str]:
        """URIs of the files of all streams on these days; None is all."""
        return {
            file.uri
            for table in self._run.streams().values()
            for file in table.files()
            if days is None or file.partition["day"] in days
        }

    def _held_before(self, days: Collection[date | None]) -> DataFrame | None:
        files = [file.uri for file in self._run.done.files() if file.partition["day"] in days]
        if not files:
            return None
        return read_files(self._spark, self._run.done, files).select("source", "id", "reason")

    # --- writing ---

    def _channel(self, name: str) -> DataFrame | None:
        """New rows of a channel; None without any file that may hold some."""
        after, upto = self._ranges[name]
        return _bronze(self._spark, self._lake, name, after, upto) if upto > after else None

    def _write_events(self, events: DataFrame, marks: Marks | None) -> None:
        has_step = [name for name, table in self._run.streams().items() if self._has_step(table)]
        rows = _decode_and_write(
            events,
            None if marks is None else marks.rows,
            self._lake,
            self._run.ontology,
            self._run.conflicts,
            has_step,
        )
        for name, new in collect_table_files(rows).items():
            self._add(name, new)

    def _write_detections(self, findings: DataFrame) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        rows = findings.where(F.col("kind") != LATE)
        total = rows.count()
        if not total or self._has_step(self._run.table(DETECTED)):
            return
        order = Window.partitionBy("id").orderBy("position")
        first = rows.withColumn("number", F.row_number().over(order)).where("number = 1")
        table = self._run.table(DETECTED)
        days = _around(_days_of(rows, "unix_millis(time)"))
        files = [file.uri for file in table.files() if file.partition["day"] in days]
        if files:
            known = read_files(self._spark, table, files).select("id")
            first = first.join(known, "id", "left_anti")
        new = write_rows(first.drop("number"), table, self._lake)
        self._add(DETECTED, new)
        self._run.result.duplicates += total - _rows(new)

    def _rewrite(self, marks: Marks) -> None:
        """Writes the files of silver again that hold marked rows, without the rows that go."""
        from pyspark.sql import functions as F

        if marks.rows is None:
            return
        marked = marks.rows.where("file IS NOT NULL")
        names = {row["file"] for row in marked.select("file").distinct().collect()}
        if not names:
            return
        changes = marked.select("position", "mark", F.col("reason").alias("why"))
        for name, table in self._run.streams().items():
            files = [file for file in table.files() if file.path.rpartition("/")[2] in names]
            if not files or self._has_step(table):
                continue
            rows = read_files(self._spark, table, [file.uri for file in files])
            rows = rows.join(changes, "position", "left").where(
                f"mark IS NULL OR mark <> '{ASIDE}'"
            )
            rows = rows.withColumn("status", F.coalesce("mark", "status"))
            rows = rows.withColumn("reason", F.coalesce("why", "reason"))
            new = write_rows(rows, table, self._lake)
            self._new.setdefault(name, []).extend(new)
            self._removed[name] = files
            self._run.result.rewritten += len(files)

    def _add(self, name: str, new: Sequence[NewFile]) -> None:
        self._new.setdefault(name, []).extend(new)
        result, rows = self._run.result, _rows(new)
        if name == QUARANTINED:
            result.quarantined += rows
        elif name == DETECTED:
            result.detections += rows
        elif name != VERDICTS:
            result.readings += rows
        if name != VERDICTS:
            result.files += len(new)

    # --- committing ---

    def _commit(self) -> None:
        self._drop_old_verdicts()
        ends = {_writer(name): end for name, (_after, end) in self._ranges.items()}
        for name in sorted(self._new.keys() | self._removed.keys()):
            if name == QUARANTINED:
                continue
            table = self._run.table(name)
            if self._has_step(table):
                continue  # before a kill
            new, removed = self._new.get(name, []), self._removed.get(name, [])
            if new or removed:
                self._run.at_commit(name)
                table.commit(new, removed=removed, progress=ends)
        self._run.at_commit(QUARANTINED)
        starts = {_writer(name): after for name, (after, _end) in self._ranges.items()}
        self._run.done.commit(self._new.get(QUARANTINED, []), progress=ends, after=starts)
        self._run.at_commit("")

    def _drop_old_verdicts(self) -> None:
        """Verdicts whose readings cannot come any more go, by days."""
        table = self._run.tables.get(VERDICTS)
        if table is None or self._newest_ms is None:
            return
        last = date(1970, 1, 1) + timedelta(milliseconds=self._newest_ms - SLACK_MS)
        old = [file for file in table.files() if file.partition["day"] < last]
        if old:
            self._removed[VERDICTS] = old

    def _has_step(self, table: Table) -> bool:
        """Whether a run that was killed has committed this step to the table."""
        moved = {name: end for name, (after, end) in self._ranges.items() if end > after}
        ends = _taken(table)
        return all(ends[name] >= end for name, end in moved.items())


# --- frames ---------------------------------------------------------------------------------------


def _bronze(spark: SparkSession, lake: Lake, channel: str, after: int, upto: int) -> DataFrame:
    from pyspark.sql import functions as F

    table = lake.open(BRONZE, channel)
    files = table.files(position=(after + 1, upto))
    rows = read_files(spark, table, [file.uri for file in files])
    return rows.where((F.col("position") > after) & (F.col("position") <= upto))


def _decode_and_write(
    events: DataFrame,
    marks: DataFrame | None,
    lake: Lake,
    ontology: Ontology,
    conflicts: Mapping[str, Problem],
    skipped: Iterable[str],
) -> DataFrame:
    """Rows of `TABLE_FILES`: executors decode events and write the files of all streams.
    `skipped` are streams whose table has the events already."""
    from pyspark.sql import functions as F

    uris = {name: lake.table_uri(SILVER, name) for name in (*ontology.streams(), QUARANTINED)}
    options, problems, left_out = dict(lake.options), dict(conflicts), frozenset(skipped)
    if marks is None:
        nothing = F.lit(None).cast("string")
        rows = events.withColumn("status", nothing).withColumn("reason", nothing)
    else:
        new = marks.where("file IS NULL").select(
            "position", F.col("mark").alias("status"), "reason"
        )
        goes = F.col("status").isin(REPEATED, ASIDE)
        rows = events.join(new, "position", "left").where(F.col("status").isNull() | ~goes)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = TableFiles(uris, options)
        for batch in batches:
            for stream, own in rows_by_type(batch):
                decoded = decode_events(own, stream, ontology, problems)
                if stream not in left_out:
                    yield from files.add(stream, decoded.readings)
                yield from files.add(QUARANTINED, decoded.rejected)
        yield from files.finish()

    return rows.mapInArrow(write, TABLE_FILES)


def _computed(frame: DataFrame) -> DataFrame:
    """A small frame that several joins use, computed once: its rows stay with the executors, and
    plans over it do not contain its own."""
    return frame.localCheckpoint()


def _few(frame: DataFrame) -> DataFrame | None:
    """The same for what joins with all events: broadcast unless it is large; None without rows."""
    from pyspark.sql import functions as F

    rows = _computed(frame)
    count = rows.count()
    return None if not count else F.broadcast(rows) if count <= _BROADCAST_ROWS else rows


def _days_of(frame: DataFrame, milliseconds: str) -> set[date | None]:
    from pyspark.sql import functions as F

    rows = frame.select(utc_day(F.expr(milliseconds)).alias("day")).distinct().collect()
    return {row["day"] for row in rows}


def _around(days: Iterable[date | None]) -> set[date | None]:
    """The days, one before and one after."""
    found: set[date | None] = set()
    for day in days:
        found.add(day)
        if day is not None:
            number = day.toordinal()
            near = (number - 1, number + 1)
            found |= {date.fromordinal(one) for one in near if 1 <= one <= date.max.toordinal()}
    return found


def _rows(files: Sequence[NewFile]) -> int:
    return sum(file.rows for file in files)


def _writer(channel: str) -> str:
    return f"silver.{channel}"


def _taken(table: Table) -> dict[str, int]:
    return {name: table.progress(_writer(name)) or 0 for name in CHANNELS}


# --- making it anew -------------------------------------------------------------------------------


def _clear(spark: SparkSession, lake: Lake) -> None:
    """Empties silver and `gold/detected`; refused when bronze has less than they were made of.

    The table that marks steps goes first: after a kill the others still have their rows, and the
    next run goes on with them.
    """
    if not lake.has(SILVER, QUARANTINED):
        return
    done = lake.open(SILVER, QUARANTINED)
    names = [name for name in lake.names(SILVER) if name != QUARANTINED]
    tables = [done, *(lake.open(SILVER, name) for name in names)]
    _refuse_less(spark, lake, tables)
    if lake.has(GOLD, DETECTED):
        tables.append(lake.open(GOLD, DETECTED))
    for table in tables:
        table.commit([], removed=table.files(), progress={_writer(name): 0 for name in CHANNELS})


def _refuse_less(spark: SparkSession, lake: Lake, tables: Sequence[Table]) -> None:
    """Reads bronze to its end, so that a missing or damaged file shows before anything goes."""
    from pyspark.sql import functions as F

    for channel in CHANNELS:
        if not lake.has(BRONZE, channel):
            continue
        rows = _bronze(spark, lake, channel, 0, exported_position(lake, channel))
        first = rows.agg(F.min("position"), F.max(F.length("data"))).collect()[0][0]
        made_of = [_first_position(table, channel) for table in tables]
        earliest = min((one for one in made_of if one is not None), default=None)
        if earliest is not None and (first is None or first > earliest):
            raise Conflict(
                "bronze no longer has everything that silver was made of",
                code="lake.cannot_rebuild",
                hint=f"{channel} begins at position {first}, silver at {earliest}; move the folder "
                "silver aside to go without the events before",
            )


def _first_position(table: Table, channel: str) -> int | None:
    """The first position of a channel in a table of silver, by statistics."""
    positions = [
        int(file.low["position"])
        for file in table.files()
        if file.low.get("channel", EVENTS) <= channel <= file.high.get("channel", EVENTS)
        and "position" in file.low
    ]
    return min(positions, default=None)
