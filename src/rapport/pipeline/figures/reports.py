"""The report: what the lake says happened, as figures. [PI-6, CO-18, LK-4]

A Spark job: facts are taken from what bronze has beyond the last run (`facts.py`), all tables are
SQL over facts (`definitions.py`). Its result tables stay in `gold/`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

from rapport.lake.places import GOLD, Lake
from rapport.lake.table import replace_rows
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.figures.definitions import FACTS, TABLES, FigureTable
from rapport.pipeline.figures.facts import Facts, rows_when_current
from rapport.pipeline.figures.rows import (
    AdapterRow,
    BrokerRow,
    ChannelRow,
    DelayRow,
    DeliveryCount,
    Edge,
    FunnelRow,
    GapRow,
    GossipMessages,
    GossipRow,
    HourCount,
    LateCount,
    MediationRow,
    MessageCount,
    PeerRow,
    PolicyCount,
    ReasonCount,
    SensorToPhone,
    SeriesPoint,
    SilentCount,
    Spread,
)
from rapport.pipeline.lake.spark_tables import WrittenTable, plan_text, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = TypeVar("Row")
Progress = Callable[[int, int], None]
"""Steps done, and how many there are."""

_RESULTS = ("done", "failed", "timed_out", "open", "unmapped")
_SHORTEST_STEP_MS = 60_000
_TOTALS = "totals"
_TABLES = {table.name: table for table in TABLES}
_SAVED = ("large", "small")
_ALL_STEPS = len(FACTS) + 1 + len(TABLES)


class EdgeCount(msgspec.Struct, frozen=True):
    """How many edges of a kind the whole provenance has, and in how many conversations."""

    relation: str
    edges: int
    conversations: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the lake says happened."""

    readings: int
    late: int
    quarantined: tuple[ReasonCount, ...]
    detections: tuple[PolicyCount, ...]
    hours: tuple[HourCount, ...]
    undecided: tuple[SilentCount, ...]
    late_readings: tuple[LateCount, ...]
    messages: tuple[MessageCount, ...]
    answered: int
    """Messages that at least one person answered."""
    funnel: tuple[FunnelRow, ...]
    deliveries: tuple[DeliveryCount, ...]
    peers: tuple[PeerRow, ...]
    adapters: tuple[AdapterRow, ...]
    sensor_to_phone: tuple[SensorToPhone, ...]
    mediation: tuple[MediationRow, ...]
    channels: tuple[ChannelRow, ...]
    gaps: tuple[GapRow, ...]
    series_step: int
    series: tuple[SeriesPoint, ...]
    delays: tuple[DelayRow, ...]
    gossip: tuple[GossipRow, ...]
    gossip_messages: tuple[GossipMessages, ...]
    brokers: tuple[BrokerRow, ...]
    edges: tuple[Edge, ...]
    """Of the newest conversations only; `gold/provenance` has all."""
    edge_counts: tuple[EdgeCount, ...]


def make_report(
    spark: SparkSession, lake: Lake | Path | str, *, progress: Progress | None = None
) -> Report:
    """Takes what the lake has beyond the last report (any part may be missing) into `gold/`;
    returns the figures. Tables that rest on nothing new stay as they are.

    Memory here does not grow with the events: what is as long as the ledger is written by the
    executors. Raises Corrupt that names a damaged file, Conflict (`lake.concurrent_writer`) when
    another report is made at the same time.
    """
    lake = Lake.at(lake)
    lake.refuse_former_format()
    with spark_errors("making the report"):
        run = _ReportRun(spark, lake, progress or (lambda _done, _all: None))
        try:
            run.compute()
            run.publish()
        finally:
            run.release()
    return read_report(lake)


def read_report(lake: Lake | Path | str) -> Report:
    """The figures of the last report, from `gold/`; needs no Spark. Raises UnknownName where none
    was made.
    """
    place = Lake.at(lake)
    names = [table.name for table in TABLES if table.kind == "small"]
    return _report({name: place.open(GOLD, name).read() for name in names})


