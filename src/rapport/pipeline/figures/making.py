"""All tables of the report from the bronze lake, on Spark: workers keep the large ones, small ones
come here. [PI-6, CO-18]

Any channel may be missing; its part of the answer is then empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rapport.channel.validation import SUMMARIES, is_node_channel
from rapport.lake.places import BRONZE, GOLD, Lake
from rapport.lake.table import replace_rows
from rapport.pipeline.figures import channel_tables as channels
from rapport.pipeline.figures import delivery_tables as delivery
from rapport.pipeline.figures import detection_tables as detection
from rapport.pipeline.figures import mediation_tables as mediation
from rapport.pipeline.figures import overlay_tables as overlay
from rapport.pipeline.figures import provenance_tables as provenance
from rapport.pipeline.figures.staging import Staging
from rapport.pipeline.lake.spark_tables import read_bronze

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[int, int], None]

SHOWN_CONVERSATIONS, SHOWN_EDGES = 8, 400
"""How much of the provenance comes here, for the page; the rest stays in the lake."""
_LARGE = ("channel_minutes", "deliveries", "people", "messages", "sensor_to_phone", "provenance")
_FEW = 200_000
"""Rows that fit into every worker's memory."""
_STEPS_MS = tuple(
    minutes * 60_000 for minutes in (1, 5, 15, 60, 180, 720, 1_440, 10_080, 43_200, 525_600)
)
_MOST_STEPS = 160
_ALL_STEPS = 31


