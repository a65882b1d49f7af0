"""What the report needs of bronze, taken once and kept in tables of gold that only grow.
[LK-4, LK-10]

A run reads the positions that bronze has beyond a fact, and appends narrow rows in one commit that
carries the positions reached: killed anywhere, each event counts once. What a run costs therefore
follows from what is new. Facts stay when old days of bronze expire.

Findings and verdicts are joined with the readings they speak of, by days: a reading cannot arrive
before its own time (a day is left for clocks that are ahead), nor after what speaks of it. Those
older than a day have met all their readings, and are kept as well; younger ones are joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.channel.validation import is_node_channel
from rapport.lake.bronze import DAY_MS, FIRST_MS, LAST_MS, exported_position
from rapport.lake.places import BRONZE, GOLD, Lake
from rapport.lake.table import Table
from rapport.pipeline.figures.definitions import (
    CAUSES,
    COMPLETED,
    FACTS,
    FOUND,
    LATE_SOURCES,
    LATE_VERDICTS,
    Fact,
)
from rapport.pipeline.lake.spark_tables import (
    chosen_channels,
    plain_schema,
    read_bronze,
    read_files,
    write_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTLED = "settled"
"""The writer whose progress is the time up to which findings have met all their readings."""
_EVENTS = "events"
Frames = dict[str, "DataFrame"]
Ask = Callable[[str, Mapping[str, "DataFrame"]], "DataFrame"]
"""SQL over tables by name."""


def channels_of(fact: Fact, names: Iterable[str]) -> list[str]:
    """The channels that a fact is taken from."""
    if fact.channels == ("given",):
        return [name for name in names if not is_node_channel(name)]
    return chosen_channels(names, fact.channels)


def rows_when_current(lake: Lake) -> dict[str, int] | None:
    """How many rows each fact has; None when bronze has something that a fact has not. Needs no
    Spark.
    """
    ends = {name: exported_position(lake, name) for name in lake.names(BRONZE)}
    found = {}
    for fact in FACTS:
        if not lake.has(GOLD, f"facts.{fact.name}"):
            return None
        table = lake.open(GOLD, f"facts.{fact.name}")
        if any((table.progress(name) or 0) < ends[name] for name in channels_of(fact, ends)):
            return None
        found[f"facts_{fact.name}"] = table.rows()
    return found


class Facts:
    """The facts of a lake; `take` brings them up to what bronze has."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        ask: Ask,
        keep: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    ) -> None:
        """`keep` makes rows that are used several times be computed once."""
        self._spark, self._lake, self._ask, self._keep = spark, lake, ask, keep
        names = lake.names(BRONZE)
        self._ends = {name: exported_position(lake, name) for name in names}
        self.rows: dict[str, int] = {}
        """How many each fact has, once taken. Rows are only added: as many are the same ones."""

    def take(self, done: Callable[[], None] = lambda: None) -> Frames:
        """Appends what is new; returns the facts, by `facts_<name>`."""
        frames: Frames = {}
        for fact in FACTS:
            frames[f"facts_{fact.name}"] = self._grown(fact)
            done()
        return frames

    def explained(self) -> Iterator[tuple[str, DataFrame]]:
        """By fact the rows that a first run would append, where the lake has such channels; runs
        nothing.
        """
        frames: Frames = {}
        for fact in FACTS:
            ranges = {name: (0, self._ends[name]) for name in channels_of(fact, self._ends)}
            frames[f"facts_{fact.name}"] = self._rows(fact, ranges)
            if ranges:
                yield fact.name, frames[f"facts_{fact.name}"]
        found = self._ask(FOUND, frames)
        days = (date(1970, 1, 1), date(1970, 1, 2))
        yield "completed", self._joins(COMPLETED, self._ask(CAUSES, {"found": found}), days)
        yield "late_sources", self._joins(LATE_SOURCES, self._ask(LATE_VERDICTS, frames), days)

    # --- growing ---

    def _grown(self, fact: Fact) -> DataFrame:
        channels = channels_of(fact, self._ends)
        table = self._table(f"facts.{fact.name}", lambda: self._rows(fact, {}))
        begins = {name: table.progress(name) or 0 for name in channels}
        ranges = {
            name: (begin, self._ends[name])
            for name, begin in begins.items()
            if begin < self._ends[name]
        }
        if ranges:
            new = write_rows(self._rows(fact, ranges), table, self._lake)
            ends = {name: end for name, (_begin, end) in ranges.items()}
            table.commit(new, progress=ends, after={name: begins[name] for name in ends})
        self.rows[f"facts_{fact.name}"] = table.rows()
        return self._read(table)

    def _rows(self, fact: Fact, ranges: Mapping[str, tuple[int, int]]) -> DataFrame:
        rows = read_bronze(self._spark, self._lake, *ranges, positions=ranges)
        return self._ask(fact.sql, {"rows": rows})

    # --- what joins with readings ---

    def join(self, facts: Frames) -> Frames:
        """What findings and verdicts rest on: `found`, `causes`, `completed`, `late_verdicts` and
        `late_sources`.
        """
        found = self._keep(self._ask(FOUND, facts))
        causes = self._keep(self._ask(CAUSES, {"found": found}))
        verdicts = self._keep(self._ask(LATE_VERDICTS, facts))
        completed = self._joined("facts.completed", COMPLETED, causes, "earliest", "detected_at")
        late = self._joined("facts.late_sources", LATE_SOURCES, verdicts, "time", "received")
        return {
            "found": found,
            "causes": causes,
            "late_verdicts": verdicts,
            "completed": completed,
            "late_sources": late,
        }

    def _joined(self, name: str, sql: str, rows: DataFrame, earliest: str, at: str) -> DataFrame:
        """Rows joined with readings: kept ones, and those of the last day joined now."""
        table = self._table(name, lambda: self._joins(sql, rows, (None, None)))
        begin = table.progress(_SETTLED) or 0
        kept = self._read(table)
        unsettled = rows.where(f"{at} > {begin}")
        bounds = unsettled.selectExpr(f"min({earliest})", f"max({at})").collect()[0]
        if bounds[1] is None:
            return kept
        days = (_day(bounds[0] - DAY_MS), _day(bounds[1]))
        joined = self._keep(self._joins(sql, unsettled, days))
        until = self._frontier() - DAY_MS
        if until > begin:
            new = write_rows(joined.where(f"at <= {until}"), table, self._lake)
            table.commit(new, progress={_SETTLED: until}, after={_SETTLED: begin})
        return kept.unionByName(joined)

    def _joins(self, sql: str, rows: DataFrame, days: tuple[date | None, date | None]) -> DataFrame:
        events = read_bronze(self._spark, self._lake, _EVENTS, days=days)
        raw = read_bronze(self._spark, self._lake, "raw.*", days=days)
        return self._ask(sql, {"open": rows, "events": events, "raw": raw})

    def _frontier(self) -> int:
        """The newest arrival of an event that bronze has."""
        if _EVENTS not in self._ends:
            return 0
        files = self._lake.open(BRONZE, _EVENTS).files()
        newest = [file.high["received"] for file in files if "received" in file.high]
        return int(max(newest).timestamp() * 1_000) if newest else 0

    # --- tables ---

    def _table(self, name: str, rows: Callable[[], DataFrame]) -> Table:
        """The table; made with the columns of the rows where there is none."""
        if self._lake.has(GOLD, name):
            return self._lake.open(GOLD, name)
        schema = pa.schema(rows().limit(0).toArrow().schema)
        return Table.ensure(
            self._lake.table_uri(GOLD, name),
            plain_schema(schema),
            description="what the report has taken from bronze",
            options=self._lake.options,
        )

    def _read(self, table: Table) -> DataFrame:
        return read_files(self._spark, table, [file.uri for file in table.files()])


def _day(milliseconds: int) -> date:
    clipped = min(max(milliseconds, FIRST_MS), LAST_MS)
    return datetime.fromtimestamp(clipped // DAY_MS * 86_400, UTC).date()
