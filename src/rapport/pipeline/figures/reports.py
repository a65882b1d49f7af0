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
import pyarrow.compute as pc

from rapport.lake.places import GOLD, Lake
from rapport.lake.table import replace_rows
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.figures.definitions import FACTS, SERIES, TABLES
from rapport.pipeline.figures.facts import Facts
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
from rapport.pipeline.lake.spark_tables import plan_text, replace_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = TypeVar("Row")
Progress = Callable[[int, int], None]
"""Steps done, and how many there are."""

_RESULTS = ("done", "failed", "timed_out", "open", "unmapped")
_STEPS_MS = tuple(
    minutes * 60_000 for minutes in (1, 5, 15, 60, 180, 720, 1_440, 10_080, 43_200, 525_600)
)
_MOST_STEPS = 160
_ALL_STEPS = len(FACTS) + 2 + sum(table.kind != "step" for table in TABLES) + 1


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
    """Reads what the lake has beyond the last report (any part may be missing), writes `gold/`,
    returns the figures.

    Takes some seconds on a small lake. Memory here does not grow with the events: what is as long
    as the ledger is written by the executors. Raises Corrupt that names a damaged file, Conflict
    (`lake.concurrent_writer`) when another report is made at the same time.
    """
    lake = Lake.at(lake)
    lake.refuse_former_format()
    with spark_errors("making the report"):
        run = _ReportRun(spark, lake, progress or (lambda _done, _all: None))
        try:
            run.compute()
            report = _report(run.tables, run.step_ms)
            run.publish()
        finally:
            run.release()
        replace_rows(lake.table_uri(GOLD, "totals"), _totals(report), lake.options)
    return report


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
    """One report: computes all tables, then puts them into `gold/`."""

    def __init__(self, spark: SparkSession, lake: Lake, progress: Progress) -> None:
        self._spark, self._lake, self._progress = spark, lake, progress
        self._frames: dict[str, DataFrame] = {}
        self._persisted: list[DataFrame] = []
        self._steps = 0
        self.tables: dict[str, pa.Table] = {}
        self.step_ms = _STEPS_MS[0]
        """Of the series of events per channel."""

    def compute(self) -> None:
        def ask(sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
            return _ask(self._spark, sql, frames)

        facts = Facts(self._spark, self._lake, ask, self._keep)
        self._frames = dict(facts.take(self._advance))
        for table in TABLES:
            rows = ask(table.sql, self._frames)
            if table.kind in ("kept", "large"):
                rows = self._keep(rows)
                rows.count()  # its size decides how the joins behind it are planned
            elif table.kind in ("small", "shown"):
                self.tables[table.name] = rows.toArrow()
            self._frames[table.name] = rows
            self._advance() if table.kind != "step" else None
        self.step_ms = _step_for(self.tables["channels"])
        series = SERIES.replace("{step}", str(self.step_ms))
        self.tables["series"] = ask(series, self._frames).toArrow()
        self._advance()

    def publish(self) -> None:
        """Puts all tables into `gold/`: each is replaced at once, and none before all are there."""
        for table in TABLES:
            if table.kind == "large":
                rows = self._frames[table.name].repartition(1)
                rows = rows.sortWithinPartitions(*table.order.split(", "))
                replace_table(rows, self._lake, GOLD, table.name)
            elif table.kind == "small":
                uri = self._lake.table_uri(GOLD, table.name)
                replace_rows(uri, self.tables[table.name], self._lake.options)

    def release(self) -> None:
        for rows in self._persisted:
            rows.unpersist()

    def _keep(self, rows: DataFrame) -> DataFrame:
        self._persisted.append(rows.persist())
        return self._persisted[-1]

    def _advance(self) -> None:
        self._steps += 1
        self._progress(self._steps, _ALL_STEPS)


def _ask(spark: SparkSession, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """SQL over tables that it names in braces."""
    return spark.sql(sql, **{name: frames[name] for name in re.findall(r"\{(\w+)\}", sql)})


def _report(tables: dict[str, pa.Table], step_ms: int) -> Report:
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
        series_step=step_ms,
        series=_rows(tables["series"], SeriesPoint),
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


def _step_for(rows: pa.Table) -> int:
    """The finest step that shows the whole time in not too many."""
    if not rows.num_rows:
        return _STEPS_MS[0]
    span = pc.max(rows["last"]).as_py() - pc.min(rows["first"]).as_py()
    return next((step for step in _STEPS_MS if span <= step * _MOST_STEPS), _STEPS_MS[-1])
