"""The report: what the lake says happened, as figures. [PI-6, CO-18]

A Spark job over the bronze lake; its result tables stay in `gold/` for whoever asks next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

from rapport.lake.places import GOLD, Lake
from rapport.lake.table import replace_rows
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.figures.making import Making, Progress
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
from rapport.pipeline.figures.staging import staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = TypeVar("Row")
_RESULTS = ("done", "failed", "timed_out", "open", "unmapped")


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
    """Reads the lake (any part of it may be missing), writes `gold/`, returns the figures.

    Takes some seconds on a small lake. Memory here does not grow with the events: what is as long
    as the ledger is written by the executors. Raises Corrupt that names a damaged file.
    """
    lake = Lake.at(lake)
    lake.refuse_former_format()
    with spark_errors("making the report"), staging(lake) as stage:
        making = Making(spark, lake, stage, progress)
        making.make()
        report = _report(making.tables, making.step_ms)
        making.publish()
        replace_rows(lake.table_uri(GOLD, "totals"), _totals(report), lake.options)
    return report


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