class Making:
    """One report under way: computes all, hands over what is small, then puts it into `gold/`."""

    def __init__(
        self, spark: SparkSession, lake: Lake, stage: Staging, progress: Progress | None
    ) -> None:
        self._spark, self._lake, self._stage = spark, lake, stage
        self._progress, self._done = progress, 0
        self._read: dict[tuple[str, ...], DataFrame] = {}
        self._for_gold: list[str] = []
        self.tables: dict[str, pa.Table] = {}
        self.step_ms = _STEPS_MS[0]
        """Of the series of events per channel."""

    def make(self) -> None:
        """Computes everything, in an order in which each thing is there when it is needed."""
        self._channels()
        self._found()
        self._ledger()
        self._small("detections", detection.detection_counts(self._spark, self._findings))
        self._small("detections_by_hour", detection.detection_hours(self._spark, self._findings))
        self._small("undecided", detection.silent_sources(self._spark, self._findings))
        self._late()
        self._people()
        self._mediation()
        self._timing()
        self._overlay()
        self._provenance()

    def publish(self) -> None:
        """Puts all tables into `gold/`: each is replaced at once, and none before all are there."""
        for name in _LARGE:
            self._stage.publish(name)
        for name in self._for_gold:
            replace_rows(self._lake.table_uri(GOLD, name), self.tables[name], self._lake.options)

    # --- parts ---

    def _channels(self) -> None:
        spark = self._spark
        minutes = self._kept(
            "channel_minutes",
            channels.channel_minutes(spark, self._bronze("*")),
            order="channel, minute",
        )
        gaps = channels.channel_gaps(spark, minutes)
        self._small("channels", channels.channel_rows(spark, minutes, gaps))
        self._small("channel_gaps", channels.longest_gaps(spark, gaps))
        self.step_ms = _step_for(self.tables["channels"])
        series = channels.channel_series(spark, minutes, self.step_ms)
        self._here("series", series)
        names = [name for name in self._lake.names(BRONZE) if not is_node_channel(name)]
        self._small("delays", channels.delay_rows(spark, self._bronze(*names)))

    def _found(self) -> None:
        found = detection.findings(self._spark, self._bronze("detections"))
        self._findings = self._kept("findings", found)
        self._causes = self._kept("causes", detection.causes(self._spark, self._findings))

    def _ledger(self) -> None:
        spark, log = self._spark, self._bronze("log")
        self._lines = self._kept("ledger", delivery.ledger_lines(spark, log))
        self._deliveries = self._kept(
            "deliveries",
            delivery.deliveries(spark, self._lines),
            order="message, peer, address",
        )
        self._asked = self._kept(
            "people", delivery.people(spark, self._lines), order="message, peer"
        )
        written = delivery.written_messages(spark, log)
        self._messages = self._kept(
            "messages", delivery.messages(spark, written, self._lines), order="message"
        )

    def _late(self) -> None:
        late = self._kept("late", detection.late_readings(self._spark, self._bronze("detections")))
        few = self._stage.rows_of("late") <= _FEW
        events = self._bronze("events")
        self._small("late", detection.late_counts(self._spark, late, events, few=few))

    def _people(self) -> None:
        spark = self._spark
        self._small("peers", delivery.peer_rows(spark, self._asked))
        self._small("adapters", delivery.adapter_rows(spark, self._deliveries, self._asked))
        self._here("states", delivery.delivery_states(spark, self._deliveries))
        counts = detection.detection_counts(spark, self._findings)
        self._small("funnel", delivery.funnel_rows(spark, counts, self._messages))

    def _mediation(self) -> None:
        held = mediation.held_back(self._spark, self._bronze("quarantine"))
        self._small("quarantine", mediation.quarantine_rows(self._spark, held))
        events = self._bronze("events")
        self._small("mediation", mediation.mediation_rows(self._spark, events, held))

    def _timing(self) -> None:
        spark = self._spark
        few = self._stage.rows_of("causes") <= _FEW
        events, raw = self._bronze("events"), self._bronze("raw.*")
        readings = self._kept(
            "readings", detection.caused_readings(spark, self._causes, events, few=few)
        )
        few = self._stage.rows_of("readings") <= _FEW
        rows = detection.sensor_to_phone(
            spark,
            deliveries=self._deliveries,
            messages=self._messages,
            found=self._findings,
            completed=detection.completed(spark, readings, raw, few=few),
        )
        kept = self._kept("sensor_to_phone", rows, order="taken_at, message, peer, address")
        self._here("timings", detection.timings(spark, kept))

    def _overlay(self) -> None:
        spark, summaries = self._spark, self._bronze(SUMMARIES)
        told = overlay.gossip_told(spark, summaries)
        self._small("gossip", overlay.gossip_rows(spark, told))
        self._small("gossip_messages", overlay.gossip_messages(spark, told))
        self._small("brokers", overlay.broker_rows(spark, summaries))

    def _provenance(self) -> None:
        spark = self._spark
        edges = provenance.provenance(
            spark,
            messages=self._messages,
            causes=self._causes,
            deliveries=self._deliveries,
            people=self._asked,
            ledger=self._lines,
            appended=provenance.appended_events(spark, self._bronze("*")),
        )
        kept = self._kept("provenance", edges, order=provenance.EDGE_ORDER)
        shown = provenance.newest_edges(
            spark, kept, conversations=SHOWN_CONVERSATIONS, most=SHOWN_EDGES
        )
        self._here("edges", shown)
        self._here("edge_counts", provenance.edge_counts(spark, kept))

    # --- how ---

    def _bronze(self, *names: str) -> DataFrame:
        if names not in self._read:
            self._read[names] = read_bronze(self._spark, self._lake, *names)
        return self._read[names]

    def _kept(self, name: str, rows: DataFrame, *, order: str = "") -> DataFrame:
        kept = self._stage.keep(name, rows, order=order)
        self._advance()
        return kept

    def _small(self, name: str, rows: DataFrame) -> None:
        """A table that comes here as a whole and goes to `gold/`."""
        self._here(name, rows)
        self._for_gold.append(name)

    def _here(self, name: str, rows: DataFrame) -> None:
        self.tables[name] = rows.toArrow()
        self._advance()

    def _advance(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, max(_ALL_STEPS, self._done))


def _step_for(rows: pa.Table) -> int:
    """The finest step that shows the whole time in not too many."""
    if not rows.num_rows:
        return _STEPS_MS[0]
    span = pc.max(rows["last"]).as_py() - pc.min(rows["first"]).as_py()
    return next((step for step in _STEPS_MS if span <= step * _MOST_STEPS), _STEPS_MS[-1])