def current_report(lake: Lake | Path | str) -> Report | None:
    """The figures of the last report when the lake has nothing beyond it; needs no Spark."""
    place = Lake.at(lake)
    if not place.has(GOLD, _TOTALS):
        return None
    done, rows = place.open(GOLD, _TOTALS), rows_when_current(place)
    if rows is None or any(done.progress(name) != count for name, count in rows.items()):
        return None
    return read_report(place)


def explain_report(spark: SparkSession, lake: Lake | Path | str) -> str:
    """The physical plans by which a first report reads bronze; runs nothing. What follows is SQL
    over these rows.
    """
    with spark_errors("explaining the report"):
        facts = Facts(spark, Lake.at(lake), lambda sql, frames: _ask(spark, sql, frames))
        parts = [f"{name}\n{plan_text(rows)}" for name, rows in facts.explained()]
    python = "MapInArrow write is Python: executors write Parquet files, delta-rs commits them\n"
    return "\n".join([*parts, python])


class _ReportRun:
    """One report: computes the tables that change, then puts them into `gold/`.

    A table changes when a fact that it rests on has other rows than when gold was last whole; how
    many they were stands in the log of `gold/totals`, whose commit ends a report.
    """

    def __init__(self, spark: SparkSession, lake: Lake, progress: Progress) -> None:
        self._spark, self._lake, self._progress = spark, lake, progress
        self._facts = Facts(spark, lake, self._query, self._keep)
        self._frames: dict[str, DataFrame] = {}
        self._persisted: list[DataFrame] = []
        self._small: dict[str, pa.Table] = {}
        self._written: dict[str, WrittenTable] = {}
        self._changed: set[str] = set()
        self._steps = 0

    def compute(self) -> None:
        self._frames.update(self._facts.take(self._advance))
        done = self._lake.open(GOLD, _TOTALS) if self._lake.has(GOLD, _TOTALS) else None
        for name, rows in self._facts.rows.items():
            if done is None or done.progress(name) != rows:
                self._changed.add(name)
        if "facts_found" in self._changed:
            self._changed |= {"found", "causes"}
        if "facts_late" in self._changed:
            self._changed.add("late_verdicts")
        if "facts_channel_minutes" in self._changed:
            # Any new event may be one that a finding of the last day speaks of.
            self._changed |= {"completed", "late_sources"}
            self._frames.update(self._facts.join(self._frames))
        self._advance()
        for table in TABLES:
            if self._changed.intersection(_named(table.sql)) or not self._is_saved(table):
                self._compute(table)
            self._advance()

    def _compute(self, table: FigureTable) -> None:
        self._changed.add(table.name)
        if table.kind == "step":
            return
        rows = self._query(table.sql, self._frames_of(table.sql))
        if table.kind == "small":
            self._small[table.name] = rows.toArrow()
            rows = self._spark.createDataFrame(self._small[table.name], rows.schema)
        elif table.kind == "large":
            rows = rows.repartition(1).sortWithinPartitions(*table.order.split(", "))
            self._written[table.name] = WrittenTable(rows, self._lake, GOLD, table.name)
            rows = self._written[table.name].read(self._spark)
        else:
            rows = self._keep(rows)
        self._frames[table.name] = rows

    def _frames_of(self, sql: str) -> dict[str, DataFrame]:
        """The tables that SQL names; those that stay are read from gold."""
        for name in _named(sql):
            if name in self._frames:
                continue
            table = _TABLES.get(name)
            if table is None:
                self._frames.update(self._facts.join(self._frames))
            elif table.kind in _SAVED and name not in self._changed:
                self._frames[name] = read_table(self._spark, self._lake, GOLD, name)
            else:
                self._frames[name] = self._query(table.sql, self._frames_of(table.sql))
        return self._frames

    def _is_saved(self, table: FigureTable) -> bool:
        return table.kind not in _SAVED or self._lake.has(GOLD, table.name)

    def publish(self) -> None:
        """Puts what changed into `gold/`: each table is replaced at once, and none before all are
        there.
        """
        for written in self._written.values():
            written.publish()
        for name, found in self._small.items():
            replace_rows(self._lake.table_uri(GOLD, name), found, self._lake.options)
        if self._changed:
            uri = self._lake.table_uri(GOLD, _TOTALS)
            replace_rows(
                uri, _totals(read_report(self._lake)), self._lake.options, self._facts.rows
            )

    def release(self) -> None:
        for rows in self._persisted:
            rows.unpersist()

    def _query(self, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
        return _ask(self._spark, sql, frames)

    def _keep(self, rows: DataFrame) -> DataFrame:
        self._persisted.append(rows.persist())
        return self._persisted[-1]

    def _advance(self) -> None:
        self._steps += 1
        self._progress(self._steps, _ALL_STEPS)


def _ask(spark: SparkSession, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """SQL over tables that it names in braces."""
    return spark.sql(sql, **{name: frames[name] for name in _named(sql)})


def _named(sql: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", sql)


def _report(tables: dict[str, pa.Table]) -> Report:
    channels = _rows(tables["channels"], ChannelRow)
    late = _rows(tables["late"], LateCount)
    funnel = _rows(tables["funnel"], FunnelRow)
    return Report(
        readings=sum(row.events for row in channels if row.channel == "events"),
        late=sum(row.count for row in late),
        quarantined=_rows(tables["quarantine"], ReasonCount),
        detections=_rows(tables["detections"], PolicyCount),
        hours=_rows(tables["detections_by_hour"], HourCount),
        undecided=_rows(tables["undecided"], SilentCount),
        late_readings=late,
        messages=_message_counts(funnel),
        answered=sum(row.answered for row in funnel),
        funnel=funnel,
        deliveries=_rows(tables["states"], DeliveryCount),
        peers=_rows(tables["peers"], PeerRow, "response"),
        adapters=_rows(tables["adapters"], AdapterRow, "handing", "response"),
        sensor_to_phone=_timings(tables["timings"]),
        mediation=_rows(tables["mediation"], MediationRow),
        channels=channels,
        gaps=_rows(tables["channel_gaps"], GapRow),
        series_step=next(iter(tables["series"]["step"].to_pylist()), _SHORTEST_STEP_MS),
        series=_rows(tables["series"].drop_columns("step"), SeriesPoint),
        delays=_rows(tables["delays"], DelayRow, "delay"),
        gossip=_rows(tables["gossip"], GossipRow, "age"),
        gossip_messages=_rows(tables["gossip_messages"], GossipMessages),
        brokers=_rows(tables["brokers"], BrokerRow, "response_us"),
        edges=_rows(tables["edges"], Edge),
        edge_counts=_rows(tables["edge_counts"], EdgeCount),
    )


def _rows(table: pa.Table, kind: type[Row], *spreads: str) -> tuple[Row, ...]:
    return tuple(kind(**_nested(row, spreads)) for row in table.to_pylist())


def _nested(row: dict[str, Any], spreads: Iterable[str]) -> dict[str, Any]:
    """The row with the columns of each spread as one value, None where nothing was timed."""
    for name in spreads:
        values = {part: row.pop(f"{name}_{part}") for part in Spread.__struct_fields__}
        row[name] = None if values["timed"] is None else Spread(**values)
    return row


def _timings(table: pa.Table) -> tuple[SensorToPhone, ...]:
    rows = [_nested(row, ("from_door", "after_due")) for row in table.to_pylist()]
    return tuple(
        SensorToPhone(row["policy"], row["from_door"].timed, row["from_door"], row["after_due"])
        for row in rows
    )


def _message_counts(funnel: Iterable[FunnelRow]) -> tuple[MessageCount, ...]:
    counts: Counter[str] = Counter()
    for row in funnel:
        counts.update({result: getattr(row, result) for result in _RESULTS})
    return tuple(MessageCount(*item) for item in sorted(counts.items()) if item[1])


def _totals(report: Report) -> pa.Table:
    counts = {
        "readings": report.readings,
        "messages": sum(row.messages for row in report.funnel),
        "late": report.late,
    }
    return pa.table({name: pa.array([count], pa.int64()) for name, count in counts.items()})
